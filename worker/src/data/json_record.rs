//! Extracts one text field from a JSON record.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Number of fields that a message lists if the requested one is missing.
const NAMED_FIELDS: usize = 12;

/// The reason why a text cannot be taken from a record.
#[derive(Debug)]
pub(super) enum RecordError {
    Syntax(serde_json::Error),
    /// The record is valid JSON, but the field is missing or not a text.
    Content(String),
}

/// Returns the text in the field `field` of a record. Numbers that only Python writes, such as `NaN`, are
/// overwritten.
pub(super) fn text_in(bytes: &mut [u8], field: &str) -> Result<String, RecordError> {
    let record = match read(bytes, field) {
        Err(_) if replace_numbers_of_python(bytes) => read(bytes, field),
        record => record,
    };
    let (found, fields) = match record.map_err(RecordError::Syntax)? {
        PickedValue::Object { found, fields } => (found, fields),
        other => {
            return Err(RecordError::Content(format!(
                "expected a JSON object with the field `{field}`, found {}; `data.format = \"text\"` reads a file as it is",
                other.kind()
            )));
        }
    };
    match found.map(|found| *found) {
        Some(PickedValue::Text(text)) => Ok(text),
        Some(other) => Err(RecordError::Content(format!(
            "the field `{field}` is {}, expected a text; `data.field` names the field",
            other.kind()
        ))),
        None => Err(RecordError::Content(format!(
            "there is no field `{field}`; the fields are: {}; set `data.field`",
            fields.join(", ")
        ))),
    }
}

fn read(bytes: &[u8], field: &str) -> Result<PickedValue, serde_json::Error> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let value = FieldPicker { field: Some(field) }.deserialize(&mut from)?;
    from.end().map(|()| value)
}

/// Overwrites `NaN`, `Infinity` and `-Infinity` outside of strings with zeros, padded with blanks;
/// returns `false` if there are none.
pub(super) fn replace_numbers_of_python(bytes: &mut [u8]) -> bool {
    let words = [&b"NaN"[..], b"Infinity", b"-Infinity"];
    let (mut at, mut is_text, mut has_any) = (0, false, false);
    while at < bytes.len() {
        match bytes[at] {
            // An escaped quote does not end a string.
            b'\\' if is_text => at += 1,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            _ => {
                if let Some(word) = words.into_iter().find(|word| bytes[at..].starts_with(word)) {
                    bytes[at..at + word.len()].fill(b' ');
                    bytes[at] = b'0';
                    has_any = true;
                }
            }
        }
        at += 1;
    }
    has_any
}

/// A parsed JSON value, of which only the requested field is kept.
enum PickedValue {
    Text(String),
    Object {
        /// Value of the requested field; `None` if the object lacks it.
        found: Option<Box<Self>>,
        /// Names of the first few other fields.
        fields: Vec<String>,
    },
    List,
    Number,
    Flag,
    Null,
}

impl PickedValue {
    /// Returns the type of the value, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Object { .. } => "an object",
            Self::List => "a list",
            Self::Number => "a number",
            Self::Flag => "true or false",
            Self::Null => "null",
        }
    }
}

/// A deserializer of a JSON value that keeps only the field `field` of an object.
#[derive(Clone, Copy)]
struct FieldPicker<'f> {
    field: Option<&'f str>,
}

impl<'de> DeserializeSeed<'de> for FieldPicker<'_> {
    type Value = PickedValue;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<PickedValue, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldPicker<'_> {
    type Value = PickedValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PickedValue, A::Error> {
        let (mut found, mut fields) = (None, Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            if self.field == Some(&*name) {
                found = Some(Box::new(map.next_value_seed(FieldPicker { field: None })?));
                continue;
            }
            map.next_value::<IgnoredAny>()?;
            if fields.len() < NAMED_FIELDS {
                fields.push(name);
            }
        }
        Ok(PickedValue::Object { found, fields })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PickedValue, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(PickedValue::List)
    }

    fn visit_str<E>(self, text: &str) -> Result<PickedValue, E> {
        Ok(PickedValue::Text(text.to_owned()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<PickedValue, E> {
        Ok(PickedValue::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<PickedValue, E> {
        Ok(PickedValue::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<PickedValue, E> {
        Ok(PickedValue::Number)
    }

    fn visit_bool<E>(self, _: bool) -> Result<PickedValue, E> {
        Ok(PickedValue::Flag)
    }

    fn visit_unit<E>(self) -> Result<PickedValue, E> {
        Ok(PickedValue::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_are_read_and_texts_stay_as_they_are() {
        let text = |record: &str| text_in(&mut record.as_bytes().to_vec(), "text");
        let record = r#"{"a": NaN, "text": "NaN \" Infinity", "b": [-Infinity, Infinity], "c": 1.5}"#;
        assert_eq!(text(record).expect("it has a text"), "NaN \" Infinity");
        let Err(RecordError::Content(detail)) = text(r#"{"text": NaN}"#) else { panic!("no text") };
        assert!(detail.contains("`text` is a number"), "{detail}");
        let Err(RecordError::Syntax(error)) = text(r#"{"a": NaN, "text": nope}"#) else { panic!("no JSON") };
        assert_eq!((error.line(), error.column()), (1, 21), "replacing moved nothing");
    }
}
