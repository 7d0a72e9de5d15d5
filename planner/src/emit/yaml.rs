//! Formats values in YAML.

/// Formats a number for YAML 1.1, which needs a point before an exponent.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// Formats text in quotes, as a JSON string, which is also a YAML string.
pub(super) fn text(value: &str) -> String {
    serde_json::to_string(value).expect("it is text")
}
