//! Checks each key and value of a document against the table of keys.

use super::parse_value::{kind_of, params, parse};
use super::parsed::ParsedValue;
use super::placeholders;
use super::suggestion::unknown_key;
use super::values::ParsedValues;
use crate::document::{Document, Entry, SpannedValue, Table, Value};
use crate::hub_model::HubModel;
use crate::keys::{KEYS, Key, Kind, Requirement, ValueType, find, is_section};
use crate::problem::Problem;
use crate::source::{ConfigLayer, Origin};
use crate::url::Url;

/// Expands short forms in a document: `optimizer = "sgd"`, `hosts = ["a", "b"]`, `workdir = true`.
pub(super) fn spell_out(document: &mut Document) {
    let inside = |table: &mut Table, section: &str, key: &str, change: &dyn Fn(&mut SpannedValue)| {
        if let Some(Entry {
            node: SpannedValue { value: Value::Section(inner) | Value::Inline(inner), .. },
            ..
        }) = table.get_mut(section)
            && let Some(entry) = inner.get_mut(key)
        {
            change(&mut entry.node);
        }
    };
    inside(&mut document.table, "train", "optimizer", &|node| wrap(node, "kind"));
    inside(&mut document.table, "cluster", "hosts", &|node| {
        if let Value::List(items) = &mut node.value {
            items.iter_mut().for_each(|item| wrap(item, "address"));
        }
    });
    inside(&mut document.table, "cluster", "workdir", &|node| wrap_flag(node, "send"));
}

/// Turns a text value into a table that has the text under `key`.
fn wrap(node: &mut SpannedValue, key: &str) {
    if matches!(node.value, Value::Text(_)) {
        node.value = table_of(node, key);
    }
}

/// Turns `true` or `false` into a table that has it under `key`.
fn wrap_flag(node: &mut SpannedValue, key: &str) {
    if matches!(node.value, Value::Flag(_)) {
        node.value = table_of(node, key);
    }
}

fn table_of(node: &SpannedValue, key: &str) -> Value {
    let inner = Entry { key: node.origin.clone(), node: node.clone() };
    Value::Inline(Table::from([(key.to_owned(), inner)]))
}

struct KeyWalk {
    values: ParsedValues,
    problems: Vec<Problem>,
    /// Dotted paths in the placeholders of a command.
    named: Vec<String>,
}

/// Returns the valid values of a document, and the problems of the invalid ones.
pub(super) fn walk(document: &Document) -> (ParsedValues, Vec<Problem>) {
    let kind = kind(document);
    let named = if kind == Some(Kind::Command) { placeholders::named(document) } else { Vec::new() };
    let mut walk = KeyWalk { values: ParsedValues::of_kind(kind), problems: Vec::new(), named };
    walk.section("", &document.table);
    (walk.values, walk.problems)
}

fn kind(document: &Document) -> Option<Kind> {
    let Value::Text(word) = &document.get("model.kind")?.value else { return None };
    Kind::from_name(word)
}

impl KeyWalk {
    fn section(&mut self, parent: &str, table: &Table) {
        for (name, entry) in table {
            let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
            if path == "cluster.hosts" {
                continue;
            }
            if find(&path, None).is_some() {
                self.value(&path, entry);
            } else if is_section(&path) {
                match entry.node.table() {
                    Some(inner) => self.section(&path, inner),
                    None => self.wrong(&path, not_a_section(&path, &entry.node)),
                }
            } else {
                let problem = unknown_key(&path, entry, self.values.kind);
                let meant = problem.meant.clone().unwrap_or_default();
                self.wrong(&meant, problem);
            }
        }
    }

    fn value(&mut self, path: &str, entry: &Entry) {
        if path == "extends" {
            let message = "`extends` can only stand in a recipe's own file";
            self.problems.push(Problem::new(message).at(&entry.key));
            return;
        }
        let Some(key) = find(path, self.values.kind).or_else(|| self.passed_on(path)) else {
            self.problems.push(misplaced(path, entry, self.values.kind));
            return;
        };
        // A key whose type depends on the kind of model can be checked only if the kind is known.
        let is_ambiguous =
            self.values.kind.is_none() && KEYS.iter().filter(|key| key.path == path).count() > 1;
        if is_ambiguous {
            return;
        }
        if key.shape == ValueType::Params {
            match params(path, &entry.node) {
                Ok(params) => {
                    self.values.insert(key.path, ParsedValue::Params(params), entry.node.origin.clone());
                }
                Err(problems) => problems.into_iter().for_each(|problem| self.wrong(path, problem)),
            }
            return;
        }
        match parse(path, key.shape, &entry.node) {
            Ok(ParsedValue::Files(files)) => {
                let is_on_hub = |file: &str| key.path == "train.from" && HubModel::is_named(file);
                let files = files.into_iter().map(|(file, origin)| {
                    let file = if is_on_hub(&file) { file } else { rebased(file, &origin) };
                    (file, origin)
                });
                let files = files.collect();
                self.values.insert(key.path, ParsedValue::Files(files), entry.node.origin.clone());
            }
            Ok(value) => self.values.insert(key.path, value, entry.node.origin.clone()),
            Err(problem) => self.wrong(path, problem),
        }
    }

    /// Returns the key at `path` if a placeholder passes its value to a command, although the key is one of
    /// dtrain's own models.
    fn passed_on(&self, path: &str) -> Option<&'static Key> {
        let is_passed = path.starts_with("train.") || path.starts_with("layout.");
        find(path, None).filter(|_| is_passed && placeholders::reaches(&self.named, path))
    }

    fn wrong(&mut self, path: &str, problem: Problem) {
        self.values.wrong.push(path.to_owned());
        self.problems.push(problem);
    }
}

/// Returns the path of a file, as named by a recipe in another folder, relative to the folder of the recipe
/// being checked.
fn rebased(file: String, origin: &Origin) -> String {
    match origin.source() {
        Some(source) if !source.base.as_os_str().is_empty() && !Url::is_url(&file) => {
            source.base.join(file).display().to_string()
        }
        _ => file,
    }
}

fn not_a_section(path: &str, node: &SpannedValue) -> Problem {
    let problem = Problem::new(format!("`{path}` is a section, found {}", kind_of(node))).at(&node.origin);
    match path {
        "objective.stop" => {
            problem.hint("write for example `stop = { tokens = \"20M\", time = \"30 min\" }`")
        }
        "train.optimizer" => {
            problem.hint("write \"adamw\", or a table such as `{ kind = \"adamw\", weight_decay = 0.1 }`")
        }
        "cluster.workdir" => {
            problem.hint("write `true`, or a table such as `{ exclude = [\"*.ckpt\"], limit = \"1 GiB\" }`")
        }
        "validation" => problem.hint(
            "write `valid = \"5%\"` below `[data]` for what is validated on; `[validation]` says how often: `every = \"100 steps\"`",
        ),
        "cluster.notice" => problem.hint(
            "write a table such as `{ command = [\"sh\", \"-c\", \"test -e /run/notice\"] }`",
        ),
        // Other sections have no short form.
        path => problem.hint(format!("write `[{path}]` on a line of its own and its keys below it")),
    }
}

fn misplaced(path: &str, entry: &Entry, kind: Option<Kind>) -> Problem {
    let found = kind.map_or("this", Kind::name);
    let problem = Problem::new(format!("`{path}` does not apply to a model of kind \"{found}\""));
    let problem = match entry.key.layer() {
        ConfigLayer::Settings => problem.note("it stands in your settings, which hold for every recipe"),
        ConfigLayer::Extended => problem.note("it stands in a recipe that this one extends"),
        ConfigLayer::Cluster => problem.note("it stands in the cluster file"),
        ConfigLayer::Default | ConfigLayer::Recipe | ConfigLayer::Environment | ConfigLayer::Assignment => {
            problem
        }
    };
    if kind == Some(Kind::Command) {
        return of_no_command(path, problem).at(&entry.key);
    }
    let kinds: Vec<&str> =
        KEYS.iter().filter(|key| key.path == path).flat_map(|key| key.kinds).map(|k| k.name()).collect();
    problem.at(&entry.key).note(format!("it is for {}", kinds.join(" and "))).hint("remove the key")
}

/// Adds a note that a command reads only its arguments and environment, and a hint on passing the key at
/// `path`.
fn of_no_command(path: &str, problem: Problem) -> Problem {
    let reads = |key: &&Key| {
        let section = key.path.split('.').next();
        key.kinds.contains(&Kind::Command) && matches!(section, Some("model" | "params" | "objective"))
    };
    let mut read: Vec<String> = KEYS
        .iter()
        .filter(reads)
        .map(|key| match key.path {
            "params" => "`[params]`".to_owned(),
            // All other keys are written in full.
            path => format!("`{path}`"),
        })
        .collect();
    read.push("`[cluster]`".to_owned());
    let hint = match path.split('.').next().unwrap_or(path) {
        "train" => {
            let named = path.strip_suffix(".kind").unwrap_or(path);
            let last = named.rsplit('.').next().unwrap_or(named).replace('_', "-");
            format!(
                "pass it as an argument, for example argv = [\"python3\", \"train.py\", \"--{last}={{{path}}}\"]"
            )
        }
        "objective" => "the program ends by itself; pass a limit as an argument in `model.argv`".to_owned(),
        "layout" => format!(
            "pass it as an argument such as `{{{path}}}`, or remove it; `cluster.ranks` sets how many copies of the \
             program start"
        ),
        "checkpoint" => {
            "remove it; the program saves its own checkpoints, in the folder DTRAIN_RUN_DIR".to_owned()
        }
        "data" => "remove it; the program reads its own data".to_owned(),
        // No program can receive the keys of other sections.
        _ => "remove the key".to_owned(),
    };
    problem.note(format!("a command reads {}", read.join(", "))).hint(hint)
}

/// Returns a problem for each required key that is absent. An invalid value already has a problem of its own.
pub(super) fn missing(document: &Document, values: &ParsedValues, problems: &[Problem]) -> Vec<Problem> {
    let mut missing = Vec::new();
    for key in
        KEYS.iter().filter(|key| key.need == Requirement::Required && !key.path.starts_with("cluster.hosts."))
    {
        let applies = key.path == "model.kind" || values.kind.is_some_and(|kind| key.kinds.contains(&kind));
        let is_typo = || {
            problems
                .iter()
                .any(|problem| problem.meant.as_deref().is_some_and(|meant| covers(meant, key.path)))
        };
        if applies
            && document.get(key.path).is_none()
            && !is_typo()
            && !under_wrong_section(document, key.path)
        {
            let problem = Problem::new(format!("missing `{}`: {}", key.path, lower(key.doc)));
            let problem = problem.hint(hint(key));
            missing.push(match section_origin(document, key.path) {
                Some(origin) => problem.at(&origin),
                None => problem,
            });
        }
    }
    missing
}

/// Returns `true` if `path` is `key` itself or a section that contains it.
fn covers(path: &str, key: &str) -> bool {
    key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns `true` if the section of the key at `path` exists but is not a table.
fn under_wrong_section(document: &Document, path: &str) -> bool {
    let section = path.split('.').next().unwrap_or(path);
    document.get(section).is_some_and(|node| node.table().is_none())
}

/// Returns the position of the section header above the key at `path`; without such a section, the start of
/// the file.
pub(super) fn section_origin(document: &Document, path: &str) -> Option<Origin> {
    let section = path.rsplit_once('.').map(|(parent, _)| parent)?;
    let header = document.get(section).filter(|node| node.table().is_some()).map(|node| node.origin.clone());
    header.or_else(|| document.source.as_ref().map(|source| Origin::of(source, 0..0)))
}

fn lower(doc: &str) -> String {
    let mut chars = doc.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

fn hint(key: &Key) -> String {
    let (section, name) = key.path.split_once('.').unwrap_or(("", key.path));
    format!("write for example `{name} = {}` below `[{section}]`", example(key))
}

/// Returns an example value for a required key, as TOML.
fn example(key: &Key) -> &'static str {
    match key.path {
        "model.kind" => "\"decoder\"",
        "model.layers" => "12",
        "model.hidden" if matches!(key.shape, ValueType::Wholes(..)) => "[64, 32]",
        "model.hidden" => "256",
        "model.heads" => "8",
        "model.context" => "256",
        "model.stages" => "[16, 32]",
        "model.classes" => "10",
        "model.channels" => "1",
        "model.height" | "model.width" => "28",
        "model.inputs" => "8",
        "model.network" => "\"mine\"",
        "model.argv" => "[\"python3\", \"train.py\"]",
        "data.train" => "\"data/*.txt\"",
        // A test checks that every required key is listed above.
        _ => "…",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_key_has_an_example_that_it_takes() {
        let needed = KEYS.iter().filter(|key| key.need == Requirement::Required);
        for key in needed.filter(|key| !key.path.starts_with("cluster.hosts.")) {
            let value = example(key);
            let document = Document::from_override(ConfigLayer::Assignment, "--set", key.path, value);
            let document = document.expect("a path of a key");
            let node = document.get(key.path).expect("it was just set");
            assert!(value != "…" && parse(key.path, key.shape, node).is_ok(), "{} = {value}", key.path);
        }
    }
}
