//! Splits the output of a program into lines, and removes terminal escape sequences.

/// Length limit of a line in bytes; the rest of a longer line is dropped.
const LONGEST: usize = 1 << 20;

/// Splits a stream of bytes into lines, and passes each on as soon as it ends.
///
/// A line ends with `\n`, or with anything that a progress bar uses to overwrite its line: `\r`, a backspace,
/// or an escape sequence that moves the cursor. Empty lines are dropped. Line numbers count `\n` alone, from
/// 1, as editors do.
#[derive(Debug, Default)]
pub struct LineSplitter {
    line: Vec<u8>,
    /// Number of newlines so far.
    newlines: u64,
}

impl LineSplitter {
    /// Adds bytes of the output. `take` is called with the number and text of each line that ends in them,
    /// without its line end.
    pub fn feed(&mut self, bytes: &[u8], mut take: impl FnMut(u64, &[u8])) {
        let mut begin = 0;
        for (end, byte) in bytes.iter().copied().enumerate() {
            if is_line_end(byte) || self.moves_cursor(&bytes[begin..end], byte) {
                self.extend(&bytes[begin..end]);
                self.flush(&mut take);
                self.newlines += u64::from(byte == b'\n');
                begin = end + 1;
            }
        }
        self.extend(&bytes[begin..]);
    }

    /// Ends the stream: calls `take` with the last line if it has no line end.
    pub fn finish(mut self, mut take: impl FnMut(u64, &[u8])) {
        self.flush(&mut take);
    }

    /// Returns `true` if the byte at index `last` ends an escape sequence that moves the cursor. The sequence
    /// may begin before `bytes`.
    fn moves_cursor(&self, bytes: &[u8], last: u8) -> bool {
        if !moves(last.into()) && last != RESTORE {
            return false;
        }
        let mut before = bytes.iter().rev().chain(self.line.iter().rev());
        if last == RESTORE {
            return before.next() == Some(&ESCAPE);
        }
        match before.find(|byte| !(b' '..=b'?').contains(*byte)) {
            Some(b'[') => before.next() == Some(&ESCAPE),
            Some(0x9b) => before.next() == Some(&0xc2),
            _ => false,
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn flush(&mut self, take: &mut impl FnMut(u64, &[u8])) {
        if !self.line.is_empty() {
            take(self.newlines + 1, &self.line);
            self.line.clear();
        }
    }
}

const ESCAPE: u8 = 0x1b;

/// Final byte of the escape sequence "restore cursor" (ESC 8).
const RESTORE: u8 = b'8';

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r' | 8)
}

/// Returns `true` if a control sequence with the final byte `end` moves the cursor, other than to the right.
fn moves(end: char) -> bool {
    matches!(end, 'A' | 'B' | 'D'..='H' | 'd' | 'f' | '`' | 'u')
}

/// Returns the visible text of a line, without colors and other escape sequences. Bytes need not be UTF-8.
///
/// A cursor-moving sequence or a backspace ends a line, since some progress bars overwrite their line with
/// it; so one line may become several, separated by `\n`.
pub fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => match rest.next() {
                Some('[') => plain.extend(control(&mut rest)),
                Some('8') => plain.push('\n'),
                Some(']' | 'P' | 'X' | '^' | '_') => string(&mut rest),
                // A sequence of two or three characters, such as ESC ( B.
                Some(' '..='/') => while rest.next().is_some_and(|c| matches!(c, ' '..='/')) {},
                _ => {}
            },
            '\u{9b}' => plain.extend(control(&mut rest)),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => string(&mut rest),
            '\u{8}' => plain.push('\n'),
            '\t' | '\n' | '\r' => plain.push(c),
            _ if c.is_control() => {}
            _ => plain.push(c),
        }
    }
    plain
}

/// Skips the rest of a control sequence, and returns the character to put in its place: a blank if it moves
/// the cursor to the right, a line end if it moves it elsewhere.
fn control(rest: &mut impl Iterator<Item = char>) -> Option<char> {
    let end = rest.find(|c| !matches!(c, ' '..='?'))?;
    if end == 'C' { Some(' ') } else { moves(end).then_some('\n') }
}

/// Skips a terminal string, such as a title or a link, to its end: BEL, ST or ESC \.
fn string(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>) {
    while let Some(c) = rest.next() {
        match c {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                rest.next_if_eq(&'\\');
                return;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut found = Vec::new();
        let mut splitter = LineSplitter::default();
        let mut take = |_, line: &[u8]| found.push(String::from_utf8_lossy(line).into_owned());
        for piece in pieces {
            splitter.feed(piece, &mut take);
        }
        splitter.finish(take);
        found
    }

    #[test]
    fn a_carriage_return_ends_a_line_as_soon_as_it_comes() {
        let mut splitter = LineSplitter::default();
        let mut found = Vec::new();
        splitter.feed(b"\rstep 1 loss 4\rstep 2", |_, line| found.push(line.to_vec()));
        assert_eq!(found, [b"step 1 loss 4"]);
        splitter.feed(b" loss 3\r\n", |_, line| found.push(line.to_vec()));
        assert_eq!(found.last().map(Vec::as_slice), Some(b"step 2 loss 3".as_slice()));
        assert_eq!(found.len(), 2);
        assert_eq!(lines(&[b"a\r\n\r\nb", b"c\n", b"d"]), ["a", "bc", "d"]);
    }

    #[test]
    fn what_moves_the_cursor_ends_a_line_as_soon_as_it_comes() {
        for end in ["\x1b[1G", "\x1b[2K\x1b[1A", "\x1b[u", "\x1b8", "\u{9b}3;1H", "\x08\x08"] {
            let mut found = Vec::new();
            let mut splitter = LineSplitter::default();
            for byte in format!("step 1 AH loss 8{end}step 2").bytes() {
                splitter.feed(&[byte], |_, line| found.push(plain(line)));
            }
            found.retain(|line| !line.is_empty());
            assert_eq!(found, ["step 1 AH loss 8"], "{end:?}");
        }
        assert_eq!(lines(&[b"\x1b[1mstep\x1b[2C3\x1b[0m"]).len(), 1, "colours and steps to the right");
    }

    #[test]
    fn lines_are_numbered_as_an_editor_does() {
        let mut numbers = Vec::new();
        let mut splitter = LineSplitter::default();
        splitter.feed(b"a\r\n\n\rb\rc\nd", |number, _| numbers.push(number));
        splitter.finish(|number, _| numbers.push(number));
        assert_eq!(numbers, [1, 3, 3, 4]);
    }

    #[test]
    fn no_line_is_lost_beside_one_that_is_too_long() {
        let long = vec![b'x'; 3 * LONGEST];
        let found = lines(&[b"a\n", &long, &long, b"y\nb\n"]);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].as_str(), found[1].len(), found[2].as_str()), ("a", LONGEST, "b"));
    }

    #[test]
    fn a_bar_of_any_length_keeps_all_of_its_lines() {
        let bar: String = (0..9000).map(|step| format!("\rstep {step}/9000 loss=0.5")).collect();
        assert_eq!(lines(&bar.as_bytes().chunks(1000).collect::<Vec<_>>()).len(), 9000);
    }

    #[test]
    fn colours_and_titles_are_removed() {
        for (line, expected) in [
            ("\x1b[32mstep \x1b[1m3\x1b[0m loss \x1b[38;5;196m0.5\x1b[K", "step 3 loss 0.5"),
            ("\x1b]0;training\x07step 3", "step 3"),
            ("\x1b]8;;http://a/\x1b\\step\x1b]8;;\x1b\\ 3", "step 3"),
            ("\x1b(Bstep\x1b7 3\u{9b}0m", "step 3"),
            ("step\t3\u{7}", "step\t3"),
            ("step\x1b[1C3", "step 3"),
            ("step 3\x1b[", "step 3"),
            ("step 3\x1b", "step 3"),
            ("a\x1b[2K\x1b[1Gb\x1b[1Ac\u{8}d", "a\nb\nc\nd"),
        ] {
            assert_eq!(plain(line.as_bytes()), expected, "{line:?}");
        }
        assert_eq!(plain(b"\xff1"), "\u{fffd}1");
    }
}
