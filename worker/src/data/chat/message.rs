//! Values of JSON that messages are made of.

use super::ChatError;
use super::python::pairs;
use minijinja::value::{Value, ValueKind};

/// Names of the fields in which records have the reasoning before an answer; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Returns the type of a value, for messages.
pub(super) fn kind(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => "missing",
        ValueKind::None => "null",
        ValueKind::Bool => "true or false",
        ValueKind::Number => "a number",
        ValueKind::String => "a text",
        ValueKind::Seq => "a list",
        ValueKind::Map => "an object",
        _ => "another value",
    }
    .to_owned()
}

/// Returns the error for a field that is not as it should be.
pub(super) fn wrong(
    field: impl Into<String>,
    wanted: impl Into<String>,
    found: impl Into<String>,
) -> ChatError {
    ChatError::Record { field: field.into(), wanted: wanted.into(), found: found.into() }
}

/// Returns a field of an object; `None` if it is missing or null.
pub(super) fn given(object: &Value, field: &str) -> Option<Value> {
    object.get_attr(field).ok().filter(|value| !value.is_undefined() && !value.is_none())
}

/// Returns the text in a field of an object that stands at `place`.
pub(super) fn text(object: &Value, place: &str, field: &str) -> Result<String, ChatError> {
    let value = object.get_attr(field).unwrap_or_default();
    let place = if place.is_empty() { field.to_owned() } else { format!("{place}.{field}") };
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(place, "a text", kind(&value)))
}

/// Returns the text in a field that may be missing, null, or empty; then `None`.
pub(super) fn optional_text(object: &Value, field: &str) -> Result<Option<String>, ChatError> {
    match given(object, field) {
        None => Ok(None),
        Some(_) => text(object, "", field).map(|text| Some(text).filter(|text| !text.is_empty())),
    }
}

/// Returns the elements of a list that stands at `place`.
pub(super) fn list(value: &Value, place: &str, wanted: &str) -> Result<Vec<Value>, ChatError> {
    match (value.kind(), value.try_iter()) {
        (ValueKind::Seq, Ok(items)) => Ok(items.collect()),
        _ => Err(wrong(place, wanted, kind(value))),
    }
}

/// Creates a message.
pub(super) fn message(role: &str, content: impl Into<Value>) -> Value {
    [("role", Value::from(role)), ("content", content.into())].into_iter().collect()
}

/// Returns a message with another content; its other fields stay.
pub(super) fn with_content(from: &Value, content: impl Into<Value>) -> Value {
    let (content, mut is_set) = (content.into(), false);
    let mut fields = pairs(from);
    for (key, value) in &mut fields {
        if key.as_str() == Some("content") {
            (*value, is_set) = (content.clone(), true);
        }
    }
    if !is_set {
        fields.push((Value::from("content"), content));
    }
    fields.into_iter().collect()
}

/// Returns a message with the fields that transformers gives to templates: none that is null, and the
/// reasoning under the names that templates know.
pub(super) fn normalized(message: &Value) -> Value {
    let mut fields: Vec<(Value, Value)> =
        pairs(message).into_iter().filter(|(_, value)| !value.is_none()).collect();
    let has = |fields: &[(Value, Value)], name| fields.iter().any(|(key, _)| key.as_str() == Some(name));
    if let Some(reasoning) = REASONING.iter().find_map(|name| given(message, name)) {
        if !has(&fields, "thinking") {
            fields.insert(0, (Value::from("thinking"), reasoning.clone()));
        }
        if !has(&fields, "reasoning_content") {
            fields.push((Value::from("reasoning_content"), reasoning));
        }
    }
    fields.into_iter().collect()
}

/// Returns a message whose content is one text: the texts of a list of parts, a line break between them.
pub(super) fn joined(message: &Value) -> Value {
    let content = message.get_attr("content").unwrap_or_default();
    if content.kind() != ValueKind::Seq {
        return message.clone();
    }
    let parts = content.try_iter().into_iter().flatten();
    let texts: Vec<String> = parts.filter_map(|part| text(&part, "", "text").ok()).collect();
    with_content(message, texts.join("\n"))
}

/// Returns `true` if a text or a key in `value` has the character `c`.
pub(super) fn has(value: &Value, c: char) -> bool {
    match value.kind() {
        ValueKind::String => value.as_str().is_some_and(|text| text.contains(c)),
        ValueKind::Seq => value.try_iter().into_iter().flatten().any(|item| has(&item, c)),
        ValueKind::Map => pairs(value).into_iter().any(|(key, item)| has(&key, c) || has(&item, c)),
        _ => false,
    }
}
