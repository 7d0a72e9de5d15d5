//! Table files, in CSV or Parquet.

use super::row::{RowLocation, RowVisitor};
use super::{csv, parquet};
use crate::data::DataError;
use crate::data::files::DataFile;
use crate::data::parquet_file::ParquetFile;
use dtrain_recipes::Columns;
use std::collections::HashSet;
use std::sync::Arc;

/// The format of a table's files: CSV or Parquet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) enum TabularFormat {
    Csv,
    Parquet,
}

/// A CSV or Parquet file, opened for reading its rows.
pub(super) struct TableFile {
    pub(super) file: Arc<DataFile>,
    /// Names of the columns; a column without a name is called by its number.
    names: Vec<String>,
    contents: FormatReader,
}

enum FormatReader {
    Csv { separator: u8 },
    Parquet(ParquetFile),
}

impl TableFile {
    /// Opens a table file and reads the names of its columns.
    pub(super) fn open(file: &Arc<DataFile>, format: TabularFormat) -> Result<Self, DataError> {
        let (names, contents) = match format {
            TabularFormat::Csv => {
                let (separator, names) = csv::head(file)?;
                (names, FormatReader::Csv { separator })
            }
            TabularFormat::Parquet => {
                let parquet = ParquetFile::open(file)?;
                let names = (0..parquet.columns()).map(|column| parquet.name(column)).collect();
                (names, FormatReader::Parquet(parquet))
            }
        };
        let named =
            |(number, name): (usize, String)| if name.is_empty() { format!("column {number}") } else { name };
        let names: Vec<String> = (1..).zip(names).map(named).collect();
        let opened = Self { file: Arc::clone(file), names, contents };
        let mut seen = HashSet::new();
        if let Some(twice) = opened.names.iter().find(|name| !seen.insert(*name)) {
            return Err(opened.wrong_header(format!("column `{twice}` occurs twice; give each its own name")));
        }
        Ok(opened)
    }

    /// Returns the names of all columns of the file.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the names of the columns that a model reads, which are all but the class and the ignored
    /// ones.
    pub(super) fn inputs(&self, columns: &Columns) -> Result<Vec<String>, DataError> {
        if let Some(missing) = columns.ignore.iter().find(|name| !self.names.contains(name)) {
            let list = self.names.join(", ");
            let detail =
                format!("`data.ignore` names `{missing}`, which is no column; the columns are: {list}");
            return Err(self.wrong_header(detail));
        }
        let is_input = |name: &&String| **name != columns.target && !columns.ignore.contains(name);
        let inputs: Vec<String> = self.names.iter().filter(is_input).cloned().collect();
        if inputs.is_empty() {
            let detail =
                format!("there is no column to learn from besides `{}`{}", columns.target, self.separated());
            return Err(self.wrong_header(detail));
        }
        Ok(inputs)
    }

    /// Returns the indices of the columns called `inputs`, in this order. `Err` if the file lacks one of
    /// them or has further columns.
    pub(super) fn places(&self, inputs: &[String], columns: &Columns) -> Result<Vec<usize>, DataError> {
        if let Some(missing) = inputs.iter().find(|name| !self.names.contains(name)) {
            let detail = format!(
                "column `{missing}` is missing, which the training data has; the columns are: {}{}",
                self.names.join(", "),
                self.separated()
            );
            return Err(self.wrong_header(detail));
        }
        let is_known = |name: &&String| {
            inputs.contains(name) || **name == columns.target || columns.ignore.contains(name)
        };
        if let Some(more) = self.names.iter().find(|name| !is_known(name)) {
            let detail = format!(
                "column `{more}` is not in the training data; remove it, or name it in `data.ignore`"
            );
            return Err(self.wrong_header(detail));
        }
        Ok(inputs.iter().filter_map(|name| self.place(name)).collect())
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }

    /// Returns the index of the column called `target`, which has the class.
    pub(super) fn target(&self, target: &str) -> Result<usize, DataError> {
        self.place(target).ok_or_else(|| {
            let found = self.names.join(", ");
            let detail = format!(
                "there is no column `{target}`; the columns are: {found}{}; set `data.target`",
                self.separated()
            );
            self.wrong_header(detail)
        })
    }

    /// Formats the field separator for a message; empty for Parquet.
    fn separated(&self) -> String {
        self.separator().map_or_else(String::new, |name| format!(" (separated by {name})"))
    }

    /// Returns the name of the field separator; `None` for Parquet.
    pub(super) fn separator(&self) -> Option<&'static str> {
        match self.contents {
            FormatReader::Csv { separator: b';' } => Some("semicolons"),
            FormatReader::Csv { separator: b'\t' } => Some("tabs"),
            FormatReader::Csv { separator: b'|' } => Some("vertical bars"),
            FormatReader::Csv { .. } => Some("commas"),
            FormatReader::Parquet(_) => None,
        }
    }

    /// Returns `true` if `1,5` counts as a number in this file.
    pub(super) fn has_decimal_comma(&self) -> bool {
        matches!(self.contents, FormatReader::Csv { separator } if separator != b',')
    }

    /// Returns the error for a wrong set of column names.
    pub(super) fn wrong_header(&self, detail: String) -> DataError {
        let place = match self.contents {
            FormatReader::Csv { .. } => RowLocation::Line(1),
            FormatReader::Parquet(_) => RowLocation::Schema,
        };
        self.error_at(place, detail)
    }

    /// Returns the error for a wrong value in a row; `detail` describes it.
    pub(super) fn error_at(&self, place: RowLocation, detail: impl Into<String>) -> DataError {
        DataError::content(&self.file.name, place.to_string(), detail)
    }

    /// Calls `visit` for every row of the file, with the cells of `columns`, in this order.
    pub(super) fn rows(&self, columns: &[usize], visit: &mut RowVisitor<'_>) -> Result<(), DataError> {
        match &self.contents {
            FormatReader::Csv { separator } => csv::rows(&self.file, *separator, columns, visit),
            FormatReader::Parquet(parquet) => parquet::rows(parquet, columns, visit),
        }
    }
}
