//! Checks the placeholders in a command's arguments and environment, and reports params that no placeholder
//! uses, since they would have no effect on the program.

use super::parsed::{DeclaredParam, ParsedValue};
use super::suggestion;
use super::values::ParsedValues;
use crate::document::{Document, SpannedValue, Value};
use crate::keys::find;
use crate::params::{ParamDomain, ParamValue};
use crate::placeholder::{RUN_DIR, Ranks, paths, value_at_path, values as all};
use crate::problem::Problem;
use crate::recipe::Recipe;
use crate::source::Origin;

/// An argument or environment variable of a command, which may contain placeholders.
struct PlaceholderText<'d> {
    text: &'d str,
    origin: &'d Origin,
    /// Index of the text among the command's arguments; `None` if it is an environment variable.
    argument: Option<usize>,
}

fn texts(document: &Document) -> Vec<PlaceholderText<'_>> {
    let mut texts = Vec::new();
    if let Some(Value::List(items)) = document.get("model.argv").map(|node| &node.value) {
        texts.extend(items.iter().enumerate().filter_map(|(place, node)| {
            let Value::Text(text) = &node.value else { return None };
            Some(PlaceholderText { text, origin: &node.origin, argument: Some(place) })
        }));
    }
    for entry in
        document.get("model.env").and_then(SpannedValue::table).into_iter().flat_map(|table| table.values())
    {
        if let Value::Text(text) = &entry.node.value {
            texts.push(PlaceholderText { text, origin: &entry.node.origin, argument: None });
        }
    }
    texts
}

/// Returns the dotted paths in all placeholders of the command in `document`.
pub(super) fn named(document: &Document) -> Vec<String> {
    texts(document).iter().flat_map(|text| paths(text.text)).map(ToOwned::to_owned).collect()
}

/// Returns `true` if one of the paths in `named` is `key`, or a section that contains it.
pub(super) fn reaches(named: &[String], key: &str) -> bool {
    named.iter().any(|path| {
        key.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Reports placeholders without a value, and params that no placeholder uses.
pub(super) fn problems(document: &Document, values: &ParsedValues, recipe: &Recipe) -> Vec<Problem> {
    let known = all(recipe, Ranks::SINGLE);
    let mut problems = Vec::new();
    let texts = texts(document);
    for text in &texts {
        let declared =
            |path: &str| path.strip_prefix("params.").is_some_and(|name| recipe.ranges.contains_key(name));
        let is_known =
            |path: &str| path == RUN_DIR || value_at_path(&known, path).is_some() || declared(path);
        let without = paths(text.text).filter(|path| !is_known(path));
        problems.extend(without.map(|path| no_value(path, values, &known).at(text.origin)));
    }
    problems.extend(texts.iter().filter_map(|text| no_program(text, recipe)));
    problems.extend(texts.windows(2).filter_map(|pair| parted(&pair[0], &pair[1], recipe)));
    // A misspelt placeholder leaves its param unused: report one problem, not two.
    if problems.is_empty() { unused(document, values) } else { problems }
}

/// Returns the problem to report for a placeholder that has no value.
fn no_value(path: &str, values: &ParsedValues, known: &serde_json::Value) -> Problem {
    let shown: String = path.chars().take(200).collect();
    let section = path.split('.').next().unwrap_or(path);
    let is_key = find(path, None).is_some() && known.get(section).is_some();
    if is_key || path == "objective.stop.steps" {
        return match (values.said(path), values.get(path)) {
            (Some(origin), Some(value @ (ParsedValue::Among(_) | ParsedValue::Log(..)))) => Problem::new(
                format!("`{{{shown}}}` has no value: `{path}` is searched, and a program gets one value"),
            )
            .note_at(format!("`{path}` is {value}"), origin)
            .hint("declare a param with this range below `[params]`, and name it instead"),
            _ => Problem::new(format!("`{{{shown}}}` has no value: `{path}` is not set"))
                .hint(format!("set `{path}`, or remove the placeholder")),
        };
    }
    let problem = Problem::new(format!("unknown placeholder `{{{shown}}}`"));
    let mut candidates = candidates(known);
    candidates.push(RUN_DIR.to_owned());
    match suggestion::closest_suggestion(path, candidates.iter().map(String::as_str)) {
        Some(near) => problem.hint(format!("did you mean `{{{near}}}`?")),
        None => match path.strip_prefix("params.") {
            Some(name) => problem.hint(format!("declare it: write `{name} = …` below `[params]`")),
            None => problem.hint(format!(
                "known are `{{params.NAME}}`, keys of `[train]` and `[layout]`, `{{cluster.ranks}}`, \
                 `{{objective.stop.steps}}` and `{{run.dir}}`; where this is meant as text, write `{{{{{shown}}}}}`"
            )),
        },
    }
}

/// Returns the dotted paths of all values in `known`, including those of sections.
fn candidates(known: &serde_json::Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<(String, &serde_json::Value)> = vec![(String::new(), known)];
    while let Some((path, value)) = left.pop() {
        for (name, inner) in value.as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            found.push(path.clone());
            left.push((path, inner));
        }
    }
    found
}

/// Returns the problem of an option that could lose its value: dtrain drops an argument whose param is empty
/// or does not apply.
fn parted(option: &PlaceholderText<'_>, text: &PlaceholderText<'_>, recipe: &Recipe) -> Option<Problem> {
    let name = text.text.strip_prefix("{params.")?.strip_suffix('}')?;
    let is_conditional = recipe.ranges.get(name).is_some_and(|range| !range.when.is_empty());
    let is_option = option.text.starts_with('-') && !option.text.contains(['=', '{']);
    let why = match () {
        () if is_conditional => "does not apply",
        () if may_be_empty(name, recipe) => "is empty",
        () => return None,
    };
    if !is_option || text.argument != option.argument.map(|place| place + 1) {
        return None;
    }
    let message = format!("where `params.{name}` {why}, {:?} would be left without its value", option.text);
    let hint = format!("write one argument: \"{}={}\"", option.text, text.text);
    Some(Problem::new(message).at(text.origin).hint(hint))
}

/// Returns `true` if the param `name` is the value of an option and may be empty. A param whose other values
/// are options themselves, as in `choices = ["--amp", ""]`, is not the value of the argument before it.
fn may_be_empty(name: &str, recipe: &Recipe) -> bool {
    let texts: Vec<String> =
        match (recipe.ranges.get(name).map(|range| &range.within), recipe.params.get(name)) {
            (Some(ParamDomain::Choices(choices)), _) => choices.iter().map(ParamValue::plain).collect(),
            (None, Some(value)) => vec![value.plain()],
            _ => Vec::new(),
        };
    texts.iter().any(String::is_empty) && !texts.iter().any(|text| text.starts_with('-'))
}

/// Returns the problem of a program name that may be empty: the next argument would be started in its place.
fn no_program(text: &PlaceholderText<'_>, recipe: &Recipe) -> Option<Problem> {
    let name = text.text.strip_prefix("{params.")?.strip_suffix('}')?;
    if text.argument != Some(0) || !may_be_empty(name, recipe) {
        return None;
    }
    let message = format!("where `params.{name}` is empty, `model.argv` has no program");
    Some(Problem::new(message).at(text.origin).hint("give the param a value that is not empty"))
}

/// Reports params that no placeholder names, if other params are named. A command without any such
/// placeholder reads all params from `DTRAIN_PARAMS`.
fn unused(document: &Document, values: &ParsedValues) -> Vec<Problem> {
    let named = named(document);
    let Some(example) = named.iter().find(|path| path.starts_with("params.")) else { return Vec::new() };
    let Some(ParsedValue::Params(params)) = values.get("params") else { return Vec::new() };
    let unused =
        |(name, _): &(&String, &(DeclaredParam, Origin))| !reaches(&named, &format!("params.{name}"));
    let problem = |(name, (_, origin)): (&String, &(DeclaredParam, Origin))| {
        Problem::new(format!(
            "`params.{name}` reaches nothing: `{{{example}}}` is named in `model.argv` or `model.env`, and it is not"
        ))
        .at(origin)
        .hint(format!(
            "add an argument such as \"--{name}={{params.{name}}}\", or `{{params}}` for all of them as JSON"
        ))
    };
    params.iter().filter(unused).map(problem).collect()
}
