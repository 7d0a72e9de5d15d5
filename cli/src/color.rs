//! Colors of dtrain's own text, and removal of control sequences from other text.

use dtrain_recipes::sanitize::{INSTEAD, printable};
use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

/// First character of a terminal control sequence.
const ESCAPE: char = '\u{1b}';

/// Random number of this process. It marks the sequences of [`ColorMode`] until [`sanitize`] writes them, so
/// that text from other programs cannot imitate them.
static MARK: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// Codes of all colors that [`ColorMode`] writes; no other sequence reaches the terminal.
const CODES: [&str; 7] = [RED, GREEN, YELLOW, CYAN, BLUE, BOLD, DIM];
const RED: &str = "1;31";
const GREEN: &str = "1;32";
const YELLOW: &str = "33";
const CYAN: &str = "36";
const BLUE: &str = "1;34";
const BOLD: &str = "1";
const DIM: &str = "2";

/// Code that ends any color.
const RESET: &str = "0";

/// Returns `true` unless the environment turns colors off: with a `NO_COLOR` that is not empty, or with
/// `TERM=dumb`.
pub(crate) fn wants_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && !is_dumb()
}

/// Returns `true` for a terminal without control sequences, `TERM=dumb`.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Switch that turns colors on or off for one output stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColorMode(bool);

impl ColorMode {
    /// Creates a mode with colors if `is_wanted`, otherwise without.
    pub(crate) fn when(is_wanted: bool) -> Self {
        Self(is_wanted)
    }

    /// Creates a mode without colors.
    pub(crate) fn plain() -> Self {
        Self(false)
    }

    pub(crate) fn is_colored(self) -> bool {
        self.0
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with(RED, text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with(GREEN, text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with(YELLOW, text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with(CYAN, text)
    }

    pub(crate) fn blue(self, text: &str) -> String {
        self.with(BLUE, text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with(BOLD, text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with(DIM, text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("{}{text}{}", marked_sequence(code), marked_sequence(RESET))
        } else {
            text.to_owned()
        }
    }

    /// Marks the color sequences in a text as dtrain's own. Foreign parts of the text must be [`printable`]
    /// already.
    pub(crate) fn adopt(self, text: &str) -> String {
        let colors = CODES.iter().chain([&RESET]);
        colors
            .fold(text.to_owned(), |text, code| text.replace(&escape_sequence(code), &marked_sequence(code)))
    }
}

/// Returns the control sequence for a code, as a terminal reads it.
fn escape_sequence(code: &str) -> String {
    format!("{ESCAPE}[{code}m")
}

/// Returns the control sequence for a code with this process's mark, for a text that [`sanitize`] will write.
fn marked_sequence(code: &str) -> String {
    format!("{ESCAPE}[{};{code}m", *MARK)
}

/// Makes a text [`printable`], and keeps the colors that `paint` added. All output for people passes through
/// here, because file names and the output of hosts and programs are untrusted.
pub(crate) fn sanitize(text: &str, paint: ColorMode) -> Cow<'_, str> {
    if !paint.0 || !text.contains(ESCAPE) {
        return printable(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(ESCAPE) {
        out += &printable(&rest[..at]);
        let code = CODES.iter().chain([&RESET]).find(|code| rest[at..].starts_with(&marked_sequence(code)));
        let length = match code {
            Some(code) => {
                out += &escape_sequence(code);
                marked_sequence(code).len()
            }
            None => {
                out.push(INSTEAD);
                ESCAPE.len_utf8()
            }
        };
        rest = &rest[at + length..];
    }
    out += &printable(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_colors_reach_the_terminal() {
        let colored = format!("a\n{}\tc", ColorMode(true).red("b"));
        assert_eq!(sanitize(&colored, ColorMode(true)), "a\n\u{1b}[1;31mb\u{1b}[0m\tc");
        assert!(!sanitize(&colored, ColorMode(false)).contains(ESCAPE), "without color, none is ours");
        for code in CODES {
            let theirs = format!("{}x{}", escape_sequence(code), escape_sequence(RESET));
            assert_eq!(sanitize(&theirs, ColorMode(true)), format!("{INSTEAD}[{code}mx{INSTEAD}[0m"));
            assert_eq!(sanitize(&ColorMode(true).adopt(&theirs), ColorMode(true)), theirs);
        }
        assert_eq!(
            sanitize("\u{1b}]0;title\u{7}\u{1b}[2J\r\u{9b}2J\u{1b}[", ColorMode(true)),
            "\u{fffd}]0;title\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}2J\u{fffd}["
        );
        for hidden in
            ["\u{1b}[8mx", "\u{1b}[1;8mx", "\u{1b}[30;40mx", "\u{1b}[38;5;0mx", "\u{202e}x", "a\u{200b}x"]
        {
            let shown = sanitize(hidden, ColorMode(true)).into_owned();
            assert!(
                shown.contains(INSTEAD) && !shown.contains(dtrain_recipes::sanitize::is_harmful),
                "{shown:?}"
            );
        }
    }

    #[test]
    fn without_color_no_escape_is_written() {
        assert_eq!(ColorMode(false).red("x"), "x");
        assert!(ColorMode(true).red("x").starts_with('\u{1b}'));
    }
}
