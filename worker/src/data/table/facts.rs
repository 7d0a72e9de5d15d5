//! Facts about a table, for a user.

use super::file::{TableFile, TabularFormat};
use super::profile::{ColumnProfile, Kind};
use super::{encoding, open_all, profile_and_classes};
use crate::data::{DataError, files};
use dtrain_recipes::Columns;
use std::path::Path;

/// The columns of the table that a recipe trains on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFacts {
    /// Name of the separator of fields; `None` for Parquet.
    pub separator: Option<&'static str>,
    /// Columns of the first file, in order.
    pub columns: Vec<ColumnFacts>,
    /// Values that a model reads of a row.
    pub inputs: u64,
    /// Warnings about columns.
    pub warnings: Vec<String>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Name of the column.
    pub name: String,
    /// Type of the column's content.
    pub kind: ColumnKind,
    /// Cells without a value.
    pub empty: u64,
}

/// The type of a column's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Numbers.
    Number,
    /// Dates, which a model reads as days.
    Date,
    /// Text with these categories; an empty text stands for empty cells.
    Category(Vec<String>),
    /// The class to predict.
    Class,
    /// A column that the recipe leaves out.
    Ignored,
}

/// Reads all rows of the training files and returns facts about the columns.
pub(in crate::data) fn facts(
    train: &[String],
    (format, columns): (TabularFormat, &Columns),
    root: &Path,
) -> Result<TableFacts, DataError> {
    let files = open_all(&files::find(train, root)?, format)?;
    let (profiles, _) = profile_and_classes(&files, columns)?;
    let first: &TableFile = &files[0];
    let of = |name: &String| {
        let profile = profiles.iter().find(|profile| profile.name == *name);
        let kind = match profile.map(|profile| &profile.kind) {
            Some(Kind::Number) => ColumnKind::Number,
            Some(Kind::Date) => ColumnKind::Date,
            Some(Kind::Category(categories)) => ColumnKind::Category(categories.clone()),
            None if *name == columns.target => ColumnKind::Class,
            None => ColumnKind::Ignored,
        };
        ColumnFacts { name: name.clone(), kind, empty: profile.map_or(0, |profile| profile.empty) }
    };
    Ok(TableFacts {
        separator: first.separator(),
        columns: first.names().iter().map(of).collect(),
        inputs: encoding::width(&encoding::columns(&profiles)) as u64,
        warnings: profiles.into_iter().filter_map(|ColumnProfile { warning, .. }| warning).collect(),
    })
}
