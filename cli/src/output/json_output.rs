//! JSON output of `--json`: documents and JSON Lines on stdout, each with the name of its format first.

use super::Output;
use crate::command_error::{CommandError, ErrorJson};
use crate::exit_code::ExitReason;
use dtrain_recipes::sanitize::is_harmful;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once this program has written a JSON document (not JSON Lines) to stdout.
static HAS_DOCUMENT: AtomicBool = AtomicBool::new(false);

impl Output {
    /// Writes one JSON document: `{"format": "dtrain.<kind>/2", …}` with the fields of `value`.
    pub(crate) fn json(&self, kind: &str, value: &impl Serialize) -> Result<(), CommandError> {
        HAS_DOCUMENT.store(true, Ordering::Relaxed);
        self.line(&document(kind, value, true)?)
    }

    /// Writes an error as JSON, as the last line of JSON Lines. Does nothing if the command has written its
    /// document, which reports the failure: readers get exactly one document.
    pub(crate) fn json_error(&self, error: &ErrorJson, is_lines: bool) {
        if !self.json || (!is_lines && HAS_DOCUMENT.load(Ordering::Relaxed)) {
            return;
        }
        // A reader that closed the pipe gets no error.
        drop(document("error", error, !is_lines).and_then(|text| self.line(&text)));
    }

    /// Writes one JSON document on one line.
    pub(crate) fn json_line(&self, kind: &str, value: &impl Serialize) -> Result<(), CommandError> {
        self.line(&document(kind, value, false)?)
    }
}

/// Version of all JSON documents; it grows when a field changes its meaning or is removed.
pub(crate) const VERSION: u32 = 2;

pub(crate) fn document(kind: &str, value: &impl Serialize, is_pretty: bool) -> Result<String, CommandError> {
    #[derive(Serialize)]
    struct JsonDocument<'a, T: Serialize> {
        format: String,
        #[serde(flatten)]
        value: &'a T,
    }
    let document = JsonDocument { format: format!("dtrain.{kind}/{VERSION}"), value };
    let text =
        if is_pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
    text.map(|text| escaped(&text)).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, "cannot write JSON").cause(error.to_string())
    })
}

/// Escapes control and invisible characters in JSON, so that it is safe on a terminal; the value stays the
/// same.
fn escaped(json: &str) -> String {
    if !json.contains(is_harmful) {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_harmful(letter) {
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(out, "\\u{unit:04x}"));
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_its_format_and_version_first() {
        #[derive(Serialize)]
        struct ExampleStep {
            step: u64,
        }
        let text = document("progress", &ExampleStep { step: 3 }, false).expect("plain data");
        assert_eq!(text, r#"{"format":"dtrain.progress/2","step":3}"#);
        assert_eq!(escaped("{\"a\":\"\u{9b}2J\u{7f}ä\"}"), r#"{"a":"\u009b2J\u007fä"}"#);
        assert_eq!(escaped("\"\u{202e}\u{e0041}\""), r#""\u202e\udb40\udc41""#);
    }
}
