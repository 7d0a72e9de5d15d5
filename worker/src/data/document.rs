//! Documents of a text corpus, read piece by piece.

use super::DataError;
use super::files::DataFile;
use std::io::Read;
use std::sync::Arc;

/// Limit on the bytes of a piece of text; pieces end after a line where possible.
const PIECE_BYTES: usize = 256 << 10;

/// A piece of a document's text, of limited length, and its place in the file.
#[derive(Debug)]
pub(super) struct DocumentPiece {
    /// Bytes of the text: valid UTF-8, unless those of the text file are not.
    pub(super) bytes: Vec<u8>,
    /// True for the last piece of the document.
    pub(super) is_last: bool,
    file: Arc<DataFile>,
    /// Offset of the piece in its text file, in bytes.
    begin: u64,
}

impl DocumentPiece {
    /// Converts the piece to text; `Err` names the byte that is not UTF-8.
    pub(super) fn text(self) -> Result<String, DataError> {
        String::from_utf8(self.bytes).map_err(|error| {
            let place = format!("byte {}", self.begin + error.utf8_error().valid_up_to() as u64);
            let detail = "this is not UTF-8; convert the file, or use `tokenizer = \"bytes\"`";
            DataError::content(&self.file.name, place, detail)
        })
    }
}

/// A document that is held in memory and read piece by piece.
pub(super) struct InMemoryDocument<B> {
    text: B,
    file: Arc<DataFile>,
    /// Number of bytes returned so far.
    at: usize,
    is_done: bool,
}

impl<B: AsRef<[u8]>> InMemoryDocument<B> {
    /// Creates a document that is part of `file` from its text, which is UTF-8.
    pub(super) fn new(text: B, file: &Arc<DataFile>) -> Self {
        Self { text, file: Arc::clone(file), at: 0, is_done: false }
    }
}

impl<B: AsRef<[u8]>> Iterator for InMemoryDocument<B> {
    type Item = DocumentPiece;

    fn next(&mut self) -> Option<DocumentPiece> {
        if self.is_done {
            return None;
        }
        let (rest, begin) = (&self.text.as_ref()[self.at..], self.at as u64);
        self.is_done = rest.len() <= PIECE_BYTES;
        let length = if self.is_done { rest.len() } else { cut(&rest[..PIECE_BYTES]) };
        self.at += length;
        let bytes = rest[..length].to_vec();
        Some(DocumentPiece { bytes, is_last: self.is_done, file: Arc::clone(&self.file), begin })
    }
}

/// A text file that is one document and is read piece by piece.
pub(super) struct TextFile<R> {
    file: Arc<DataFile>,
    reader: R,
    /// Bytes that were read from the file and not yet returned.
    rest: Vec<u8>,
    /// Offset in the file of the bytes in `rest`.
    at: u64,
    is_done: bool,
}

impl<R: Read> TextFile<R> {
    /// Creates a document from the whole of `file`, whose text `reader` reads.
    pub(super) fn new(file: Arc<DataFile>, reader: R) -> Self {
        Self { file, reader, rest: Vec::new(), at: 0, is_done: false }
    }
}

impl<R: Read> Iterator for TextFile<R> {
    type Item = Result<DocumentPiece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        // One byte more shows whether this piece is the last.
        let wanted = PIECE_BYTES + 1 - self.rest.len();
        if let Err(error) = self.reader.by_ref().take(wanted as u64).read_to_end(&mut self.rest) {
            self.is_done = true;
            return Some(Err(self.file.unreadable(error)));
        }
        self.is_done = self.rest.len() <= PIECE_BYTES;
        let length = if self.is_done { self.rest.len() } else { cut(&self.rest[..PIECE_BYTES]) };
        let rest = self.rest.split_off(length);
        let bytes = std::mem::replace(&mut self.rest, rest);
        let begin = self.at;
        self.at += bytes.len() as u64;
        Some(Ok(DocumentPiece { bytes, is_last: self.is_done, file: Arc::clone(&self.file), begin }))
    }
}

/// Returns the length of the next piece of `bytes`, which ends after the last line end, or else before a
/// character that is cut off.
fn cut(bytes: &[u8]) -> usize {
    if let Some(line) = bytes.iter().rposition(|byte| *byte == b'\n') {
        return line + 1;
    }
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}
