//! Parses the params and environment variables of a command, and the settings of a network: tables with
//! user-chosen names.

use super::text::variable_name;
use super::{kind_of, list, wrong};
use crate::check::parsed::DeclaredParam;
use crate::check::suggestion::closest_suggestion;
use crate::document::{SpannedValue, Table, Value};
use crate::notice::NoticeUrl;
use crate::params::{ParamDomain, ParamRange, ParamValue};
use crate::problem::Problem;
use crate::source::Origin;
use std::collections::{BTreeMap, BTreeSet};

/// Declared params by name, each with its position in the recipe.
pub(in crate::check) type DeclaredParams = BTreeMap<String, (DeclaredParam, Origin)>;

const FORMS: &str = "{ choices = [..] }, { log = [low, high] } or { uniform = [low, high] }";

pub(super) fn environment(path: &str, node: &SpannedValue) -> Result<BTreeMap<String, String>, Problem> {
    let example = "write for example `env = { NCCL_DEBUG = \"INFO\" }`";
    let table = node.table().ok_or_else(|| wrong(path, "a table of texts", node).hint(example))?;
    let mut variables = BTreeMap::new();
    for (name, entry) in table {
        let path = format!("{path}.{}", name.chars().take(200).collect::<String>());
        if !variable_name(name) {
            let problem = Problem::new(format!("`{path}`: {name:?} is not the name of a variable"));
            return Err(problem.at(&entry.key).hint(example));
        }
        if name.starts_with("DTRAIN_") {
            let problem = Problem::new(format!("`{path}`: dtrain itself sets the variables `DTRAIN_…`"));
            return Err(problem.at(&entry.key).hint("choose another name"));
        }
        let found = match &entry.node.value {
            Value::Text(text) => text.clone(),
            Value::Whole(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            _ => return Err(wrong(&path, "a text in quotes", &entry.node)),
        };
        variables.insert(name.clone(), no_nul(&path, &found, &entry.node)?);
    }
    Ok(variables)
}

/// Parses header fields of an HTTP request by name.
pub(super) fn headers(path: &str, node: &SpannedValue) -> Result<BTreeMap<String, String>, Problem> {
    let example = "write for example `headers = { Metadata = \"true\" }`";
    let table = node.table().ok_or_else(|| wrong(path, "a table of texts", node).hint(example))?;
    let header = |(name, entry): (&String, &crate::document::Entry)| {
        let path = format!("{path}.{}", name.chars().take(200).collect::<String>());
        let Value::Text(value) = &entry.node.value else {
            return Err(wrong(&path, "a text in quotes", &entry.node));
        };
        match NoticeUrl::check_header(name, value) {
            Ok(()) => Ok((name.clone(), value.clone())),
            Err(detail) => Err(Problem::new(format!("`{path}`: {detail}")).at(&entry.key).hint(example)),
        }
    };
    table.iter().map(header).collect()
}

fn no_nul(path: &str, text: &str, node: &SpannedValue) -> Result<String, Problem> {
    if text.contains('\0') {
        return Err(Problem::new(format!("`{path}` contains a NUL character")).at(&node.origin));
    }
    Ok(text.to_owned())
}

/// Parses `[params]`; `Err` lists every problem.
pub(in crate::check) fn params(path: &str, node: &SpannedValue) -> Result<DeclaredParams, Vec<Problem>> {
    let Some(table) = node.table() else {
        let problem = wrong(path, "a section", node);
        return Err(vec![problem.hint("write `[params]` on a line of its own and a value for each name")]);
    };
    let (mut params, mut problems) = (DeclaredParams::new(), Vec::new());
    for (name, entry) in table {
        let path = format!("{path}.{}", name.chars().take(200).collect::<String>());
        match named("param", name, &path, &entry.key).and_then(|()| param(&path, &entry.node)) {
            Ok(param) => drop(params.insert(name.clone(), (param, entry.node.origin.clone()))),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        problems = conditions(&params);
    }
    if problems.is_empty() { Ok(params) } else { Err(problems) }
}

/// Parses the settings of a custom network: plain values under user-chosen names.
pub(super) fn settings(path: &str, node: &SpannedValue) -> Result<BTreeMap<String, ParamValue>, Problem> {
    let example = "write for example `settings = { depth = 4, gated = true }`";
    let table = node.table().ok_or_else(|| wrong(path, "a table of values", node).hint(example))?;
    let setting = |(name, entry): (&String, &crate::document::Entry)| {
        let path = format!("{path}.{}", name.chars().take(200).collect::<String>());
        named("setting", name, &path, &entry.key)?;
        Ok((name.clone(), value(&path, &entry.node)?))
    };
    table.iter().map(setting).collect()
}

/// Checks that a user-chosen name can appear in placeholders, in JSON and on the command line.
fn named(what: &str, name: &str, path: &str, at: &Origin) -> Result<(), Problem> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_right) {
        return Ok(());
    }
    Err(Problem::new(format!("`{path}`: {name:?} is not the name of a {what}"))
        .at(at)
        .hint("use at most 64 letters, digits, `_` and `-`, beginning with a letter"))
}

fn param(path: &str, node: &SpannedValue) -> Result<DeclaredParam, Problem> {
    match &node.value {
        Value::Inline(table) | Value::Section(table) => range(path, node, table).map(DeclaredParam::Range),
        Value::List(_) => Err(wrong(path, "a value or a range", node).hint(
            "a choice of values is `{ choices = [..] }`; write a list that the program reads as a text",
        )),
        _ => value(path, node).map(DeclaredParam::Value),
    }
}

fn value(path: &str, node: &SpannedValue) -> Result<ParamValue, Problem> {
    Ok(match &node.value {
        Value::Text(text) => ParamValue::Text(no_nul(path, text, node)?),
        Value::Whole(number) => ParamValue::Whole(*number),
        Value::Real(number) if number.is_finite() => ParamValue::Real(*number),
        Value::Flag(flag) => ParamValue::Flag(*flag),
        _ => return Err(wrong(path, "a finite number, a text, or true or false", node)),
    })
}

fn range(path: &str, node: &SpannedValue, table: &Table) -> Result<ParamRange, Problem> {
    const KEYS: [&str; 5] = ["choices", "log", "uniform", "default", "when"];
    if let Some((key, entry)) = table.iter().find(|(key, _)| !KEYS.contains(&key.as_str())) {
        let shown: String = key.chars().take(200).collect();
        let problem =
            Problem::new(format!("unknown key `{path}.{shown}`; a range is {FORMS}")).at(&entry.key);
        return Err(match closest_suggestion(key, KEYS.into_iter()) {
            Some(near) => problem.hint(format!("did you mean `{near}`?")),
            None => problem.hint("beside it can stand `default = VALUE` and `when = { PARAM = VALUE }`"),
        });
    }
    let forms: Vec<_> = table.iter().filter(|(key, _)| KEYS[..3].contains(&key.as_str())).collect();
    let [(form, entry)] = forms.as_slice() else {
        return Err(Problem::new(format!("`{path}` must be a value, or one of {FORMS}")).at(&node.origin));
    };
    let below = format!("{path}.{form}");
    let within = if *form == "choices" {
        ParamDomain::Choices(list(&below, &entry.node, "a list of values", |item| value(&below, item))?)
    } else {
        let (low, high) = bounds(&below, &entry.node, *form == "log")?;
        if *form == "log" { ParamDomain::Log(low, high) } else { ParamDomain::Uniform(low, high) }
    };
    let default = table.get("default").map(|entry| default(path, &entry.node, &within)).transpose()?;
    let when = table.get("when").map_or(Ok(BTreeMap::new()), |entry| when(path, &entry.node))?;
    Ok(ParamRange { within, default, when })
}

fn bounds(path: &str, node: &SpannedValue, is_log: bool) -> Result<(ParamValue, ParamValue), Problem> {
    let wanted = if is_log { "a number above 0" } else { "a finite number" };
    let bound = |item: &SpannedValue| {
        let found = value(path, item).ok().filter(|value| value.number().is_some_and(|x| !is_log || x > 0.0));
        found.ok_or_else(|| {
            Problem::new(format!("a bound of `{path}` must be {wanted}, found {}", kind_of(item)))
                .at(&item.origin)
        })
    };
    let values = list(path, node, "a list of two bounds", bound)?;
    let found = values.len();
    let Ok([low, high]) = <[ParamValue; 2]>::try_from(values) else {
        let message = format!("`{path}` must have two bounds, a low and a high one, found {found}");
        return Err(Problem::new(message).at(&node.origin));
    };
    if low.number() <= high.number() {
        return Ok((low, high));
    }
    let message = format!("the bounds of `{path}` are descending: {low} is above {high}");
    Err(Problem::new(message).at(&node.origin).hint(format!("write [{high}, {low}]")))
}

fn default(path: &str, node: &SpannedValue, within: &ParamDomain) -> Result<ParamValue, Problem> {
    let found = value(&format!("{path}.default"), node)?;
    if within.contains(&found) {
        return Ok(found);
    }
    let message = format!("`{path}.default` = {found} is not within {{ {within} }}");
    Err(Problem::new(message).at(&node.origin))
}

fn when(path: &str, node: &SpannedValue) -> Result<BTreeMap<String, Vec<ParamValue>>, Problem> {
    let path = format!("{path}.when");
    let example = "write for example `when = { optimizer = \"sgd\" }`";
    let table = node.table().filter(|table| !table.is_empty());
    let table = table.ok_or_else(|| wrong(&path, "a table of values of other params", node).hint(example))?;
    let wanted = |(name, entry): (&String, &crate::document::Entry)| {
        let path = format!("{path}.{name}");
        let values = match &entry.node.value {
            Value::List(_) => list(&path, &entry.node, "a list of values", |item| value(&path, item))?,
            _ => vec![value(&path, &entry.node)?],
        };
        Ok((name.clone(), values))
    };
    table.iter().map(wanted).collect()
}

/// Checks the conditions of params: each names another param and a value it can have, without cycles.
fn conditions(params: &DeclaredParams) -> Vec<Problem> {
    let mut problems = Vec::new();
    let ranges = || {
        params.iter().filter_map(|(name, (param, origin))| match param {
            DeclaredParam::Range(range) => Some((name, range, origin)),
            DeclaredParam::Value(_) => None,
        })
    };
    for (name, range, origin) in ranges() {
        for (other, values) in &range.when {
            let path = format!("params.{name}.when");
            let Some((param, there)) = params.get(other) else {
                let problem = Problem::new(format!("`{path}` names `{other}`, which is no param")).at(origin);
                problems.push(match closest_suggestion(other, params.keys().map(String::as_str)) {
                    Some(near) => problem.hint(format!("did you mean `{near}`?")),
                    None => problem.hint(format!("declare it: write `{other} = …` below `[params]`")),
                });
                continue;
            };
            // A pinned value may rule out the condition in this run.
            let DeclaredParam::Range(ParamRange { within, .. }) = param else { continue };
            if let Some(odd) = values.iter().find(|value| !within.contains(value)) {
                let message =
                    format!("`{path}` waits for {other} = {odd}, which is not within {{ {within} }}");
                problems.push(Problem::new(message).at(origin).note_at(format!("`params.{other}`"), there));
            }
        }
    }
    // Removes params whose conditions are all resolved; the rest form a cycle.
    let mut left: BTreeSet<&String> = ranges().map(|(name, ..)| name).collect();
    while let Some(free) = left.iter().copied().find(|name| {
        ranges()
            .any(|(other, range, _)| other == *name && !range.when.keys().any(|other| left.contains(other)))
    }) {
        left.remove(free);
    }
    if let Some((name, _, origin)) = ranges().find(|(name, ..)| left.contains(name)) {
        let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
        let message = format!("`params.{name}.when` is circular: {} wait for each other", names.join(", "));
        problems.push(Problem::new(message).at(origin));
    }
    problems
}
