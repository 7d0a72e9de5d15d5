//! Parquet tables: the cells of their rows.

use super::cell::RawCell;
use super::row::{RowLocation, RowVisitor};
use crate::data::DataError;
use crate::data::parquet_file::{CellType, GroupColumn, ParquetFile};
use ::parquet::column::reader::ColumnReader;
use ::parquet::data_type::ByteArray;

/// Number of rows that are read at a time.
const ROWS: usize = 1024;

/// Limit on the decompressed bytes of text in a column chunk.
const MOST_TEXT: u64 = 256 << 20;

/// Calls `visit` for every row of a Parquet file, with the cells of `columns`, one row group after
/// another.
pub(super) fn rows(
    parquet: &ParquetFile,
    columns: &[usize],
    visit: &mut RowVisitor<'_>,
) -> Result<(), DataError> {
    let types = columns.iter().map(|column| cell_type(parquet, *column)).collect::<Result<Vec<_>, _>>()?;
    for group in 0..parquet.groups() {
        let mut readers = Vec::new();
        for (column, cell) in columns.iter().zip(&types) {
            let chunk = GroupColumn { group, column: *column };
            let bytes = parquet.decompressed(chunk);
            if *cell == CellType::Text && bytes > MOST_TEXT {
                let (found, most, name) = (bytes >> 20, MOST_TEXT >> 20, parquet.name(*column));
                let detail = format!(
                    "has {found} MiB of text in a row group, and a category column at most {most} MiB; leave it out \
                     with `data.ignore = [{name:?}]`"
                );
                return Err(parquet.wrong_value(chunk, 0, &detail));
            }
            readers.push((chunk, *cell, parquet.reader(chunk)?));
        }
        let count = parquet.rows(group);
        let mut row = 0;
        while row < count {
            let some = usize::try_from(count - row).unwrap_or(usize::MAX).min(ROWS);
            let read = readers
                .iter_mut()
                .map(|(chunk, cell, reader)| ColumnValues::read(parquet, *chunk, *cell, reader, row, some));
            let values = read.collect::<Result<Vec<_>, _>>()?;
            for at in 0..some {
                let place = RowLocation::Row { group, row: row + at as u64 };
                let cells = values.iter().zip(&readers).map(|(values, (chunk, ..))| {
                    values.cell(at).ok_or_else(|| {
                        parquet.wrong_value(*chunk, row + at as u64, "is not UTF-8, expected text")
                    })
                });
                visit(place, &cells.collect::<Result<Vec<_>, _>>()?)?;
            }
            row += some as u64;
        }
    }
    Ok(())
}

fn cell_type(parquet: &ParquetFile, column: usize) -> Result<CellType, DataError> {
    parquet.cell_type(column).ok_or_else(|| {
        let wanted = "numbers, dates, text, or true and false";
        let name = parquet.name(column);
        parquet.other_type(column, &format!("{wanted}; leave it out with `data.ignore = [{name:?}]`"))
    })
}

/// Consecutive values of a column; `None` stands for null.
enum ColumnValues {
    Numbers(Vec<Option<f64>>),
    Flags(Vec<Option<bool>>),
    Dates(Vec<Option<f64>>),
    Texts(Vec<Option<ByteArray>>),
}

impl ColumnValues {
    /// Reads the next `count` values of a column chunk, the first of which is from row `row`.
    #[expect(clippy::cast_precision_loss, reason = "models compute in f32, of what differs from the mean")]
    fn read(
        parquet: &ParquetFile,
        chunk: GroupColumn,
        cell: CellType,
        reader: &mut ColumnReader,
        row: u64,
        count: usize,
    ) -> Result<Self, DataError> {
        let numbers = match reader {
            ColumnReader::BoolColumnReader(reader) => {
                return Ok(Self::Flags(parquet.cells(chunk, reader, row, count)?));
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                return Ok(Self::Texts(parquet.cells(chunk, reader, row, count)?));
            }
            ColumnReader::Int32ColumnReader(reader) => {
                let number = |value: i32| match cell {
                    CellType::Unsigned => value.cast_unsigned().into(),
                    CellType::Signed | CellType::Date { .. } | CellType::Text => f64::from(value),
                };
                each(parquet.cells(chunk, reader, row, count)?, number)
            }
            ColumnReader::Int64ColumnReader(reader) => {
                let number = |value: i64| match cell {
                    CellType::Unsigned => value.cast_unsigned() as f64,
                    CellType::Signed | CellType::Date { .. } | CellType::Text => value as f64,
                };
                each(parquet.cells(chunk, reader, row, count)?, number)
            }
            ColumnReader::FloatColumnReader(reader) => {
                each(parquet.cells(chunk, reader, row, count)?, f64::from)
            }
            ColumnReader::DoubleColumnReader(reader) => parquet.cells(chunk, reader, row, count)?,
            ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
                unreachable!("`cell_type` names no such column")
            }
        };
        Ok(match cell {
            CellType::Date { per_day } => Self::Dates(each(numbers, |value| value / per_day)),
            CellType::Signed | CellType::Unsigned | CellType::Text => Self::Numbers(numbers),
        })
    }

    /// Returns the cell at index `at`; `None` if it is not UTF-8.
    fn cell(&self, at: usize) -> Option<RawCell<'_>> {
        Some(match self {
            Self::Numbers(values) => values[at].map_or(RawCell::Empty, RawCell::Number),
            Self::Flags(values) => values[at].map_or(RawCell::Empty, RawCell::Flag),
            Self::Dates(values) => values[at].map_or(RawCell::Empty, RawCell::Date),
            Self::Texts(values) => match &values[at] {
                None => RawCell::Empty,
                Some(text) => RawCell::of(std::str::from_utf8(text.data()).ok()?),
            },
        })
    }
}

fn each<T>(values: Vec<Option<T>>, number: impl Fn(T) -> f64) -> Vec<Option<f64>> {
    values.into_iter().map(|value| value.map(&number)).collect()
}
