//! A column of text in Parquet files, each row of which is a document.
//!
//! A page of the column is in memory at a time.

use super::DataError;
use super::document::{DocumentPiece, InMemoryDocument};
use super::files::DataFile;
use super::parquet_file::{GroupColumn, ParquetFile};
use parquet::column::reader::{ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use std::sync::Arc;

/// An iterator over the documents of a Parquet file; it ends after an error.
pub(super) struct ParquetDocuments {
    parquet: ParquetFile,
    column: usize,
    /// Index of the row group that is opened next.
    next_group: usize,
    group: Option<RowGroup>,
    document: Option<InMemoryDocument<ByteArray>>,
    is_done: bool,
}

/// The unread rows of a row group.
struct RowGroup {
    chunk: GroupColumn,
    reader: ColumnReaderImpl<ByteArrayType>,
    /// Index in the row group of the next row.
    row: u64,
    /// Number of rows in the row group.
    rows: u64,
}

impl ParquetDocuments {
    /// Opens a Parquet file whose column `column` has the text.
    pub(super) fn open(file: &Arc<DataFile>, column: &str) -> Result<Self, DataError> {
        let parquet = ParquetFile::open(file)?;
        let column = parquet.column(column, "data.field")?;
        if !parquet.is_text(column) {
            return Err(parquet.other_type(column, "text; `data.field` names the column"));
        }
        Ok(Self { parquet, column, next_group: 0, group: None, document: None, is_done: false })
    }

    /// Reads one row of the current row group, or opens the next row group; returns `Ok(false)` at the
    /// end of the file.
    fn advance(&mut self) -> Result<bool, DataError> {
        if let Some(group) = self.group.as_mut().filter(|group| group.row < group.rows) {
            self.document = Some(group.read(&self.parquet)?);
            return Ok(true);
        }
        if self.next_group == self.parquet.groups() {
            return Ok(false);
        }
        let chunk = GroupColumn { group: self.next_group, column: self.column };
        self.parquet.expect_small_pages(chunk)?;
        let reader = get_typed_column_reader(self.parquet.reader(chunk)?);
        self.group = Some(RowGroup { chunk, reader, row: 0, rows: self.parquet.rows(chunk.group) });
        self.next_group += 1;
        Ok(true)
    }
}

impl RowGroup {
    fn read(&mut self, parquet: &ParquetFile) -> Result<InMemoryDocument<ByteArray>, DataError> {
        let row = self.row;
        let value = parquet.values(self.chunk, &mut self.reader, row, 1)?.pop().expect("one was read");
        if std::str::from_utf8(value.data()).is_err() {
            return Err(parquet.wrong_value(self.chunk, row, "is not UTF-8, expected text"));
        }
        self.row += 1;
        Ok(InMemoryDocument::new(value, &parquet.file))
    }
}

impl Iterator for ParquetDocuments {
    type Item = Result<DocumentPiece, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.document.as_mut().and_then(Iterator::next) {
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
