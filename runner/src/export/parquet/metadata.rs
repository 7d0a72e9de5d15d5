//! Trial metadata as a JSON list, which may be too long for memory and so is buffered in a file until all
//! rows are written.

use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write, copy};

/// JSON list of trial metadata.
pub(super) struct TrialMetadata {
    whole: BufWriter<File>,
    length: u64,
    /// Most bytes that the list may have.
    most: u64,
    /// Shorter list with only the names and results of trials, used if the full list is too long.
    brief: Vec<u8>,
}

impl TrialMetadata {
    /// Starts an empty list of at most `most` bytes, buffered in `scratch`.
    pub(super) fn new(scratch: File, most: u64) -> Self {
        Self { whole: BufWriter::new(scratch), length: 0, most, brief: Vec::new() }
    }

    /// Adds the full metadata of a trial, and the brief metadata, used if the list grows too long.
    pub(super) fn add(&mut self, whole: &Value, brief: &Value) -> io::Result<()> {
        let separator = if self.brief.is_empty() { b'[' } else { b',' };
        self.brief.push(separator);
        serde_json::to_writer(&mut self.brief, brief)?;
        if self.length <= self.most {
            let mut json = vec![separator];
            serde_json::to_writer(&mut json, whole)?;
            self.length += json.len() as u64;
            self.whole.write_all(&json)?;
        }
        Ok(())
    }

    /// Closes the list; returns its length in bytes.
    pub(super) fn end(&mut self) -> io::Result<u64> {
        if self.brief.is_empty() {
            self.brief.push(b'[');
            self.whole.write_all(b"[")?;
            self.length += 1;
        }
        self.brief.push(b']');
        self.whole.write_all(b"]")?;
        self.length += 1;
        Ok(if self.length <= self.most { self.length } else { self.brief.len() as u64 })
    }

    /// Copies the closed list to `to`.
    pub(super) fn copy_to(&mut self, to: &mut impl Write) -> io::Result<()> {
        if self.length > self.most {
            return to.write_all(&self.brief);
        }
        self.whole.flush()?;
        let file = self.whole.get_mut();
        file.rewind()?;
        copy(file, to).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_that_is_too_long_has_the_names_of_all_trials() {
        let list = |most, trials: u32| {
            let mut about = TrialMetadata::new(tempfile::tempfile().expect("a file"), most);
            for trial in 0..trials {
                let whole = json!({"trial": trial, "params": {"a": "a".repeat(20)}});
                about.add(&whole, &json!({"trial": trial})).expect("room");
            }
            let length = about.end().expect("room");
            let mut bytes = Vec::new();
            about.copy_to(&mut bytes).expect("memory");
            assert_eq!(bytes.len() as u64, length);
            serde_json::from_slice::<Value>(&bytes).expect("JSON")
        };
        assert_eq!(list(1000, 0), json!([]));
        assert_eq!(list(1000, 3)[2]["params"]["a"].as_str().map(str::len), Some(20));
        assert_eq!(list(100, 9), (0..9).map(|trial| json!({"trial": trial})).collect::<Value>());
    }
}
