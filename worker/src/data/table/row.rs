//! Rows of a table file, in CSV or Parquet.

use super::cell::RawCell;
use crate::data::DataError;
use std::fmt;

/// The place of a problem in a CSV or Parquet file.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) enum RowLocation {
    /// A line of a CSV file, counted from 1.
    Line(u64),
    /// The schema of a Parquet file: the names and types of its columns.
    Schema,
    /// A row in a row group of a Parquet file, both counted from 0.
    Row { group: usize, row: u64 },
}

impl fmt::Display for RowLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Schema => f.write_str("the schema"),
            Self::Row { group, row } => write!(f, "row group {group}, row {row}"),
        }
    }
}

/// A callback that is given each row of a file: its place and the requested cells.
pub(super) type RowVisitor<'a> = dyn FnMut(RowLocation, &[RawCell<'_>]) -> Result<(), DataError> + 'a;
