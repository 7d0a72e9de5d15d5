//! Encoding of the cells of a table as numbers: first as the stored ones, then as the inputs of a model.

use super::cell::{CellValue, RawCell};
use super::profile::{ColumnProfile, Kind};
use dtrain_protocol::{Column, Encoding};
use std::collections::HashMap;

/// An encoder of cells as the numbers that a table stores: a value, the index of a category, or
/// not-a-number for an empty cell.
pub(super) struct CellEncoder(Vec<ColumnEncoder>);

enum ColumnEncoder {
    Number,
    Date,
    /// The column has categories; maps the text of each to its index.
    Category(HashMap<String, f64>),
}

impl CellEncoder {
    pub(super) fn of(columns: &[Column]) -> Self {
        let kept = |column: &Column| match &column.encoding {
            Encoding::Number { date: false, .. } => ColumnEncoder::Number,
            Encoding::Number { date: true, .. } => ColumnEncoder::Date,
            Encoding::Category { categories } => {
                ColumnEncoder::Category(categories.iter().cloned().zip((0..).map(f64::from)).collect())
            }
        };
        Self(columns.iter().map(kept).collect())
    }

    /// Returns the stored number for a cell of column `column`. `Err` names the expected content.
    pub(super) fn keep(
        &self,
        column: usize,
        cell: RawCell<'_>,
        has_decimal_comma: bool,
    ) -> Result<f64, &'static str> {
        match &self.0[column] {
            ColumnEncoder::Category(places) => {
                let place = match cell {
                    RawCell::Text(text) => places.get(text),
                    RawCell::Empty => places.get(""),
                    RawCell::Number(_) | RawCell::Flag(_) => places.get(&cell.name().unwrap_or_default()),
                    RawCell::Date(_) => None,
                };
                Ok(place.copied().unwrap_or(f64::NAN))
            }
            ColumnEncoder::Number => match cell.meaning(has_decimal_comma) {
                CellValue::Number(value) => Ok(value),
                CellValue::Empty => Ok(f64::NAN),
                CellValue::Date(_) | CellValue::Other => Err("a finite number"),
            },
            ColumnEncoder::Date => match cell.meaning(has_decimal_comma) {
                CellValue::Date(days) => Ok(days),
                CellValue::Empty => Ok(f64::NAN),
                CellValue::Number(_) | CellValue::Other => Err("a date such as 2024-12-31"),
            },
        }
    }
}

/// Returns the encodings of the profiled columns, whose numbers are not standardized yet.
pub(super) fn columns(profiles: &[ColumnProfile]) -> Vec<Column> {
    let column = |profile: &ColumnProfile| {
        let encoding = match &profile.kind {
            Kind::Number => Encoding::Number { mean: 0.0, deviation: 1.0, date: false },
            Kind::Date => Encoding::Number { mean: 0.0, deviation: 1.0, date: true },
            Kind::Category(categories) => Encoding::Category { categories: categories.clone() },
        };
        Column { name: profile.name.clone(), encoding }
    };
    profiles.iter().map(column).collect()
}

/// Returns the number of model inputs that the columns of a row become.
pub(super) fn width(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.encoding.width()).sum()
}

/// Appends the model inputs for the stored row `kept`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "models compute in f32; the place of a category is a small whole number"
)]
pub(super) fn encode(columns: &[Column], kept: &[f64], into: &mut Vec<f32>) {
    for (column, value) in columns.iter().zip(kept) {
        match &column.encoding {
            Encoding::Number { .. } if value.is_nan() => into.push(0.0),
            Encoding::Number { mean, deviation, .. } => into.push(((value - mean) / deviation) as f32),
            Encoding::Category { categories } => {
                let begin = into.len();
                into.resize(begin + categories.len(), 0.0);
                if !value.is_nan() {
                    into[begin + *value as usize] = 1.0;
                }
            }
        }
    }
}
