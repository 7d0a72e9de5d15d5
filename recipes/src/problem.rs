//! Problems of a recipe: message, source line, notes and hint.

use crate::sanitize;
use crate::source::{Origin, Source, floor, position};
use std::fmt::Write as _;

/// An error or a note about a recipe.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Message: the expectation and the finding, in lower case without a full stop.
    pub message: String,
    /// Position of the problem in its source; `None` if it has none.
    pub origin: Option<Origin>,
    /// Notes that explain the problem, each with its position if it has one.
    pub notes: Vec<(String, Option<Origin>)>,
    /// Suggested fix; `None` if there is none.
    pub hint: Option<String>,
    /// The existing key that an unknown key probably means, so that it is not reported as missing too; `None`
    /// for other problems.
    pub(crate) meant: Option<String>,
}

/// Number of characters of a source line that are shown at most.
const WIDEST: usize = 100;

/// Maximum number of problems that are shown.
const MOST_SHOWN: usize = 100;

/// Length up to which a message is shown in full, in characters.
const LONGEST: usize = 1000;

impl Problem {
    /// Creates a problem without a position.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), origin: None, notes: Vec::new(), hint: None, meant: None }
    }

    /// Sets the position of the problem in its source.
    #[must_use]
    pub fn at(mut self, origin: &Origin) -> Self {
        self.origin = Some(origin.clone());
        self
    }

    /// Adds a note that explains the problem.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push((note.into(), None));
        self
    }

    /// Adds a note that refers to a position in a source.
    #[must_use]
    pub fn note_at(mut self, note: impl Into<String>, origin: &Origin) -> Self {
        self.notes.push((note.into(), Some(origin.clone())));
        self
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Formats the problem with its source line, carets, notes and hint. Ends in a newline.
    ///
    /// Control characters of the source are replaced, so that a recipe cannot send escape sequences to a
    /// terminal.
    pub fn render(&self, is_coloured: bool) -> String {
        let paint = AnsiStyle(is_coloured);
        let mut out = format!("{}: {}\n", paint.red("error"), paint.bold(&printable(&self.message)));
        let place = self.origin.as_ref().and_then(|origin| origin.source().map(|source| (origin, source)));
        let mut margin = 1;
        if let Some((origin, source)) = place {
            let line = position(&source.text, origin.span().start).0;
            margin = line.to_string().len();
            let bar = paint.blue("|");
            _ = writeln!(out, "{:margin$}{} {}", "", paint.blue("-->"), printable(&origin.to_string()));
            if !source.text.is_empty() {
                let (text, caret) = excerpt(source, origin);
                _ = writeln!(out, "{:margin$} {bar}", "");
                _ = writeln!(out, "{} {bar} {text}", paint.blue(&line.to_string()));
                _ = writeln!(out, "{:margin$} {bar} {}", "", paint.red(&caret));
            }
        }
        for (note, origin) in &self.notes {
            let place = origin.as_ref().map_or(String::new(), |origin| format!(" ({origin})"));
            let line = printable(&format!("{note}{place}"));
            _ = writeln!(out, "{:margin$} {} {line}", "", paint.blue("="));
        }
        if let Some(hint) = &self.hint {
            _ = writeln!(out, "{}: {}", paint.green("hint"), printable(hint));
        }
        out
    }
}

/// Formats at most the first hundred problems, separated by empty lines.
pub fn render_all(problems: &[Problem], is_coloured: bool) -> String {
    let shown = problems.iter().take(MOST_SHOWN);
    let mut texts: Vec<String> = shown.map(|problem| problem.render(is_coloured)).collect();
    if problems.len() > MOST_SHOWN {
        texts.push(format!("… and {} more\n", problems.len() - MOST_SHOWN));
    }
    texts.join("\n")
}

/// Sorts problems by position; those without a position come last.
pub(crate) fn sorted(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| {
        let order = problem.origin.as_ref().map(Origin::order);
        (order.is_none(), order)
    });
    problems
}

/// Returns the source line of an origin, and the carets to print in the line below it.
fn excerpt(source: &Source, origin: &Origin) -> (String, String) {
    let text = &source.text;
    let start = floor(text, origin.span().start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let end = floor(text, origin.span().end).clamp(start, line_end.max(start));
    let line = text[line_start..line_end].trim_end_matches('\r');
    let before = text[line_start..start].chars().count();
    let marked = text[start..end].trim_end().chars().count().max(1);
    let skip = if before + marked > WIDEST { before.saturating_sub(20) } else { 0 };
    let piece: String = line.chars().skip(skip).take(WIDEST).map(visible).collect();
    let ellipsis = |is_cut: bool| if is_cut { "…" } else { "" };
    let is_cut_right = line.chars().nth(skip + WIDEST).is_some();
    let indent = before - skip + usize::from(skip > 0);
    let carets = marked.min(WIDEST.saturating_sub(before - skip).max(1));
    let shown = format!("{}{piece}{}", ellipsis(skip > 0), ellipsis(is_cut_right));
    (shown.trim_end().to_owned(), format!("{}{}", " ".repeat(indent), "^".repeat(carets)))
}

/// Returns a text to print on a terminal, without harmful characters and at most [`LONGEST`] characters long.
fn printable(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST).map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a visible replacement for a character that would move the cursor, hide text, change its direction
/// or have another width, and any other character unchanged.
fn visible(character: char) -> char {
    match character {
        '\t' => ' ',
        c if c == '\n' || sanitize::is_harmful(c) => sanitize::INSTEAD,
        c => c,
    }
}

struct AnsiStyle(bool);

impl AnsiStyle {
    fn with(&self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn red(&self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn blue(&self, text: &str) -> String {
        self.with("1;34", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("1;32", text)
    }

    fn bold(&self, text: &str) -> String {
        self.with("1", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ConfigLayer;
    use std::sync::Arc;

    fn problem(text: &str, span: std::ops::Range<usize>) -> String {
        let source = Arc::new(Source::new("r.toml", ConfigLayer::Recipe, text));
        Problem::new("wrong").at(&Origin::of(&source, span)).render(false)
    }

    #[test]
    fn carets_stand_below_the_value() {
        let expected = "error: wrong\n --> r.toml:2:5\n  |\n2 | b = çç\n  |     ^^\n";
        assert_eq!(problem("a = 1\nb = çç\n", 10..14), expected);
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        let text = problem("a = \u{1b}[31m\u{202e}\t1", 0..1);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}') && !text.contains('\t'));
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_place() {
        let text = format!("a = \"{}\" b", "x".repeat(100_000));
        for span in [0..1, 4..100_000, 100_006..100_008] {
            let drawn = problem(&text, span);
            assert!(drawn.lines().all(|line| line.chars().count() < 120), "{drawn}");
            assert!(drawn.contains('^'));
        }
    }

    #[test]
    fn a_very_long_message_is_cut() {
        assert!(Problem::new("x".repeat(1 << 20)).hint("y".repeat(1 << 20)).render(false).len() < 3000);
    }

    #[test]
    fn colour_is_only_on_request() {
        assert!(Problem::new("wrong").render(true).contains("\u{1b}[1;31m"));
        assert_eq!(Problem::new("wrong").render(false), "error: wrong\n");
    }
}
