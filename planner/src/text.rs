//! Text of plans for the terminal: wrapped rows of a key and a value, and amounts.

use dtrain_recipes::number_format::{count, thousands};

/// Largest width of a line in columns: longer ones are hard to read.
pub const WIDTH: usize = 100;

/// Column at which the values of rows start.
const INDENT: usize = 16;

/// Appends a row to `text`: a key and its value on one line, which [`wrapped`] breaks.
pub(crate) fn row(text: &mut String, key: &str, value: &str) {
    text.push_str(format!("{key:<INDENT$}{value}").trim_end());
    text.push('\n');
}

/// Wraps the rows in `text` to at most `width` and at most [`WIDTH`] columns: values break between words and
/// continue below their start.
pub fn wrapped(text: &str, width: usize) -> String {
    wrapped_with_indent(text, width, INDENT)
}

/// Wraps the lines in `text` whose values start at column `indent`; see [`wrapped`].
pub fn wrapped_with_indent(text: &str, width: usize, indent: usize) -> String {
    let width = width.clamp(2 * indent, WIDTH);
    text.lines().map(|line| wrap_row(line, width, indent)).collect()
}

fn wrap_row(row: &str, width: usize, indent: usize) -> String {
    let (mut text, mut line, mut used) = (String::new(), String::new(), 0);
    for (place, word) in row.split(' ').enumerate() {
        let length = word.chars().count();
        if used > indent && used + 1 + length > width {
            text += &format!("{}\n", line.trim_end());
            (line, used) = (" ".repeat(indent), indent);
        } else if place > 0 {
            line.push(' ');
            used += 1;
        }
        line += word;
        used += length;
    }
    text + line.trim_end() + "\n"
}

/// Returns `n` as a float, for [`dtrain_recipes::number_format::count`].
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(crate) fn whole(n: u64) -> f64 {
    n as f64
}

/// Formats a slowdown: as `12 % slower`, or as `2.5 times as long` from twice the time on.
pub(crate) fn slower(share: f64) -> String {
    if share >= 0.995 {
        format!("{:.1} times as long", 1.0 + share)
    } else {
        format!("{:.0} % slower", 100.0 * share)
    }
}

/// Formats an amount of money or of hours: `25.1 M`, `1,234`, `12.34`, `1.230e-2`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is between 1,000 and 100,000"
)]
pub fn amount(value: f64) -> String {
    match value {
        many if many >= 1e5 => count(many),
        many if many >= 1e3 => thousands(many.round() as u64),
        some if (0.1..1e3).contains(&some) => format!("{some:.2}"),
        other => format!("{other:.3e}"),
    }
}
