//! How Python writes values: as text, and as JSON.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Returns `true` for the characters that `str.strip` of Python removes.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Returns a value as `str(value)` of Python writes it; an undefined value is an empty text.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => {
            let mut text = String::new();
            write_repr(&mut text, value);
            text
        }
    }
}

/// Appends a value as `repr(value)` of Python writes it.
fn write_repr(to: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::None => to.push_str("None"),
        ValueKind::Bool => to.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => to.push_str(&number(value)),
        ValueKind::String => write_quoted(to, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            to.push('[');
            for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                write_repr(to, &item);
            }
            to.push(']');
        }
        ValueKind::Map => {
            to.push('{');
            for (at, (key, item)) in pairs(value).into_iter().enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                write_repr(to, &key);
                to.push_str(": ");
                write_repr(to, &item);
            }
            to.push('}');
        }
        _ => to.push_str(&value.to_string()),
    }
}

fn write_quoted(to: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(quote);
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            c if c == quote => to.extend(['\\', c]),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => to.push_str(&escaped(c)),
            c => to.push(c),
        }
    }
    to.push(quote);
}

fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Returns the entries of a map, in order; none for another value.
pub(super) fn pairs(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.filter_map(|key| map.get_item(&key).ok().map(|item| (key, item))).collect()
}

/// Returns a number as Python writes it: the shortest decimal that is read as the same number.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format `e` writes an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of an f64 is a small integer");
    if (-4..16).contains(&exponent) {
        let decimal = number.to_string();
        return if decimal.contains('.') { decimal } else { decimal + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// The filter `tojson` of transformers: `json.dumps` with its arguments, and without escapes by default.
pub(super) fn to_json(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    type Arguments = (Option<bool>, Option<Value>, Option<Value>, Option<bool>, Kwargs);
    let (ensure_ascii, indent, separators, sort_keys, more): Arguments = from_args(&arguments)?;
    let indent = indent.or(more.get::<Option<Value>>("indent")?).filter(|indent| !indent.is_none());
    let separators = separators.or(more.get::<Option<Value>>("separators")?).filter(|pair| !pair.is_none());
    let indent = match indent {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(indent)?.clamp(0, 64)).unwrap_or(0)),
        }),
    };
    let (between, after_key) = match separators {
        Some(pair) => (text(&pair.get_item(&Value::from(0))?), text(&pair.get_item(&Value::from(1))?)),
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let writer = JsonWriter {
        is_ascii: ensure_ascii.or(more.get("ensure_ascii")?).unwrap_or(false),
        is_sorted: sort_keys.or(more.get("sort_keys")?).unwrap_or(false),
        indent,
        between,
        after_key,
    };
    more.assert_all_used()?;
    let mut json = String::new();
    writer.write(&mut json, value, 0)?;
    Ok(json)
}

/// The arguments of `json.dumps`.
struct JsonWriter {
    is_ascii: bool,
    is_sorted: bool,
    /// Blanks for each level; `None` puts all on one line.
    indent: Option<String>,
    between: String,
    after_key: String,
}

impl JsonWriter {
    fn write(&self, to: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => to.push_str("null"),
            ValueKind::Bool => to.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => to.push_str(&json_number(value)),
            ValueKind::String => self.write_text(to, value.as_str().unwrap_or_default()),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(to, ['[', ']'], &items, depth, |to, item| self.write(to, item, depth + 1))?;
            }
            ValueKind::Map => {
                let entries = pairs(value).into_iter();
                let mut entries: Vec<(String, Value)> =
                    entries.map(|(key, item)| Ok((json_key(&key)?, item))).collect::<Result<_, Error>>()?;
                if self.is_sorted {
                    entries.sort_by(|(left, _), (right, _)| left.cmp(right));
                }
                self.write_items(to, ['{', '}'], &entries, depth, |to, (key, item)| {
                    self.write_text(to, key);
                    to.push_str(&self.after_key);
                    self.write(to, item, depth + 1)
                })?;
            }
            kind => return Err(not_json(kind)),
        }
        Ok(())
    }

    fn write_items<T>(
        &self,
        to: &mut String,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        to.push(open);
        for (at, item) in items.iter().enumerate() {
            to.push_str(if at > 0 { &self.between } else { "" });
            self.new_line(to, depth + 1);
            write(to, item)?;
        }
        if !items.is_empty() {
            self.new_line(to, depth);
        }
        to.push(close);
        Ok(())
    }

    fn new_line(&self, to: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            to.push('\n');
            to.push_str(&indent.repeat(depth));
        }
    }

    fn write_text(&self, to: &mut String, text: &str) {
        to.push('"');
        for c in text.chars() {
            match c {
                '"' => to.push_str("\\\""),
                '\\' => to.push_str("\\\\"),
                '\n' => to.push_str("\\n"),
                '\r' => to.push_str("\\r"),
                '\t' => to.push_str("\\t"),
                '\u{8}' => to.push_str("\\b"),
                '\u{c}' => to.push_str("\\f"),
                c if c < ' ' || (self.is_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(to, "\\u{unit:04x}").expect("a `String` takes all text");
                    }
                }
                c => to.push(c),
            }
        }
        to.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match &*number(value) {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        number => number.to_owned(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.to_string(),
        ValueKind::Number => json_number(key),
        kind => return Err(not_json(kind)),
    })
}

fn not_json(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("`tojson` of a value that is {kind}"))
}
