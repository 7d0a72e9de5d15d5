//! Width of the terminal in columns, and wrapping of long lines to it.

use super::Output;
use std::io;

/// Page width in columns if the terminal's width is unknown.
pub(super) const WIDTH: usize = 120;

impl Output {
    /// Returns the width of the terminal on stderr in columns; 80 if unknown.
    pub(crate) fn terminal_width(&self) -> usize {
        terminal_width(&io::stderr()).unwrap_or(80)
    }
}

/// Returns the width of a terminal in columns; `None` if unknown.
pub(super) fn terminal_width(terminal: &impl std::os::fd::AsFd) -> Option<usize> {
    rustix::termios::tcgetwinsize(terminal)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
}

/// Wraps long lines between words, and indents continuations below the value of a `  name   value` line.
/// Lines with colors stay as they are.
pub(super) fn wrap_text(text: &str, width: usize) -> String {
    text.lines().map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width || line.contains('\u{1b}') {
        return line.to_owned();
    }
    let lead = line.len() - line.trim_start().len();
    let gap = line[lead..].find("  ").map(|at| lead + at);
    let value = gap.map(|at| at + line[at..].len() - line[at..].trim_start().len());
    let indent = value.filter(|at| *at <= width / 3).unwrap_or((lead + 2).min(width));
    let (head, rest) = line.split_at(value.filter(|at| *at <= width / 3).unwrap_or(lead));
    let (mut out, mut column, mut is_first) = (head.to_owned(), head.chars().count(), true);
    for word in rest.split(' ') {
        let length = word.chars().count();
        if !is_first && column + 1 + length > width {
            out += &format!("\n{:indent$}", "");
            column = indent;
        } else if !is_first {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += length;
        is_first = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_between_words_below_their_value() {
        let shown = wrap_text("  rate    one two three four five six seven", 32);
        assert_eq!(shown, "  rate    one two three four\n          five six seven");
        assert_eq!(wrap_text("one two three", 8), "one two\n  three");
        assert_eq!(wrap_text("short", 80), "short");
        assert!(wrap_text(&format!("{}one two", " ".repeat(70_000)), 5).ends_with("one\n     two"));
    }
}
