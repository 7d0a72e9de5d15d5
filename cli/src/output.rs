//! Output of commands: data to stdout, messages for people to stderr.

use crate::color::{ColorMode, is_dumb, sanitize, wants_color};
use crate::command_error::{CommandError, ErrorJson};
use crate::exit_code::ExitReason;
use dtrain_recipes::Problem;
use dtrain_recipes::sanitize::is_harmful;
use serde::Serialize;
use std::fmt::{Display, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// True once this program has written a JSON document (not JSON Lines) to stdout.
static HAS_DOCUMENT: AtomicBool = AtomicBool::new(false);

/// Output settings of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Write JSON to stdout.
    pub(crate) json: bool,
    /// Write only errors to stderr.
    pub(crate) quiet: bool,
    /// Colors of stderr.
    pub(crate) paint: ColorMode,
    /// Colors of stdout.
    pub(crate) paint_data: ColorMode,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let paint = ColorMode::when(wants_color() && io::stderr().is_terminal());
        let paint_data = ColorMode::when(wants_color() && io::stdout().is_terminal());
        Self { json, quiet, paint, paint_data }
    }

    /// Returns `true` if a progress bar may be drawn on stderr.
    pub(crate) fn draws(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal() && !is_dumb()
    }

    /// Returns the width of the terminal on stderr in columns; 80 if unknown.
    pub(crate) fn terminal_width(&self) -> usize {
        columns(&io::stderr()).unwrap_or(80)
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
        let columns = if stdout.is_terminal() {
            rustix::termios::tcgetwinsize(&stdout)
                .ok()
                .map(|size| usize::from(size.ws_col))
                .filter(|c| *c > 0)
        } else {
            None
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        PageStyle {
            paint: self.paint_data,
            width: columns.unwrap_or(WIDTH),
            is_ascii: is_ascii(),
            now_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Writes a line of data to stdout.
    pub(crate) fn data(&self, text: &str) -> Result<(), CommandError> {
        self.line(&sanitize(text, self.paint_data))
    }

    /// Writes text of another program unchanged, without a line end. A closed pipe ends the program quietly.
    pub(crate) fn write_raw(&self, text: &str) -> Result<(), CommandError> {
        self.bytes(sanitize(text, ColorMode::plain()).as_bytes())
    }

    fn line(&self, text: &str) -> Result<(), CommandError> {
        let line = if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
        self.bytes(line.as_bytes())
    }

    /// Writes the text of a file: unchanged, or sanitized for a terminal.
    pub(crate) fn file(&self, text: &str) -> Result<(), CommandError> {
        if io::stdout().is_terminal() { self.write_raw(text) } else { self.bytes(text.as_bytes()) }
    }

    /// Writes bytes unchanged. A closed pipe ends the program quietly.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), CommandError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::closed_pipe(),
            _ => CommandError::new(ExitReason::Infrastructure, "cannot write to stdout")
                .cause(error.to_string()),
        })
    }

    /// Writes one JSON document: `{"format": "dtrain.<kind>/2", …}` and the fields of `value`.
    pub(crate) fn json(&self, kind: &str, value: &impl Serialize) -> Result<(), CommandError> {
        HAS_DOCUMENT.store(true, Ordering::Relaxed);
        self.line(&document(kind, value, true)?)
    }

    /// Writes a failure as JSON, as the last line of JSON Lines. A command that has already written its
    /// document has reported the failure there: readers get exactly one document.
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

    /// Writes a message to stderr, unless quiet.
    pub(crate) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let stderr = io::stderr();
        let columns = if stderr.is_terminal() { columns(&stderr) } else { None };
        write_stderr(&format!(
            "{}\n",
            columns.map_or_else(|| text.to_owned(), |width| wrap_text(text, width))
        ));
    }

    /// Writes the suggested next command as the last line.
    pub(crate) fn next(&self, command: &str) {
        self.say(&format!("{} {command}", self.paint.blue("next:")));
    }
}

/// Style of a page, chosen by the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageStyle {
    /// Colors or none.
    pub(crate) paint: ColorMode,
    /// Available columns.
    pub(crate) width: usize,
    /// Plain ASCII in place of block characters.
    pub(crate) is_ascii: bool,
    /// Current time in milliseconds since the Unix epoch, for ages.
    pub(crate) now_ms: u64,
}

/// Quotes a word of a command for the shell if necessary.
pub(crate) fn shell_quoted(text: impl Display) -> String {
    let text = text.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "_./@%+=:,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the width of a terminal in columns; `None` if unknown.
fn columns(terminal: &impl std::os::fd::AsFd) -> Option<usize> {
    rustix::termios::tcgetwinsize(terminal)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
}

/// Wraps long lines between words, indenting continuations below the value of a `  name   value` line. Lines
/// with colors are left as they are.
fn wrap_text(text: &str, width: usize) -> String {
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

/// Writes a terminal control sequence of dtrain's own to stderr, without sanitizing.
pub(crate) fn write_control_sequence(sequence: &str) {
    drop(io::stderr().lock().write_all(sequence.as_bytes()));
}

/// Writes to stderr without a line end; errors are ignored.
pub(crate) fn write_stderr(text: &str) {
    let paint = ColorMode::when(wants_color() && io::stderr().is_terminal());
    drop(io::stderr().lock().write_all(sanitize(text, paint).as_bytes()));
}

/// Formats a problem that ends no command, such as a warning or a note: `label`, then what and where.
pub(crate) fn problem_text(label: impl Display, problem: &Problem) -> String {
    let place = problem.origin.as_ref().map_or_else(String::new, |origin| format!(" ({origin})"));
    let notes: String = problem.notes.iter().map(|(note, _)| format!("; {note}")).collect();
    let hint = problem.hint.as_ref().map_or_else(String::new, |hint| format!(": {hint}"));
    format!("{label}: {}{place}{notes}{hint}", problem.message)
}

/// Version of all JSON documents; grows when a field changes its meaning or is removed.
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

/// Page width in columns if the terminal's width is unknown.
const WIDTH: usize = 120;

/// Returns `true` if the user's locale allows only ASCII; an unset locale allows everything.
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

    #[test]
    fn long_lines_break_between_words_below_their_value() {
        let shown = wrap_text("  rate    one two three four five six seven", 32);
        assert_eq!(shown, "  rate    one two three four\n          five six seven");
        assert_eq!(wrap_text("one two three", 8), "one two\n  three");
        assert_eq!(wrap_text("short", 80), "short");
        assert!(wrap_text(&format!("{}one two", " ".repeat(70_000)), 5).ends_with("one\n     two"));
    }

    #[test]
    fn what_is_to_be_typed_is_what_was_meant() {
        assert_eq!(shell_quoted("examples/a-b_1.toml"), "examples/a-b_1.toml");
        assert_eq!(shell_quoted("$(x); y"), "'$(x); y'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }
}
