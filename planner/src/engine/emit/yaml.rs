//! Values in YAML.

/// A number that YAML 1.1 reads as one: with a point before its exponent.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// Text in quotes. Text in JSON is text in YAML.
pub(super) fn text(value: &str) -> String {
    serde_json::to_string(value).expect("it is text")
}
