//! TOML documents in which every key and value has its [`Origin`], and the layering of such documents.
//!
//! Knows no keys of a recipe except their old names; [`crate::check()`] checks keys.

mod merge;
mod old_names;

pub use old_names::{OLD_KEYS, OLD_WORDS};
pub(crate) use old_names::{notes, rename};

use crate::problem::Problem;
use crate::source::{ConfigLayer, LARGEST, Origin, Source};
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A TOML table: entries ordered by key.
pub type Table = BTreeMap<String, Entry>;

/// An entry of a TOML table: the value, with the positions of key and value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Position of the key.
    pub key: Origin,
    /// The value of the key, with its position.
    pub node: SpannedValue,
}

/// A TOML value with its position in the source.
#[derive(Clone, Debug)]
pub struct SpannedValue {
    /// Position of the value; for a section, of its header.
    pub origin: Origin,
    /// The TOML value.
    pub value: Value,
}

/// A TOML value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A floating-point number; may be `nan` or `inf`.
    Real(f64),
    /// `true` or `false`.
    Flag(bool),
    /// A date or time, as written; no key of a recipe takes one.
    Date(String),
    /// A list: `[a, b]`.
    List(Vec<SpannedValue>),
    /// An inline table, `{ a = 1 }`: a single value, which replaces all keys of a lower layer.
    Inline(Table),
    /// A section, from `[section]` or a dotted key: its keys are merged with those of a lower layer.
    Section(Table),
}

/// A value of a document with the keys that lead to it.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Keys from the root, each with its position; never empty.
    pub path: Vec<(String, Origin)>,
    /// The value at the end of the path; never a non-empty [`Value::Section`].
    pub node: SpannedValue,
}

/// A TOML document, made of one layer of settings or several merged ones.
#[derive(Clone, Debug)]
pub struct Document {
    /// Source of the highest layer, in which missing keys are reported; `None` without a file.
    pub(crate) source: Option<Arc<Source>>,
    pub(crate) table: Table,
}

impl Document {
    /// Returns a document without keys.
    pub fn empty() -> Self {
        Self { source: None, table: Table::new() }
    }

    /// Parses the TOML of a source. `Err` lists every syntax error; keys and values are not checked yet.
    pub fn parse(source: &Source) -> Result<Self, Vec<Problem>> {
        if source.text.len() > LARGEST {
            return Err(vec![too_large(&source.name, source.text.len())]);
        }
        let source = Arc::new(source.clone());
        let (table, errors) = DeTable::parse_recoverable(&source.text);
        if errors.is_empty() {
            let mut table = table_of(&source, table.get_ref());
            rename(&mut table);
            return Ok(Self { source: Some(source), table });
        }
        let problem = |error: &toml::de::Error| syntax(&source, error);
        let mut problems: Vec<Problem> = errors.iter().map(problem).collect();
        problems.truncate(20);
        Err(crate::problem::sorted(problems))
    }

    /// Parses TOML from the bytes of a file; it is an error if they are too many or not UTF-8.
    pub fn parse_bytes(
        name: &std::path::Path,
        layer: ConfigLayer,
        bytes: Vec<u8>,
    ) -> Result<Self, Vec<Problem>> {
        if bytes.len() > LARGEST {
            return Err(vec![too_large(&name.display().to_string(), bytes.len())]);
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&Source::file(name, layer, text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let line = error.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
                let problem = Problem::new(format!("{} is not UTF-8 text", name.display()))
                    .note(format!("the first byte that cannot be read is byte {} (line {line})", at + 1))
                    .hint("save the file as UTF-8");
                Err(vec![problem])
            }
        }
    }

    /// Returns a document with these settings: values as TOML by dotted path, those of hosts by
    /// `cluster.hosts[INDEX].KEY`. Messages call the document `name`.
    pub fn from_settings(name: &str, settings: &BTreeMap<String, String>) -> Result<Self, Vec<Problem>> {
        let mut text = String::new();
        let mut hosts: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (path, value) in settings {
            let host = path.strip_prefix("cluster.hosts[").and_then(|rest| rest.split_once("]."));
            match host.and_then(|(index, key)| Some((index.parse().ok()?, key))) {
                Some((index, key)) => hosts.entry(index).or_default().push(format!("{key} = {value}")),
                None => text.push_str(&format!("{path} = {value}\n")),
            }
        }
        if !hosts.is_empty() {
            let hosts: Vec<String> =
                hosts.values().map(|keys| format!("{{ {} }}", keys.join(", "))).collect();
            text.push_str(&format!("cluster.hosts = [{}]\n", hosts.join(", ")));
        }
        Self::parse(&Source::new(name, ConfigLayer::Recipe, text))
    }

    /// Returns every value of the document, ordered by path. Lists, inline tables and empty sections count as
    /// values.
    pub fn leaves(&self) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        collect(&self.table, &mut Vec::new(), &mut leaves);
        leaves
    }

    /// Returns a document with these values; of two with the same path the later one wins.
    pub fn from_leaves(leaves: impl IntoIterator<Item = Leaf>) -> Self {
        leaves.into_iter().fold(Self::empty(), |below, leaf| {
            let source = leaf.node.origin.source.clone();
            Self { source, table: single(leaf) }.layer_over(below)
        })
    }

    /// Returns the value at a dotted path; `None` if the document has none.
    pub fn get(&self, path: &str) -> Option<&SpannedValue> {
        self.entry(path).map(|entry| &entry.node)
    }

    /// Returns the entry at a dotted path; `None` if the document has none.
    pub fn entry(&self, path: &str) -> Option<&Entry> {
        let mut table = &self.table;
        let (parents, last) = path.rsplit_once('.').map_or((None, path), |(a, b)| (Some(a), b));
        for segment in parents.into_iter().flat_map(|parents| parents.split('.')) {
            table = table.get(segment)?.node.table()?;
        }
        table.get(last)
    }

    /// Removes a top-level key and returns its entry; `None` if the document does not have it.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Entry> {
        self.table.remove(key)
    }
}

impl SpannedValue {
    /// Returns the table of a section or an inline table; `None` for any other value.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Inline(table) | Value::Section(table) => Some(table),
            Value::Text(_)
            | Value::Whole(_)
            | Value::Real(_)
            | Value::Flag(_)
            | Value::Date(_)
            | Value::List(_) => None,
        }
    }
}

fn collect(table: &Table, path: &mut Vec<(String, Origin)>, leaves: &mut Vec<Leaf>) {
    for (key, entry) in table {
        path.push((key.clone(), entry.key.clone()));
        match &entry.node.value {
            Value::Section(inner) if !inner.is_empty() => collect(inner, path, leaves),
            _ => leaves.push(Leaf { path: path.clone(), node: entry.node.clone() }),
        }
        path.pop();
    }
}

fn single(leaf: Leaf) -> Table {
    let mut path = leaf.path.into_iter().rev();
    let mut table = Table::new();
    let Some((key, origin)) = path.next() else { return table };
    table.insert(key, Entry { key: origin, node: leaf.node });
    for (key, origin) in path {
        let node = SpannedValue { origin: origin.clone(), value: Value::Section(table) };
        table = Table::from([(key, Entry { key: origin, node })]);
    }
    table
}

fn table_of(source: &Arc<Source>, table: &DeTable<'_>) -> Table {
    shifted_table(source, table, 0)
}

fn shifted_table(source: &Arc<Source>, table: &DeTable<'_>, shift: usize) -> Table {
    let entry = |(key, value): (&Spanned<_>, &Spanned<_>)| {
        let origin = Origin::of(source, key.span().start + shift..key.span().end + shift);
        let name: &std::borrow::Cow<'_, str> = key.get_ref();
        (name.clone().into_owned(), Entry { key: origin, node: node_of(source, value, shift) })
    };
    table.iter().map(entry).collect()
}

pub(crate) fn node_of(source: &Arc<Source>, value: &Spanned<DeValue<'_>>, shift: usize) -> SpannedValue {
    let span = value.span().start + shift..value.span().end + shift;
    let is_inline = source.text.as_bytes().get(span.start) == Some(&b'{');
    let inner = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(whole) => Value::Whole(whole),
            // Beyond 64 bits; as a real number it is out of every range, and reported as such.
            Err(_) => Value::Real(number.as_str().parse().unwrap_or(f64::INFINITY)),
        },
        DeValue::Float(number) => Value::Real(number.as_str().replace('_', "").parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(date) => Value::Date(date.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(|item| node_of(source, item, shift)).collect()),
        DeValue::Table(table) if is_inline => Value::Inline(shifted_table(source, table, shift)),
        DeValue::Table(table) => Value::Section(shifted_table(source, table, shift)),
    };
    SpannedValue { origin: Origin::of(source, span), value: inner }
}

pub(crate) fn too_large(name: &str, bytes: usize) -> Problem {
    Problem::new(format!("{name} is too large for a recipe: {bytes} bytes, at most {LARGEST} are read"))
        .hint("put data into files and list them in `data.train`")
}

fn syntax(source: &Arc<Source>, error: &toml::de::Error) -> Problem {
    let span = error.span().unwrap_or(0..0);
    let problem = |message: &str| {
        Problem::new(format!("not valid TOML: {message}")).at(&Origin::of(source, span.clone()))
    };
    let has_no_value = source.text.get(span.clone()).is_none_or(|text| text.trim().is_empty());
    match error.message() {
        message if message.starts_with("string values must be quoted") && has_no_value => {
            problem("a value is missing after `=`")
        }
        message if message.starts_with("string values must be quoted") => {
            problem("a text needs quotes").hint("write for example `kind = \"decoder\"`")
        }
        message if message.starts_with("duplicate key") => {
            problem("set twice").hint("each key, and each `[section]`, can stand in a file once")
        }
        message if message.contains("escape") || message.contains("unicode") => problem(message)
            .hint("in double quotes `\\` begins an escape; write a path in single quotes, or with `/`"),
        message => problem(message),
    }
}
