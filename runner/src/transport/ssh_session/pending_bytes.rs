//! A buffer of bytes in transit from one side to the other.

use std::io::{self, Read, Write};

/// Maximum number of bytes that are moved at once.
pub(super) const MOST: usize = 32 << 10;

/// Buffer of bytes that were read but not yet written.
#[derive(Default)]
pub(super) struct PendingBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl PendingBytes {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// Reads from `from` once; the buffer must be empty.
    pub(super) fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        self.start = 0;
        self.bytes.resize(MOST, 0);
        let count = from.read(&mut self.bytes);
        self.bytes.truncate(*count.as_ref().unwrap_or(&0));
        count
    }

    /// Writes to `into` once. After "would block" it offers the same bytes again, as libssh2 requires.
    pub(super) fn pour(&mut self, into: &mut impl Write) -> io::Result<usize> {
        let count = into.write(&self.bytes[self.start..])?;
        self.start += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_offered_again() {
        let mut gulp = PendingBytes::default();
        assert_eq!(gulp.fill(&mut &b"abcdef"[..]).expect("read"), 6);
        let mut small = [0; 4];
        assert_eq!(gulp.pour(&mut &mut small[..]).expect("written"), 4);
        assert!(!gulp.is_empty());
        let mut rest = Vec::new();
        assert_eq!(gulp.pour(&mut rest).expect("written"), 2);
        assert!(gulp.is_empty() && rest == b"ef");
        assert_eq!(gulp.fill(&mut io::empty()).expect("read"), 0);
        assert!(gulp.is_empty());
    }
}
