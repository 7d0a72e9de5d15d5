//! Decoder that turns bytes from the terminal into keys.
//!
//! crossterm's reader is not used: it can lose a key typed during a resize, and never returns once the
//! terminal is gone.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Decoder with the bytes of a key that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct KeyDecoder {
    rest: Vec<u8>,
}

/// Maximum length of a key sequence in bytes; longer ones are ignored.
const LONGEST: usize = 16;

impl KeyDecoder {
    /// Decodes bytes into keys, and keeps the bytes of an incomplete key for the next call.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<KeyEvent> {
        self.rest.extend_from_slice(bytes);
        let (mut keys, mut at) = (Vec::new(), 0);
        while let Some((key, length)) = key(&self.rest[at..]) {
            keys.extend(key);
            at += length;
        }
        self.rest.drain(..at);
        if self.rest.len() > LONGEST {
            self.rest.clear();
        }
        keys
    }

    /// Returns `true` if a key is incomplete: a lone escape may be a key of its own or the beginning of
    /// another.
    pub(super) fn is_waiting(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Returns the key Esc if a lone escape was pending, and drops all pending bytes.
    pub(super) fn flush(&mut self) -> Option<KeyEvent> {
        let is_escape = self.rest == [ESCAPE];
        self.rest.clear();
        is_escape.then(|| KeyCode::Esc.into())
    }
}

const ESCAPE: u8 = 0x1b;

/// Returns the first key and its length in bytes; `None` if it is incomplete. The key of an unknown sequence
/// is `None`.
fn key(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let plain = |code: KeyCode| Some((Some(KeyEvent::from(code)), 1));
    match *bytes.first()? {
        ESCAPE => match bytes.get(1)? {
            b'[' | b'O' => sequence(bytes),
            // Alt and a key.
            _ => Some((None, 2)),
        },
        b'\r' | b'\n' => plain(KeyCode::Enter),
        b'\t' => plain(KeyCode::Tab),
        0x7f | 0x08 => plain(KeyCode::Backspace),
        control @ 0x01..=0x1a => {
            let letter = char::from(control - 1 + b'a');
            Some((Some(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)), 1))
        }
        0x00..=0x1f => Some((None, 1)),
        _ => {
            let length = bytes.len().min(4);
            let text = (1..=length).find_map(|length| std::str::from_utf8(&bytes[..length]).ok());
            match text.and_then(|text| Some((text.chars().next()?, text.len()))) {
                Some((letter, length)) => Some((Some(KeyCode::Char(letter).into()), length)),
                // Four bytes are always a complete character, or invalid.
                None if bytes.len() >= 4 => Some((None, 1)),
                None => None,
            }
        }
    }
}

/// Decodes a sequence such as `ESC [ A`, `ESC O A` or `ESC [ 5 ~`, with or without modifiers.
fn sequence(bytes: &[u8]) -> Option<(Option<KeyEvent>, usize)> {
    let end = 2 + bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte))?;
    let first = bytes[2..end].split(|byte| *byte == b';').next();
    let code = match (bytes[end], first) {
        (b'A', _) => Some(KeyCode::Up),
        (b'B', _) => Some(KeyCode::Down),
        (b'C', _) => Some(KeyCode::Right),
        (b'D', _) => Some(KeyCode::Left),
        (b'H', _) | (b'~', Some(b"1" | b"7")) => Some(KeyCode::Home),
        (b'F', _) | (b'~', Some(b"4" | b"8")) => Some(KeyCode::End),
        (b'Z', _) => Some(KeyCode::BackTab),
        (b'M', _) if bytes[1] == b'O' => Some(KeyCode::Enter),
        (b'~', Some(b"5")) => Some(KeyCode::PageUp),
        (b'~', Some(b"6")) => Some(KeyCode::PageDown),
        _ => None,
    };
    Some((code.map(KeyEvent::from), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(keys: &[KeyEvent]) -> Vec<KeyCode> {
        keys.iter().map(|key| key.code).collect()
    }

    #[test]
    fn keys_are_read_whole_and_in_parts() {
        let typed = "jä\x1b[A\x1bOB\x1b[1;5C\x1b[5~\x1b[Z\r\t\x7fq";
        let expected = [
            KeyCode::Char('j'),
            KeyCode::Char('ä'),
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Right,
            KeyCode::PageUp,
            KeyCode::BackTab,
            KeyCode::Enter,
            KeyCode::Tab,
            KeyCode::Backspace,
            KeyCode::Char('q'),
        ];
        assert_eq!(codes(&KeyDecoder::default().read(typed.as_bytes())), expected);
        let mut keys = KeyDecoder::default();
        let parts: Vec<KeyEvent> = typed.bytes().flat_map(|byte| keys.read(&[byte])).collect();
        assert_eq!(codes(&parts), expected);
        assert!(!keys.is_waiting());
    }

    #[test]
    fn an_escape_is_a_key_when_nothing_follows() {
        let mut keys = KeyDecoder::default();
        assert!(keys.read(b"\x1b").is_empty() && keys.is_waiting());
        assert_eq!(keys.flush(), Some(KeyCode::Esc.into()));
        assert!(!keys.is_waiting());
        assert!(keys.read(b"\x1b[").is_empty());
        assert_eq!(keys.flush(), None, "the beginning of a sequence is none");
        let control = keys.read(b"\x03");
        assert_eq!(control, [KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)]);
    }

    #[test]
    fn what_is_no_key_is_passed_over() {
        let mut keys = KeyDecoder::default();
        assert_eq!(
            codes(&keys.read(b"\x1b[99;99Xj\x1bxk\xff\xff\xff\xffl\x00m")),
            ['j', 'k', 'l', 'm'].map(KeyCode::Char)
        );
        keys.read(&[b"\x1b[".to_vec(), vec![b'0'; 40]].concat());
        assert_eq!(codes(&keys.read(b"q")), [KeyCode::Char('q')], "an endless sequence is forgotten");
    }
}
