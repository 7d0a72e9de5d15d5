//! Sanitizes foreign text for display: replaces terminal escapes, invisible characters and changes of
//! direction.

use std::borrow::Cow;

/// Character that replaces a harmful one.
pub const INSTEAD: char = '\u{fffd}';

/// Replaces every character that controls a terminal, changes the direction of text, or is invisible, by
/// [`INSTEAD`].
///
/// Line ends and tabs stay. Joiners stay between non-ASCII characters, where scripts and emoji need them.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut before = None;
    let mut letters = text.chars().peekable();
    let mut out = String::with_capacity(text.len());
    while let Some(letter) = letters.next() {
        let joins = is_joiner(letter)
            && before.is_some_and(is_joined)
            && letters.peek().copied().is_some_and(is_joined);
        out.push(if is_harmful(letter) && !joins { INSTEAD } else { letter });
        before = Some(letter);
    }
    Cow::Owned(out)
}

/// Escapes line ends and tabs in `text` as `\n`, `\r` and `\t`, so that it is one line.
pub fn on_one_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}

/// Returns `true` if `letter` controls a terminal, changes the direction of text, or is invisible.
pub fn is_harmful(letter: char) -> bool {
    match letter {
        '\n' | '\t' => false,
        // Soft hyphen, other zero-width marks, and fillers.
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' => true,
        '\u{3164}' | '\u{ffa0}' => true,
        // Text direction.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        // Zero-width spaces and joiners, line and paragraph separators.
        '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' => true,
        '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' => true,
        // Shorthand and musical format characters, tags, and variation selectors that no font has.
        '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' => true,
        _ => letter.is_control(),
    }
}

fn is_joiner(letter: char) -> bool {
    matches!(letter, '\u{200c}' | '\u{200d}')
}

fn is_joined(letter: char) -> bool {
    !letter.is_ascii() && !letter.is_whitespace() && !is_harmful(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_neither_steers_a_terminal_nor_hides() {
        let harmful = [
            '\u{0}',
            '\r',
            '\u{7}',
            '\u{8}',
            '\u{1b}',
            '\u{7f}',
            '\u{85}',
            '\u{9b}',
            '\u{ad}',
            '\u{61c}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{feff}',
            '\u{e0001}',
            '\u{e0041}',
        ];
        for letter in harmful {
            assert_eq!(printable(&format!("a{letter}b")), "a\u{fffd}b", "{:x}", u32::from(letter));
        }
        assert_eq!(printable("\u{1b}[8mhidden\u{1b}[0m"), "\u{fffd}[8mhidden\u{fffd}[0m");
        assert_eq!(printable("\u{1b}[2J\u{9b}2J"), "\u{fffd}[2J\u{fffd}2J");
    }

    #[test]
    fn what_languages_need_stays() {
        for text in [
            "one\n\ttwo",
            "naïve · 3 × 4 → ±",
            "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}",
            "\u{1f469}\u{200d}\u{1f680}",
            "a\u{301}",
        ] {
            assert_eq!(printable(text), text);
        }
        assert_eq!(printable("adam\u{200d}"), "adam\u{fffd}", "a joiner that joins nothing");
    }

    #[test]
    fn a_text_of_several_lines_is_shown_on_one() {
        assert_eq!(on_one_line("a\n\tb\r\n"), "a\\n\\tb\\r\\n");
        assert_eq!(on_one_line("a b"), "a b");
    }
}
