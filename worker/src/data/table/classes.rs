//! Classes of the rows of a table, and their encoding as numbers.

use super::cell::RawCell;
use super::file::TableFile;
use super::row::RowLocation;
use crate::data::DataError;
use std::collections::{BTreeMap, BTreeSet};

/// Limit on the number of classes. [`MOST_BYTES`] limits the length of a class name.
const MOST_CLASSES: usize = 65_536;
const MOST_BYTES: usize = 1024;

/// The encoding of the labels of a table as class numbers.
pub(super) enum ClassEncoding {
    /// The labels are class numbers already.
    Integers,
    /// The labels are names of classes, which are numbered in alphabetical order.
    Sorted(BTreeMap<String, u32>),
}

/// Counts of the labels in a training table, from which their encoding follows.
#[derive(Default)]
pub(super) struct LabelCounts {
    names: BTreeSet<String>,
    integers: u64,
    others: u64,
    /// The first label that is not an integer, with the name of its file and its position.
    odd: Option<(String, String, RowLocation)>,
}

impl LabelCounts {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Counts the label in `cell`, which is in the column `target`; `Err` if there are too many classes
    /// or the label cannot name one.
    pub(super) fn add(
        &mut self,
        file: &TableFile,
        place: RowLocation,
        cell: RawCell<'_>,
        target: &str,
    ) -> Result<(), DataError> {
        let name = label(file, place, cell, target)?;
        if name.parse::<u32>().is_ok() {
            self.integers += 1;
        } else {
            self.others += 1;
            if self.odd.is_none() {
                self.odd = Some((name.clone(), file.file.name.clone(), place));
            }
        }
        if !self.names.contains(&name) {
            if self.names.len() == MOST_CLASSES || name.len() > MOST_BYTES {
                let detail = format!(
                    "column `{target}` has more than {MOST_CLASSES} classes, or one of more than {MOST_BYTES} bytes; \
                     `data.target` names the column with the class"
                );
                return Err(file.error_at(place, detail));
            }
            self.names.insert(name);
        }
        Ok(())
    }

    /// Returns the class encoding for the counted labels: integers stay as they are, otherwise classes
    /// are numbered by name. `Err` names a stray text among integers.
    pub(super) fn classes(self, target: &str) -> Result<ClassEncoding, DataError> {
        match self.odd {
            None => Ok(ClassEncoding::Integers),
            Some((name, file, place)) if self.integers >= self.others => {
                let detail = format!(
                    "class `{name}` of column `{target}` is not an integer from 0 on, as {} others are; correct it, \
                     remove the row, or write no class as an integer",
                    self.integers
                );
                Err(DataError::content(&file, place.to_string(), detail))
            }
            Some(_) => Ok(ClassEncoding::Sorted(self.names.into_iter().zip(0..).collect())),
        }
    }
}

/// Returns the label in a cell of the column `target`; `Err` if it is empty or a date.
fn label(file: &TableFile, place: RowLocation, cell: RawCell<'_>, target: &str) -> Result<String, DataError> {
    cell.name().ok_or_else(|| {
        let found = match cell {
            RawCell::Date(_) => {
                "has a date, expected a class: text or an integer; `data.target` names the column"
            }
            RawCell::Empty | RawCell::Number(_) | RawCell::Flag(_) | RawCell::Text(_) => {
                "is empty, expected a class; remove the row"
            }
        };
        file.error_at(place, format!("column `{target}` {found}"))
    })
}

impl ClassEncoding {
    /// Creates the class encoding of a trained model from the names of its classes; `None` means
    /// integers.
    pub(super) fn of(names: Option<&[String]>) -> Self {
        match names {
            None => Self::Integers,
            Some(names) => Self::Sorted(names.iter().cloned().zip(0..).collect()),
        }
    }

    /// Returns the names of the classes in the order of their numbers; `None` if the labels are numbers.
    pub(super) fn list(&self) -> Option<Vec<String>> {
        match self {
            Self::Integers => None,
            Self::Sorted(names) => Some(names.keys().cloned().collect()),
        }
    }

    /// Returns the class of the label in `cell`; `Err` unless it is one of the model's `classes` classes.
    pub(super) fn class(
        &self,
        (file, place): (&TableFile, RowLocation),
        cell: RawCell<'_>,
        (target, classes): (&str, u32),
    ) -> Result<u32, DataError> {
        let bad = |detail: String| file.error_at(place, detail);
        let text = label(file, place, cell, target)?;
        let class = match self {
            Self::Integers => text.parse().map_err(|_| {
                bad(format!("class `{text}` is not an integer, as those of the training data are"))
            })?,
            Self::Sorted(names) => *names
                .get(&text)
                .ok_or_else(|| bad(format!("class `{text}` does not occur in the training data")))?,
        };
        if class < classes {
            return Ok(class);
        }
        let found = match self {
            Self::Integers => format!("class {class}; integers are used as they are, from 0 on"),
            Self::Sorted(names) => {
                format!("class `{text}`, number {class} of {} in alphabetical order", names.len())
            }
        };
        Err(bad(format!(
            "the model has {classes} classes, found {found}; change `model.classes` or the labels"
        )))
    }
}
