//! Truncation of texts, with an ellipsis, to a width in characters.

use crate::output::PageStyle;

/// Returns the number of characters in a text; each is assumed to be one column wide.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

/// Replaces line ends and tabs by blanks, so that a text fits on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\t'], " ")
}

/// Joins a text into one line of at most `most` characters; a longer one ends with an ellipsis.
pub(crate) fn truncate(text: &str, most: usize, style: PageStyle) -> String {
    let text = one_line(text);
    if width(&text) <= most {
        return text;
    }
    let mark = if style.is_ascii { '~' } else { '…' };
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    if most > 0 {
        short.push(mark);
    }
    short
}
