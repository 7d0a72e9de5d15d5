//! Parquet files: the values of a column, one row group after another.
//!
//! Row groups and their rows are counted from 0, as in other tools.

use super::files::DataFile;
use super::table::RowLocation;
use super::{DataError, parquet_pages};
use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use std::io::{BufReader, Read};
use std::sync::Arc;

/// A Parquet file, opened for reading its columns.
pub(super) struct ParquetFile {
    pub(super) file: Arc<DataFile>,
    reader: SerializedFileReader<ParquetSource>,
}

/// The part of a column in one row group, which Parquet calls a column chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupColumn {
    pub(super) group: usize,
    pub(super) column: usize,
}

/// The type of the cells of a column, for use in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CellType {
    /// The cells are signed numbers, or booleans.
    Signed,
    /// The cells are unsigned integers.
    Unsigned,
    /// The cells are dates: days since 1970-01-01, or fractions of a day.
    Date {
        /// Number of units of the stored value in a day.
        per_day: f64,
    },
    Text,
}

impl ParquetFile {
    /// Opens a Parquet file, and reads its schema and the positions of its row groups.
    pub(super) fn open(file: &Arc<DataFile>) -> Result<Self, DataError> {
        let reader = SerializedFileReader::new(ParquetSource(Arc::clone(file))).map_err(|error| {
            let detail = format!("expected a Parquet file ({error}); is the file whole?");
            DataError::content(&file.name, "the end", detail)
        })?;
        Ok(Self { file: Arc::clone(file), reader })
    }

    /// Returns the number of row groups in the file.
    pub(super) fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// Returns the number of rows in a row group; 0 if the file claims a negative number.
    pub(super) fn rows(&self, group: usize) -> u64 {
        self.reader.metadata().row_group(group).num_rows().try_into().unwrap_or(0)
    }

    /// Returns the number of columns in the file.
    pub(super) fn columns(&self) -> usize {
        self.reader.metadata().file_metadata().schema_descr().num_columns()
    }

    /// Returns the index of the column called `name`; `key` is the recipe key that names it, for
    /// messages.
    pub(super) fn column(&self, name: &str, key: &str) -> Result<usize, DataError> {
        (0..self.columns()).find(|column| self.name(*column) == name).ok_or_else(|| {
            let names: Vec<String> = (0..self.columns()).take(12).map(|column| self.name(column)).collect();
            let detail =
                format!("there is no column `{name}`; the columns are: {}; set `{key}`", names.join(", "));
            DataError::content(&self.file.name, RowLocation::Schema.to_string(), detail)
        })
    }

    /// Returns the name of a column, with dots if it is a field of a structure.
    pub(super) fn name(&self, column: usize) -> String {
        self.descriptor(column).path().string()
    }

    fn descriptor(&self, column: usize) -> &ColumnDescriptor {
        &self.reader.metadata().file_metadata().schema_descr().columns()[column]
    }

    /// Returns `true` if the values of a column are text.
    pub(super) fn is_text(&self, column: usize) -> bool {
        let descriptor = self.descriptor(column);
        descriptor.physical_type() == Type::BYTE_ARRAY
            && descriptor.max_rep_level() == 0
            && descriptor.converted_type() != ConvertedType::DECIMAL
    }

    /// Returns the type of the cells of a column; `None` for decimals, times of the day, lists and other
    /// types.
    pub(super) fn cell_type(&self, column: usize) -> Option<CellType> {
        let descriptor = self.descriptor(column);
        if descriptor.max_rep_level() > 0 {
            return None;
        }
        let date = |per_day: f64| Some(CellType::Date { per_day });
        match (descriptor.physical_type(), descriptor.converted_type(), descriptor.logical_type_ref()) {
            (Type::BYTE_ARRAY, ConvertedType::DECIMAL, _) => None,
            (Type::BYTE_ARRAY, ..) => Some(CellType::Text),
            (Type::INT32, ConvertedType::DATE, _) | (Type::INT32, _, Some(LogicalType::Date)) => date(1.0),
            (Type::INT64, _, Some(LogicalType::Timestamp(time))) => date(match time.unit {
                TimeUnit::MILLIS => 86_400e3,
                TimeUnit::MICROS => 86_400e6,
                TimeUnit::NANOS => 86_400e9,
            }),
            (Type::INT64, ConvertedType::TIMESTAMP_MILLIS, _) => date(86_400e3),
            (Type::INT64, ConvertedType::TIMESTAMP_MICROS, _) => date(86_400e6),
            (
                Type::INT32 | Type::INT64,
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64,
                _,
            ) => Some(CellType::Unsigned),
            (
                Type::INT32 | Type::INT64,
                ConvertedType::INT_8 | ConvertedType::INT_16 | ConvertedType::INT_32 | ConvertedType::INT_64,
                _,
            )
            | (
                Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE,
                ConvertedType::NONE,
                None,
            ) => Some(CellType::Signed),
            // Decimals, times of the day, and later additions to Parquet.
            _ => None,
        }
    }

    /// Returns the decompressed size of a column chunk in bytes, as the file claims it.
    pub(super) fn decompressed(&self, chunk: GroupColumn) -> u64 {
        let group = self.reader.metadata().row_group(chunk.group);
        group.column(chunk.column).uncompressed_size().try_into().unwrap_or(0)
    }

    /// Returns the decompressed size of all column chunks in bytes, at least eight for each value:
    /// repeated values take almost no space in the file.
    pub(super) fn unpacked_bytes(&self) -> u64 {
        let of_group = |group: usize| {
            let values = self.rows(group).saturating_mul(size_of::<f64>() as u64);
            let chunks = (0..self.columns())
                .map(|column| self.decompressed(GroupColumn { group, column }).max(values));
            chunks.fold(0, u64::saturating_add)
        };
        (0..self.groups()).map(of_group).fold(0, u64::saturating_add)
    }

    /// Returns the error for a column whose type is not `wanted`.
    pub(super) fn other_type(&self, column: usize, wanted: &str) -> DataError {
        let descriptor = self.descriptor(column);
        let found = match (descriptor.max_rep_level(), descriptor.logical_type_ref()) {
            (0, Some(logical)) => format!("{} ({logical:?})", descriptor.physical_type()),
            (0, None) => match descriptor.converted_type() {
                ConvertedType::NONE => descriptor.physical_type().to_string(),
                converted => format!("{} ({converted})", descriptor.physical_type()),
            },
            _ => "a list".to_owned(),
        };
        let detail = format!("column `{}` is {found}, expected {wanted}", self.name(column));
        DataError::content(&self.file.name, RowLocation::Schema.to_string(), detail)
    }

    /// Fails if a page of the column chunk is too large: each page is decompressed as a whole.
    pub(super) fn expect_small_pages(&self, chunk: GroupColumn) -> Result<(), DataError> {
        let about = self.reader.metadata().row_group(chunk.group).column(chunk.column);
        if (0..=parquet_pages::MOST_BYTES.cast_signed()).contains(&about.uncompressed_size()) {
            return Ok(());
        }
        let begin = about.dictionary_page_offset().unwrap_or(about.data_page_offset());
        let largest = match (u64::try_from(begin), u64::try_from(about.compressed_size())) {
            (Ok(at), Ok(bytes)) => {
                parquet_pages::largest(OffsetReader { file: Arc::clone(&self.file), at }, bytes)
            }
            _ => Err(std::io::ErrorKind::InvalidData.into()),
        };
        let largest = largest.map_err(|error| self.unreadable(chunk, &error.into()))?;
        if largest <= parquet_pages::MOST_BYTES {
            return Ok(());
        }
        let detail = format!(
            "a page of column `{}` has {largest} bytes, more than the {} that are held in memory; write the file with \
             smaller pages, and split texts that are longer",
            self.name(chunk.column),
            parquet_pages::MOST_BYTES
        );
        Err(DataError::content(&self.file.name, format!("row group {}", chunk.group), detail))
    }

    /// Returns a reader for the values of a column chunk.
    pub(super) fn reader(&self, chunk: GroupColumn) -> Result<ColumnReader, DataError> {
        let group = self.reader.get_row_group(chunk.group);
        group
            .and_then(|group| group.get_column_reader(chunk.column))
            .map_err(|error| self.unreadable(chunk, &error))
    }

    /// Returns the next `count` values of a column chunk, the first of which is from row `row`. `Err` if
    /// a value is null, or there are too few.
    pub(super) fn values<T: DataType>(
        &self,
        chunk: GroupColumn,
        reader: &mut ColumnReaderImpl<T>,
        row: u64,
        count: usize,
    ) -> Result<Vec<T::T>, DataError> {
        let value = |(row, value): (u64, Option<T::T>)| {
            value.ok_or_else(|| self.wrong_value(chunk, row, "is null, expected a value; remove the row"))
        };
        (row..).zip(self.cells(chunk, reader, row, count)?).map(value).collect()
    }

    /// Returns the next `count` cells of a column chunk, with `None` for each null.
    pub(super) fn cells<T: DataType>(
        &self,
        chunk: GroupColumn,
        reader: &mut ColumnReaderImpl<T>,
        row: u64,
        count: usize,
    ) -> Result<Vec<Option<T::T>>, DataError> {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let (rows, ..) = reader
            .read_records(count, Some(&mut levels), None, &mut values)
            .map_err(|error| self.unreadable(chunk, &error))?;
        if rows < count {
            let problem = "ends before its row group does; is the file whole?";
            return Err(self.wrong_value(chunk, row + rows as u64, problem));
        }
        // Levels tell which rows have a value; a required column has no levels.
        let full = self.descriptor(chunk.column).max_def_level();
        if full == 0 {
            return Ok(values.into_iter().map(Some).collect());
        }
        let mut values = values.into_iter();
        Ok(levels.iter().map(|level| if *level < full { None } else { values.next() }).collect())
    }

    /// Returns the error for the value of a column chunk in row `row`; `detail` follows the name of the
    /// column.
    pub(super) fn wrong_value(&self, chunk: GroupColumn, row: u64, detail: &str) -> DataError {
        let detail = format!("column `{}` {detail}", self.name(chunk.column));
        DataError::content(&self.file.name, RowLocation::Row { group: chunk.group, row }.to_string(), detail)
    }

    fn unreadable(&self, chunk: GroupColumn, error: &ParquetError) -> DataError {
        let detail = format!(
            "column `{}` cannot be read ({error}); is the file whole, and compressed with snappy, gzip, zstd or not at all?",
            self.name(chunk.column)
        );
        DataError::content(&self.file.name, format!("row group {}", chunk.group), detail)
    }
}

/// The stored bytes of a Parquet file, as the Parquet library reads them.
struct ParquetSource(Arc<DataFile>);

impl Length for ParquetSource {
    fn len(&self) -> u64 {
        self.0.bytes
    }
}

impl ChunkReader for ParquetSource {
    type T = BufReader<OffsetReader>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(OffsetReader { file: Arc::clone(&self.0), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes =
            self.0.read_up_to(start, length as u64).map_err(|error| ParquetError::External(error.into()))?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at byte {start}")));
        }
        Ok(bytes.into())
    }
}

/// A reader of the stored bytes of a file, of which the next one is at offset `at`.
struct OffsetReader {
    file: Arc<DataFile>,
    at: u64,
}

impl Read for OffsetReader {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.file.read_up_to(self.at, into.len() as u64).map_err(std::io::Error::other)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }
}
