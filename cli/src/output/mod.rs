//! Output of commands: data on stdout, messages for people on stderr.

mod json_output;
mod terminal_width;

pub(crate) use json_output::{VERSION, document};

use crate::color::{ColorMode, is_dumb, sanitize, wants_color};
use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_recipes::Problem;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _};
use terminal_width::{WIDTH, terminal_width, wrap_text};

/// Settings of a command's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// True if data is written to stdout as JSON.
    pub(crate) json: bool,
    /// True if only errors are written to stderr.
    pub(crate) quiet: bool,
    /// Color mode of stderr.
    pub(crate) paint: ColorMode,
    /// Color mode of stdout.
    pub(crate) paint_data: ColorMode,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let paint = ColorMode::when(wants_color() && io::stderr().is_terminal());
        let paint_data = ColorMode::when(wants_color() && io::stdout().is_terminal());
        Self { json, quiet, paint, paint_data }
    }

    /// Returns `true` if progress bars may be drawn on stderr.
    pub(crate) fn draws(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal() && !is_dumb()
    }

    /// Returns the reason why no full-screen display is possible; `None` on a capable terminal.
    pub(crate) fn no_screen(&self) -> Option<&'static str> {
        if self.json {
            Some("`--json` and a screen exclude each other")
        } else if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            Some("stdin and stdout must be a terminal")
        } else if is_dumb() || std::env::var_os("TERM").is_none_or(|term| term.is_empty()) {
            Some("a terminal of type TERM=dumb, or of no type, cannot draw a screen")
        } else {
            None
        }
    }

    /// Returns the style of a page on stdout.
    pub(crate) fn style(&self) -> PageStyle {
        let stdout = io::stdout();
        let columns = if stdout.is_terminal() { terminal_width(&stdout) } else { None };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        PageStyle {
            paint: self.paint_data,
            width: columns.unwrap_or(WIDTH),
            is_ascii: is_ascii(),
            now_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Writes lines of data to stdout, with a line end.
    pub(crate) fn data(&self, text: &str) -> Result<(), CommandError> {
        self.line(&sanitize(text, self.paint_data))
    }

    /// Writes text of another program, sanitized and without an added line end. A closed pipe ends the
    /// program quietly.
    pub(crate) fn write_raw(&self, text: &str) -> Result<(), CommandError> {
        self.bytes(sanitize(text, ColorMode::plain()).as_bytes())
    }

    fn line(&self, text: &str) -> Result<(), CommandError> {
        let line = if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
        self.bytes(line.as_bytes())
    }

    /// Writes the text of a file to stdout: unchanged, or sanitized for a terminal.
    pub(crate) fn file(&self, text: &str) -> Result<(), CommandError> {
        if io::stdout().is_terminal() { self.write_raw(text) } else { self.bytes(text.as_bytes()) }
    }

    /// Writes bytes unchanged to stdout. A closed pipe ends the program quietly.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::closed_pipe(),
            _ => CommandError::new(ExitReason::Infrastructure, "cannot write to stdout")
                .cause(error.to_string()),
        })
    }

    /// Writes a message to stderr, wrapped to the terminal's width; nothing if quiet.
    pub(crate) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let stderr = io::stderr();
        let columns = if stderr.is_terminal() { terminal_width(&stderr) } else { None };
        write_stderr(&format!(
            "{}\n",
            columns.map_or_else(|| text.to_owned(), |width| wrap_text(text, width))
        ));
    }

    /// Writes a suggested next command to stderr, in the last lines of a command.
    pub(crate) fn next(&self, command: &str) {
        self.say(&format!("{} {command}", self.paint.blue("next:")));
    }
}

/// Style in which a page of text is formatted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageStyle {
    /// Color mode of the page.
    pub(crate) paint: ColorMode,
    /// Width of the page in columns.
    pub(crate) width: usize,
    /// True if plain ASCII replaces block characters and the like.
    pub(crate) is_ascii: bool,
    /// Current time in milliseconds since the Unix epoch, from which ages are formatted.
    pub(crate) now_ms: u64,
}

/// Quotes a word of a command for the shell if that is necessary.
pub(crate) fn shell_quoted(text: impl Display) -> String {
    let text = text.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "_./@%+=:,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Writes a terminal control sequence of dtrain's own to stderr, without sanitizing.
pub(crate) fn write_control_sequence(sequence: &str) {
    drop(io::stderr().lock().write_all(sequence.as_bytes()));
}

/// Writes sanitized text to stderr without a line end; errors are ignored.
pub(crate) fn write_stderr(text: &str) {
    let paint = ColorMode::when(wants_color() && io::stderr().is_terminal());
    drop(io::stderr().lock().write_all(sanitize(text, paint).as_bytes()));
}

/// Formats a problem that does not end the command, such as a warning or a note: `label`, message, place,
/// notes and hint.
pub(crate) fn problem_text(label: impl Display, problem: &Problem) -> String {
    let place = problem.origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})"));
    let notes: String = problem.notes.iter().map(|(note, _)| format!("; {note}")).collect();
    let hint = problem.hint.as_ref().map_or_else(String::new, |hint| format!(": {hint}"));
    format!("{label}: {}{place}{notes}{hint}", problem.message)
}

/// Returns `true` if the user's locale allows only ASCII; an unset locale allows all characters.
fn is_ascii() -> bool {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|text| !text.is_empty());
    let Some(locale) = locale else { return false };
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    !locale.contains("utf-8") && !locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_typed_is_what_was_meant() {
        assert_eq!(shell_quoted("examples/a-b_1.toml"), "examples/a-b_1.toml");
        assert_eq!(shell_quoted("$(x); y"), "'$(x); y'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }
}
