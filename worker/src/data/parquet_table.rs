//! Tables in Parquet files.

use super::DataError;
use super::files::DataFile;
use super::parquet_file::{Chunk, ParquetFile};
use super::table::{Label, Place, Raw};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use std::sync::Arc;

/// Reads a file, one row group after the other. Without the column `target`, which may lack unless it is `needed`, the
/// rows have no labels.
pub(super) fn read(file: &Arc<DataFile>, target: &str, needed: bool) -> Result<Raw, DataError> {
    let parquet = ParquetFile::open(file)?;
    let target = match parquet.column(target, "data.target") {
        Ok(column) => Some(column),
        Err(error) if needed => return Err(error),
        Err(_) => None,
    };
    let columns: Vec<usize> = (0..parquet.columns()).filter(|column| Some(*column) != target).collect();
    if let Some(other) = columns.iter().find(|column| !parquet.is_number(**column)) {
        return Err(parquet.other_type(*other, "numbers, as in every column but `data.target`"));
    }
    if let Some(target) = target.filter(|target| !parquet.is_number(*target) && !parquet.is_text(*target)) {
        return Err(parquet.other_type(target, "numbers or text; `data.target` names the column"));
    }
    let names = columns.iter().map(|column| parquet.name(*column)).collect();
    let mut raw = Raw { columns: names, header: Place::Schema, values: Vec::new(), labels: Vec::new() };
    for group in 0..parquet.groups() {
        let rows = usize::try_from(parquet.rows(group)).expect("rows lie in memory");
        let begin = raw.values.len();
        raw.values.resize(begin + rows * columns.len(), 0.0);
        for (at, column) in columns.iter().enumerate() {
            let chunk = Chunk { group, column: *column };
            for (row, value) in numbers(&parquet, chunk)?.into_iter().enumerate() {
                raw.values[begin + row * columns.len() + at] = finite(&parquet, chunk, row, value)?;
            }
        }
        let texts = target.map(|column| labels(&parquet, Chunk { group, column })).transpose()?;
        for (row, text) in (0..).zip(texts.into_iter().flatten()) {
            raw.labels.push(Label { text, file: Arc::clone(file), place: Place::Row { group, row } });
        }
    }
    Ok(raw)
}

/// The value as it is computed with.
#[expect(clippy::cast_possible_truncation, reason = "models compute in f32")]
fn finite(parquet: &ParquetFile, chunk: Chunk, row: usize, value: f64) -> Result<f32, DataError> {
    let rounded = value as f32;
    if rounded.is_finite() {
        return Ok(rounded);
    }
    let detail = format!("has `{value}`, expected a finite number");
    Err(parquet.wrong_value(chunk, row as u64, &detail))
}

/// The classes of a row group as text.
fn labels(parquet: &ParquetFile, chunk: Chunk) -> Result<Vec<String>, DataError> {
    match parquet.reader(chunk)? {
        ColumnReader::ByteArrayColumnReader(reader) => {
            let texts = (0..).zip(all(parquet, chunk, reader)?).map(|(row, value)| {
                String::from_utf8(value.data().to_vec())
                    .map_err(|_| parquet.wrong_value(chunk, row, "is not UTF-8, expected text"))
            });
            texts.collect()
        }
        ColumnReader::BoolColumnReader(reader) => {
            Ok(all(parquet, chunk, reader)?.iter().map(ToString::to_string).collect())
        }
        _ => Ok(numbers(parquet, chunk)?.iter().map(ToString::to_string).collect()),
    }
}

/// The numbers of a row group; true is 1.
#[expect(clippy::cast_precision_loss, reason = "models compute in f32")]
fn numbers(parquet: &ParquetFile, chunk: Chunk) -> Result<Vec<f64>, DataError> {
    let is_unsigned = parquet.is_unsigned(chunk.column);
    Ok(match parquet.reader(chunk)? {
        ColumnReader::BoolColumnReader(reader) => {
            all(parquet, chunk, reader)?.into_iter().map(|value| f64::from(u8::from(value))).collect()
        }
        ColumnReader::Int32ColumnReader(reader) => {
            let number = |value: i32| if is_unsigned { value.cast_unsigned().into() } else { value.into() };
            all(parquet, chunk, reader)?.into_iter().map(number).collect()
        }
        ColumnReader::Int64ColumnReader(reader) => {
            let number = |value: i64| if is_unsigned { value.cast_unsigned() as f64 } else { value as f64 };
            all(parquet, chunk, reader)?.into_iter().map(number).collect()
        }
        ColumnReader::FloatColumnReader(reader) => {
            all(parquet, chunk, reader)?.into_iter().map(f64::from).collect()
        }
        ColumnReader::DoubleColumnReader(reader) => all(parquet, chunk, reader)?,
        ColumnReader::Int96ColumnReader(_)
        | ColumnReader::ByteArrayColumnReader(_)
        | ColumnReader::FixedLenByteArrayColumnReader(_) => {
            unreachable!("`read` takes columns of numbers only")
        }
    })
}

/// All values of a chunk.
fn all<T: DataType>(
    parquet: &ParquetFile,
    chunk: Chunk,
    mut reader: ColumnReaderImpl<T>,
) -> Result<Vec<T::T>, DataError> {
    let rows = usize::try_from(parquet.rows(chunk.group)).expect("rows lie in memory");
    parquet.values(chunk, &mut reader, 0, rows)
}
