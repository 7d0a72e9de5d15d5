//! Where words go: data to stdout, everything for people to stderr.

use crate::failure::{ErrorJson, Exit, Failure};
use crate::render::table::Style;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this program has written a JSON document to stdout that is not one of JSON Lines.
static HAS_DOCUMENT: AtomicBool = AtomicBool::new(false);

/// How a command may speak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// stdout is JSON.
    pub(crate) json: bool,
    /// stderr is for errors only.
    pub(crate) quiet: bool,
    /// stderr.
    pub(crate) paint: Paint,
    /// stdout.
    pub(crate) paint_data: Paint,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let paint = Paint(wants_colour() && io::stderr().is_terminal());
        let paint_data = Paint(wants_colour() && io::stdout().is_terminal());
        Self { json, quiet, paint, paint_data }
    }

    /// Whether a bar may be drawn on stderr.
    pub(crate) fn draws(&self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal() && !is_dumb()
    }

    /// Columns of the terminal on stderr; 80 when it does not tell.
    pub(crate) fn columns(&self) -> usize {
        columns(&io::stderr()).unwrap_or(80)
    }

    /// Why no screen can be drawn; `None` where stdin and stdout are a terminal that obeys.
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

    /// How a page on stdout is drawn now.
    pub(crate) fn style(&self) -> Style {
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
        Style {
            paint: self.paint_data,
            width: columns.unwrap_or(WIDTH),
            is_ascii: is_ascii(),
            now_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Writes a line of data.
    pub(crate) fn data(&self, text: &str) -> Result<(), Failure> {
        self.line(&tame(text))
    }

    fn line(&self, text: &str) -> Result<(), Failure> {
        let line = if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
        self.bytes(line.as_bytes())
    }

    /// Writes data as it is. A closed pipe ends the program quietly.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::closed_pipe(),
            _ => Failure::new(Exit::Infrastructure, "cannot write to stdout").cause(error.to_string()),
        })
    }

    /// Writes one JSON document: `{"format": "dtrain.<kind>/1", …}` and the fields of `value`.
    pub(crate) fn json(&self, kind: &str, value: &impl Serialize) -> Result<(), Failure> {
        HAS_DOCUMENT.store(true, Ordering::Relaxed);
        self.line(&document(kind, value, true)?)
    }

    /// Tells a failure to a program that reads JSON, as the last line where the command writes JSON Lines. A command that has written
    /// its document has said there what is wrong: whoever reads one document gets one.
    pub(crate) fn json_error(&self, error: &ErrorJson, is_lines: bool) {
        if !self.json || (!is_lines && HAS_DOCUMENT.load(Ordering::Relaxed)) {
            return;
        }
        // Nothing can be told to a reader that is gone.
        drop(document("error", error, !is_lines).and_then(|text| self.line(&text)));
    }

    /// The same on one line.
    pub(crate) fn json_line(&self, kind: &str, value: &impl Serialize) -> Result<(), Failure> {
        self.line(&document(kind, value, false)?)
    }

    /// Says something to a person, unless asked to be quiet.
    pub(crate) fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let stderr = io::stderr();
        let columns = if stderr.is_terminal() { columns(&stderr) } else { None };
        complain(&format!("{}\n", columns.map_or_else(|| text.to_owned(), |width| wrapped(text, width))));
    }

    /// The last line: what to type next.
    pub(crate) fn next(&self, command: &str) {
        self.say(&format!("{} {command}", self.paint.blue("next:")));
    }
}

/// A word of a command to type: as it is, or quoted where a shell would take it for something else.
pub(crate) fn word(text: impl Display) -> String {
    let text = text.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "_./@%+=:,-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Columns of a terminal; `None` when it does not tell.
fn columns(terminal: &impl std::os::fd::AsFd) -> Option<usize> {
    rustix::termios::tcgetwinsize(terminal)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
}

/// The text with long lines broken between words; what follows stands below the value of a `  name   value` line.
/// Lines with colours are left as they are.
fn wrapped(text: &str, width: usize) -> String {
    text.lines().map(|line| wrapped_line(line, width)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width || line.contains('\u{1b}') {
        return line.to_owned();
    }
    let lead = line.len() - line.trim_start().len();
    let gap = line[lead..].find("  ").map(|at| lead + at);
    let value = gap.map(|at| at + line[at..].len() - line[at..].trim_start().len());
    let indent = value.filter(|at| *at <= width / 3).unwrap_or(lead + 2);
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

/// Steers the terminal on stderr.
pub(crate) fn steer(sequence: &str) {
    drop(io::stderr().lock().write_all(sequence.as_bytes()));
}

/// Writes to stderr. Whether anybody reads it is not our business.
pub(crate) fn complain(text: &str) {
    drop(io::stderr().lock().write_all(tame(text).as_bytes()));
}

/// The text without characters that steer a terminal, but for our own colours: names of files, and what hosts and programs say,
/// are somebody else's words.
fn tame(text: &str) -> Cow<'_, str> {
    let is_wild = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_wild) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(is_wild) {
        out.push_str(&rest[..at]);
        let colour = rest[at..].strip_prefix("\u{1b}[").and_then(|code| {
            let digits = code.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            code[digits..].starts_with('m').then_some(at + 2 + digits + 1)
        });
        let wild = rest[at..].chars().next().map_or(0, char::len_utf8);
        match colour {
            Some(end) => out.push_str(&rest[at..end]),
            None => out.push('\u{fffd}'),
        }
        rest = &rest[colour.unwrap_or(at + wild)..];
    }
    Cow::Owned(out + rest)
}

/// Version of every JSON document; grows when a field changes its meaning or goes.
const VERSION: u32 = 1;

pub(crate) fn document(kind: &str, value: &impl Serialize, is_pretty: bool) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Document<'a, T: Serialize> {
        format: String,
        #[serde(flatten)]
        value: &'a T,
    }
    let document = Document { format: format!("dtrain.{kind}/{VERSION}"), value };
    let text =
        if is_pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
    text.map(|text| escaped(&text))
        .map_err(|error| Failure::new(Exit::Infrastructure, "cannot write JSON").cause(error.to_string()))
}

/// JSON means the same with those control characters escaped that it allows, and a terminal may obey.
fn escaped(json: &str) -> String {
    let is_wild = |c: &char| matches!(c, '\u{7f}'..='\u{9f}');
    if !json.contains(|c| is_wild(&c)) {
        return json.to_owned();
    }
    json.chars()
        .map(|c| if is_wild(&c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() })
        .collect()
}

/// Columns of a page that nobody tells the width of.
const WIDTH: usize = 120;

/// Whether the user's locale says that only ASCII can be shown; one that says nothing can show everything.
fn is_ascii() -> bool {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|text| !text.is_empty());
    let Some(locale) = locale else { return false };
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    !locale.contains("utf-8") && !locale.contains("utf8")
}

fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && !is_dumb()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Colours, or their absence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    /// No colours.
    pub(crate) fn plain() -> Self {
        Self(false)
    }

    pub(crate) fn is_coloured(self) -> bool {
        self.0
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("1;32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }

    pub(crate) fn blue(self, text: &str) -> String {
        self.with("1;34", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_names_its_format_and_version_first() {
        #[derive(Serialize)]
        struct Seen {
            step: u64,
        }
        let text = document("progress", &Seen { step: 3 }, false).expect("plain data");
        assert_eq!(text, r#"{"format":"dtrain.progress/1","step":3}"#);
        assert_eq!(escaped("{\"a\":\"\u{9b}2J\u{7f}ä\"}"), r#"{"a":"\u009b2J\u007fä"}"#);
    }

    #[test]
    fn long_lines_break_between_words_below_their_value() {
        let shown = wrapped("  rate    one two three four five six seven", 32);
        assert_eq!(shown, "  rate    one two three four\n          five six seven");
        assert_eq!(wrapped("one two three", 8), "one two\n  three");
        assert_eq!(wrapped("short", 80), "short");
    }

    #[test]
    fn what_is_to_be_typed_is_what_was_meant() {
        assert_eq!(word("examples/a-b_1.toml"), "examples/a-b_1.toml");
        assert_eq!(word("$(x); y"), "'$(x); y'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn only_colours_reach_the_terminal() {
        assert_eq!(tame("a\n\u{1b}[1;31mb\u{1b}[0m\tc"), "a\n\u{1b}[1;31mb\u{1b}[0m\tc");
        assert_eq!(
            tame("\u{1b}]0;title\u{7}\u{1b}[2J\r\u{9b}2J\u{1b}["),
            "\u{fffd}]0;title\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}2J\u{fffd}["
        );
    }

    #[test]
    fn without_colour_no_escape_is_written() {
        assert_eq!(Paint(false).red("x"), "x");
        assert!(Paint(true).red("x").starts_with('\u{1b}'));
    }
}
