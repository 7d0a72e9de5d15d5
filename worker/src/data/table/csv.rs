//! CSV tables: a header, then rows of fields separated by commas, semicolons, tabs or vertical bars.

use super::cell::RawCell;
use super::row::{RowLocation, RowVisitor};
use crate::data::DataError;
use crate::data::files::DataFile;
use std::io::Read;

/// Possible field separators, in the order in which they are tried.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Number of bytes at the beginning of a file from which the separator is found.
const LOOKED_AT: u64 = 1 << 18;

/// Number of rows from which the separator is found.
const ROWS: usize = 50;

/// Limit on the length of a line, in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Returns the field separator of a file, and the names of its columns.
pub(super) fn head(file: &DataFile) -> Result<(u8, Vec<String>), DataError> {
    let mut beginning = Vec::new();
    file.reader()?.take(LOOKED_AT).read_to_end(&mut beginning).map_err(|error| file.unreadable(error))?;
    let separator = separator(&beginning);
    let mut reader = reader(&beginning[..], separator);
    let header = reader.headers().map_err(|error| csv_error(file, &error))?;
    Ok((separator, header.iter().map(str::to_owned).collect()))
}

/// Returns the field separator that gives the first rows as many fields as the header, and the most
/// fields.
fn separator(beginning: &[u8]) -> u8 {
    let fields = |separator: u8| {
        let mut records = reader(beginning, separator);
        let columns = records.headers().map_or(0, csv::StringRecord::len);
        // The last row may be incomplete.
        let rows: Vec<usize> =
            records.records().take(ROWS).map(|row| row.map_or(0, |row| row.len())).collect();
        let whole =
            if beginning.len() as u64 == LOOKED_AT { rows.len().saturating_sub(1) } else { rows.len() };
        (columns > 1 && rows[..whole].iter().all(|fields| *fields == columns), columns)
    };
    // `max_by_key` returns the last of equals.
    SEPARATORS.into_iter().rev().max_by_key(|separator| fields(*separator)).unwrap_or(b',')
}

fn reader<R: Read>(from: R, separator: u8) -> csv::Reader<R> {
    csv::ReaderBuilder::new().delimiter(separator).trim(csv::Trim::All).from_reader(from)
}

/// Calls `visit` for every row of a CSV file, with the cells of `columns`.
pub(super) fn rows(
    file: &DataFile,
    separator: u8,
    columns: &[usize],
    visit: &mut RowVisitor<'_>,
) -> Result<(), DataError> {
    let mut reader = reader(ShortLines { from: file.reader()?, line: 1, bytes: 0 }, separator);
    // The number of columns is compared with that of every row.
    reader.headers().map_err(|error| csv_error(file, &error))?;
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| csv_error(file, &error))? {
        let line = record.position().map_or(0, csv::Position::line);
        let cells: Vec<RawCell> = columns.iter().map(|column| RawCell::of(&record[*column])).collect();
        visit(RowLocation::Line(line), &cells)?;
    }
    Ok(())
}

/// A reader that fails at a line longer than [`MOST_BYTES`]: the fields of a row are held in memory.
struct ShortLines<R> {
    from: R,
    /// Number of the current line, counted from 1.
    line: u64,
    /// Number of bytes read of the current line.
    bytes: usize,
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.from.read(into)?;
        for part in into[..count].split_inclusive(|byte| *byte == b'\n') {
            self.bytes += part.len();
            if self.bytes > MOST_BYTES {
                return Err(std::io::Error::other(LongLine(self.line)));
            }
            if part.ends_with(b"\n") {
                self.line += 1;
                self.bytes = 0;
            }
        }
        Ok(count)
    }
}

/// The error for a line that is too long; has its number.
#[derive(Debug, thiserror::Error)]
#[error("the line is longer than {} MiB; is a quote missing, or is this no table?", MOST_BYTES >> 20)]
struct LongLine(u64);

fn csv_error(file: &DataFile, error: &csv::Error) -> DataError {
    let line = error.position().map_or(1, csv::Position::line);
    let detail = match error.kind() {
        csv::ErrorKind::Io(source) => {
            let long = source.get_ref().and_then(|error| error.downcast_ref::<LongLine>());
            if let Some(long) = long {
                return DataError::content(&file.name, format!("line {}", long.0), long.to_string());
            }
            return file.unreadable(std::io::Error::new(source.kind(), source.to_string()));
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!(
                "the row has {len} fields, the header {expected_len}; is a field with a separator in quotes?"
            )
        }
        csv::ErrorKind::Utf8 { .. } => "the row is not UTF-8; save the table again as UTF-8".to_owned(),
        _ => error.to_string(),
    };
    DataError::content(&file.name, format!("line {line}"), detail)
}
