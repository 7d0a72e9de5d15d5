//! Methods of Python's texts, lists and maps that templates call.

use super::python::is_blank;
use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Calls a method of Python: those that `minijinja_contrib` lacks, or has in another form, otherwise its.
pub(super) fn call(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => match of_text(text, name, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, name, args),
        },
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Returns the result of a method of a text; `None` if it is not one of those here.
fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let list = |parts: Vec<&str>| parts.into_iter().map(Value::from).collect::<Value>();
    Ok(Some(match (name, args) {
        ("strip", []) => Value::from(text.trim_matches(is_blank)),
        ("lstrip", []) => Value::from(text.trim_start_matches(is_blank)),
        ("rstrip", []) => Value::from(text.trim_end_matches(is_blank)),
        ("removeprefix", _) => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        ("removesuffix", _) => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        ("partition", _) => {
            let (by,): (&str,) = from_args(args)?;
            text.split_once(by).map_or_else(|| list(vec![text, "", ""]), |(a, b)| list(vec![a, by, b]))
        }
        ("rpartition", _) => {
            let (by,): (&str,) = from_args(args)?;
            text.rsplit_once(by).map_or_else(|| list(vec!["", "", text]), |(a, b)| list(vec![a, by, b]))
        }
        ("rsplit", [_, ..]) => {
            let (by, most): (&str, Option<usize>) = from_args(args)?;
            let mut parts: Vec<&str> = text.rsplitn(most.map_or(usize::MAX, |most| most + 1), by).collect();
            parts.reverse();
            list(parts)
        }
        ("index", _) => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("`index`: there is no `{part}` in the text"))
            })?;
            Value::from(text[..at].chars().count())
        }
        _ => return Ok(None),
    }))
}
