//! JSON records: an object on each line, or a list of objects over any number of lines. `NaN` and
//! `Infinity`, which Python writes, count as numbers.

use super::DataError;
use super::document::{DocumentPiece, InMemoryDocument};
use super::files::DataFile;
use super::json_record::{RecordError, replace_numbers_of_python, text_in};
use std::fmt;
use std::io::{BufRead, Read};
use std::sync::Arc;

/// Limit on the length of a record, in bytes.
const MOST_BYTES: usize = 64 << 20;

/// An iterator over the documents of a JSON file; it ends after an error.
pub(super) struct JsonRecords<'a, R> {
    file: Arc<DataFile>,
    reader: R,
    field: &'a str,
    layout: Option<RecordFraming>,
    /// Position in the file of the next byte.
    place: TextPosition,
    document: Option<InMemoryDocument<String>>,
    is_done: bool,
}

/// The way in which a file separates its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordFraming {
    Lines,
    List,
}

/// A line and a column of a text file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextPosition {
    line: u64,
    column: u64,
}

impl TextPosition {
    fn pass(&mut self, byte: u8) {
        if byte == b'\n' {
            *self = Self { line: self.line + 1, column: 1 };
        } else {
            self.column += 1;
        }
    }

    /// Returns the position in the file of `line` and `column` in a record that begins at `self`, as
    /// `serde_json` counts them.
    fn within(self, line: usize, column: usize) -> Self {
        let (line, column) = (line.max(1) as u64, column.max(1) as u64);
        if line == 1 {
            Self { line: self.line, column: self.column + column - 1 }
        } else {
            Self { line: self.line + line - 1, column }
        }
    }
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The bytes of one record, and its position in the file.
struct RawRecord {
    bytes: Vec<u8>,
    begin: TextPosition,
}

impl<'a, R: BufRead> JsonRecords<'a, R> {
    /// Creates an iterator over the texts in `field` of the records that `reader` reads from `file`.
    pub(super) fn new(file: Arc<DataFile>, reader: R, field: &'a str) -> Self {
        let place = TextPosition { line: 1, column: 1 };
        Self { file, reader, field, layout: None, place, document: None, is_done: false }
    }

    /// Returns the next document; `None` at the end of the file.
    fn advance(&mut self) -> Result<Option<InMemoryDocument<String>>, DataError> {
        let Some(RawRecord { mut bytes, begin }) = self.raw_record()? else { return Ok(None) };
        match text_in(&mut bytes, self.field) {
            Ok(text) => Ok(Some(InMemoryDocument::new(text, &self.file))),
            Err(RecordError::Syntax(error)) => {
                let text = error.to_string();
                let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
                let hint = if error.is_eof() && self.layout == Some(RecordFraming::Lines) {
                    "; an object that takes several lines must stand in a list `[…]`"
                } else {
                    ""
                };
                let detail = format!("expected a JSON object, found other text ({what}){hint}");
                Err(self.error_at(begin.within(error.line(), error.column()), detail))
            }
            Err(RecordError::Content(detail)) => Err(self.error_at(begin, detail)),
        }
    }

    /// Creates an iterator over the records that `reader` reads from `file`, for [`JsonRecords::next_record`].
    pub(super) fn of_records(file: Arc<DataFile>, reader: R) -> Self {
        Self::new(file, reader, "")
    }

    /// Returns the JSON of the next record and its place in the file; `None` at the end of the file. Numbers that
    /// only Python writes are overwritten.
    pub(super) fn next_record(&mut self) -> Result<Option<(Vec<u8>, String)>, DataError> {
        let Some(RawRecord { mut bytes, begin }) = self.raw_record()? else { return Ok(None) };
        if serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err() {
            replace_numbers_of_python(&mut bytes);
        }
        Ok(Some((bytes, begin.to_string())))
    }

    /// Returns the next record; `None` at the end of the file.
    fn raw_record(&mut self) -> Result<Option<RawRecord>, DataError> {
        let layout = match self.layout {
            Some(layout) => layout,
            None => match self.begin()? {
                Some(layout) => *self.layout.insert(layout),
                None => return Ok(None),
            },
        };
        match layout {
            RecordFraming::Lines => self.line(),
            RecordFraming::List => self.element(),
        }
    }

    /// Skips blanks, and `[` if the records are a list, at the beginning of the file; `None` if the file
    /// has nothing else.
    fn begin(&mut self) -> Result<Option<RecordFraming>, DataError> {
        loop {
            match self.peek()? {
                None => return Ok(None),
                Some(b'[') => {
                    self.pass(b'[');
                    return Ok(Some(RecordFraming::List));
                }
                Some(byte) if byte.is_ascii_whitespace() => self.pass(byte),
                Some(_) => return Ok(Some(RecordFraming::Lines)),
            }
        }
    }

    /// Returns the next line that is not blank; `None` at the end of the file.
    fn line(&mut self) -> Result<Option<RawRecord>, DataError> {
        loop {
            let (mut bytes, begin) = (Vec::new(), self.place);
            let most = MOST_BYTES as u64 + 1;
            let read = Read::by_ref(&mut self.reader).take(most).read_until(b'\n', &mut bytes);
            read.map_err(|error| self.file.unreadable(error))?;
            if bytes.len() > MOST_BYTES {
                return Err(self.too_long(begin));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            self.place = TextPosition { line: begin.line + 1, column: 1 };
            bytes.truncate(bytes.trim_ascii_end().len());
            if !bytes.is_empty() {
                return Ok(Some(RawRecord { bytes, begin }));
            }
        }
    }

    /// Returns the next element of the list of records; `None` at its end.
    fn element(&mut self) -> Result<Option<RawRecord>, DataError> {
        let begin = loop {
            match self.peek()? {
                None => return Err(self.unended()),
                Some(b']') => {
                    self.pass(b']');
                    return self.nothing_more().map(|()| None);
                }
                Some(byte) if byte == b',' || byte.is_ascii_whitespace() => self.pass(byte),
                Some(_) => break self.place,
            }
        };
        let (mut bytes, mut depth, mut is_text, mut is_escaped) = (Vec::new(), 0u32, false, false);
        loop {
            let byte = self.peek()?.ok_or_else(|| self.unended())?;
            match byte {
                _ if is_text => {
                    is_text = byte != b'"' || is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                }
                b',' | b']' if depth == 0 => return Ok(Some(RawRecord { bytes, begin })),
                b'"' => is_text = true,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if bytes.len() == MOST_BYTES {
                return Err(self.too_long(begin));
            }
            bytes.push(byte);
            self.pass(byte);
        }
    }

    /// Fails if anything but blanks follows the list of records.
    fn nothing_more(&mut self) -> Result<(), DataError> {
        while let Some(byte) = self.peek()? {
            if !byte.is_ascii_whitespace() {
                let detail = "expected nothing behind the end of the list; a file has one list, or an object on each line";
                return Err(self.error_at(self.place, detail.to_owned()));
            }
            self.pass(byte);
        }
        Ok(())
    }

    fn peek(&mut self) -> Result<Option<u8>, DataError> {
        loop {
            match self.reader.fill_buf() {
                Ok(bytes) => return Ok(bytes.first().copied()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.file.unreadable(error)),
            }
        }
    }

    fn pass(&mut self, byte: u8) {
        self.reader.consume(1);
        self.place.pass(byte);
    }

    fn unended(&self) -> DataError {
        self.error_at(self.place, "expected `]`, the end of the list; is the file whole?".to_owned())
    }

    fn too_long(&self, begin: TextPosition) -> DataError {
        let detail = format!(
            "the record has more than {} MiB, the most that is read; split its text into several records, or into text files",
            MOST_BYTES >> 20
        );
        self.error_at(begin, detail)
    }

    fn error_at(&self, place: TextPosition, detail: String) -> DataError {
        DataError::content(&self.file.name, place.to_string(), detail)
    }
}

impl<R: BufRead> Iterator for JsonRecords<'_, R> {
    type Item = Result<DocumentPiece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_done {
            if let Some(piece) = self.document.as_mut().and_then(Iterator::next) {
                return Some(Ok(piece));
            }
            match self.advance() {
                Ok(document) => {
                    self.is_done = document.is_none();
                    self.document = document;
                }
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
