//! Parses quoted texts: names, hosts, environment variables, free text.

use super::wrong;
use crate::check::parsed::ParsedValue;
use crate::document::{SpannedValue, Value};
use crate::name::is_plain_name;
use crate::notice::NoticeUrl;
use crate::problem::Problem;
use crate::source::ConfigLayer;
use crate::subnet::Subnet;
use crate::url::UrlError;

pub(super) fn text(path: &str, node: &SpannedValue) -> Result<String, Problem> {
    let is_bare = matches!(node.origin.layer(), ConfigLayer::Environment | ConfigLayer::Assignment);
    let found = match &node.value {
        Value::Text(text) => text.clone(),
        // A bare `--set` value needs no TOML quotes: for a text key, a number or a date is text too.
        Value::Whole(_) | Value::Real(_) | Value::Flag(_) | Value::Date(_) if is_bare => {
            let source = node.origin.source().map_or("", |source| &source.text);
            source.get(node.origin.span()).unwrap_or("").to_owned()
        }
        _ => return Err(wrong(path, "a text in quotes", node)),
    };
    if found.is_empty() {
        return Err(Problem::new(format!("`{path}` is empty")).at(&node.origin));
    }
    if found.contains('\0') {
        return Err(Problem::new(format!("`{path}` contains a NUL character")).at(&node.origin));
    }
    Ok(found)
}

pub(super) fn name(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = text(path, node)?;
    if is_plain_name(&found) {
        return Ok(ParsedValue::Text(found));
    }
    Err(wrong(path, "a name", node)
        .hint("use at most 128 letters, digits, `-`, `_` and `.`, beginning with a letter, a digit or `_`"))
}

/// Returns `true` if `text` is a valid name for an environment variable.
pub(super) fn variable_name(text: &str) -> bool {
    let is_right = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=256).contains(&text.len())
        && text.chars().all(is_right)
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Parses the value of a key as the name of an environment variable.
pub(super) fn variable(path: &str, node: &SpannedValue) -> Result<String, Problem> {
    let found = text(path, node)?;
    if variable_name(&found) {
        return Ok(found);
    }
    Err(wrong(path, "the name of a variable", node).hint(
        "write its name only, such as [\"HF_HOME\"]: its value is that of the shell which submits the job",
    ))
}

pub(super) fn network(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = text(path, node)?;
    match found.parse::<Subnet>() {
        Ok(network) => Ok(ParsedValue::Text(network.to_string())),
        Err(_) => Err(wrong(path, "a network such as \"10.0.0.0/16\"", node)),
    }
}

pub(super) fn host(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = text(path, node)?;
    if found.starts_with('-') {
        return Err(wrong(path, "a name that does not begin with `-`", node)
            .note("it would be read as an option of the program that connects"));
    }
    // The user of a directory service: `CORP\me`.
    let has_user = path.ends_with(".user") || path.ends_with(".via");
    let is_right = |c: char| {
        c.is_ascii_alphanumeric()
            || "-_.:@[],%".contains(c)
            || has_user && (c.is_alphanumeric() || "+\\".contains(c))
    };
    match found.chars().find(|c| !is_right(*c)) {
        None if found.len() <= 1024 => Ok(ParsedValue::Text(found)),
        None => Err(wrong(path, "at most 1024 characters long", node)),
        Some(odd) => {
            Err(wrong(path, "a name or an address", node).note(format!("{odd:?} is not allowed in it")))
        }
    }
}

/// Parses the value of a key as a URL that begins with `http://`.
pub(super) fn http_url(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = text(path, node)?;
    match NoticeUrl::parse(&found) {
        Ok(_) => Ok(ParsedValue::Text(found)),
        Err(UrlError { message, hint }) => {
            Err(Problem::new(format!("`{path}`: {message}")).at(&node.origin).hint(hint))
        }
    }
}
