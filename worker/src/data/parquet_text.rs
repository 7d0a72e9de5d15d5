//! A column of text in Parquet files: each row is a document.
//!
//! A page of the column is in memory at a time, and a few of its rows as text.

use super::DataError;
use super::corpus::Piece;
use super::files::DataFile;
use super::parquet_file::{Chunk, ParquetFile};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::ByteArrayType;
use std::sync::Arc;

/// Rows that are read at a time.
const ROWS: u64 = 64;

/// The documents of a file; nothing follows an error.
pub(super) struct Rows {
    parquet: ParquetFile,
    column: usize,
    /// The row group that is read after this one.
    next_group: usize,
    group: Option<Group>,
    ready: std::vec::IntoIter<Piece>,
    is_done: bool,
}

/// What is left of a row group.
struct Group {
    chunk: Chunk,
    reader: ColumnReaderImpl<ByteArrayType>,
    /// The next row.
    row: u64,
    /// Rows in all.
    rows: u64,
}

impl Rows {
    /// Opens a file with this column of text.
    pub(super) fn open(file: &Arc<DataFile>, column: &str) -> Result<Self, DataError> {
        let parquet = ParquetFile::open(file)?;
        let column = parquet.column(column, "data.field")?;
        if !parquet.is_text(column) {
            return Err(parquet.other_type(column, "text; `data.field` names the column"));
        }
        let ready = Vec::new().into_iter();
        Ok(Self { parquet, column, next_group: 0, group: None, ready, is_done: false })
    }

    /// Reads some rows of the current group, otherwise opens the next; `Ok(false)` when there is none.
    fn advance(&mut self) -> Result<bool, DataError> {
        if let Some(group) = self.group.as_mut().filter(|group| group.row < group.rows) {
            self.ready = group.read(&self.parquet)?.into_iter();
            return Ok(true);
        }
        if self.next_group == self.parquet.groups() {
            return Ok(false);
        }
        let chunk = Chunk { group: self.next_group, column: self.column };
        let reader = get_typed_column_reader(self.parquet.reader(chunk)?);
        self.group = Some(Group { chunk, reader, row: 0, rows: self.parquet.rows(chunk.group) });
        self.next_group += 1;
        Ok(true)
    }
}

impl Group {
    fn read(&mut self, parquet: &ParquetFile) -> Result<Vec<Piece>, DataError> {
        let count = usize::try_from(ROWS.min(self.rows - self.row)).expect("at most ROWS");
        let values = parquet.values(self.chunk, &mut self.reader, self.row, count)?;
        let mut pieces = Vec::with_capacity(count);
        for value in values {
            let text = std::str::from_utf8(value.data())
                .map_err(|_| parquet.wrong_value(self.chunk, self.row, "is not UTF-8, expected text"))?;
            pieces.push(Piece::document(text.to_owned(), &parquet.file));
            self.row += 1;
        }
        Ok(pieces)
    }
}

impl Iterator for Rows {
    type Item = Result<Piece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.ready.next() {
                return Some(Ok(piece));
            }
            if self.is_done {
                return None;
            }
            match self.advance() {
                Ok(has_more) => self.is_done = !has_more,
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
