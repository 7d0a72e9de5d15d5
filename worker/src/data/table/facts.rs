//! Facts about the table of a recipe, for the user.

use super::file::{TableFile, TabularFormat};
use super::profile::{ColumnProfile, Kind};
use super::{encoding, open_all, profile_and_classes};
use crate::data::{DataError, files};
use dtrain_recipes::Columns;
use std::path::Path;

/// Facts about the columns of the table that a recipe trains on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFacts {
    /// Name of the field separator; `None` for Parquet.
    pub separator: Option<&'static str>,
    /// Facts about the columns of the first file, in its order.
    pub columns: Vec<ColumnFacts>,
    /// Number of model inputs that a row becomes.
    pub inputs: u64,
    /// Warnings about columns, for the user.
    pub warnings: Vec<String>,
}

/// Facts about one column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnFacts {
    /// Name of the column, as in the file.
    pub name: String,
    /// Type of the column's content, or its role.
    pub kind: ColumnKind,
    /// Number of cells without a value.
    pub empty: u64,
}

/// The type of a column's content, or its role in the recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// The column has numbers.
    Number,
    /// The column has dates, which a model reads as days.
    Date,
    /// The column has text of these categories; an empty text stands for empty cells.
    Category(Vec<String>),
    /// The column has the class to predict.
    Class,
    /// The recipe leaves the column out.
    Ignored,
}

/// Reads all rows of the training files and returns facts about their columns.
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
