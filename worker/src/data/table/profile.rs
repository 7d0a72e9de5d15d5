//! Profiles of table columns: the type of each, and the categories of text columns.

use super::cell::{CellValue, RawCell, is_other_date, with_comma};
use super::classes::{ClassEncoding, LabelCounts};
use super::file::TableFile;
use super::row::RowLocation;
use crate::data::DataError;
use dtrain_recipes::Columns;
use std::collections::BTreeSet;

/// Limit on the number of categories of a column.
const MOST_CATEGORIES: usize = 256;

/// Limit on the length of a category's name, in bytes.
const MOST_BYTES: usize = 1024;

/// Fewest rows for a warning about a column that numbers the rows, or has a different text in each.
const MANY: u64 = 20;

/// The type of a column that a model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Date,
    /// The column has categories, in alphabetical order; an empty text stands for empty cells.
    Category(Vec<String>),
}

/// Name, type, empty cells and warning of a column that a model reads.
#[derive(Clone, Debug)]
pub(super) struct ColumnProfile {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Number of cells that are empty or have a word such as `n/a`.
    pub(super) empty: u64,
    /// Warning about the column, for the user.
    pub(super) warning: Option<String>,
}

/// Reads the columns `inputs` and the classes in all rows of `files`; returns the profiles of the columns
/// and the class encoding.
pub(super) fn profile_columns(
    files: &[TableFile],
    inputs: &[String],
    columns: &Columns,
) -> Result<(Vec<ColumnProfile>, ClassEncoding), DataError> {
    let mut seen: Vec<ColumnStatistics> = inputs.iter().map(|name| ColumnStatistics::new(name)).collect();
    let mut labels = LabelCounts::default();
    for file in files {
        let mut places = file.places(inputs, columns)?;
        places.push(file.target(&columns.target)?);
        let has_decimal_comma = file.has_decimal_comma();
        file.rows(&places, &mut |place, cells| {
            let (label, cells) = cells.split_last().expect("the target was asked for");
            for (seen, cell) in seen.iter_mut().zip(cells) {
                seen.add(*cell, has_decimal_comma, |detail| file.error_at(place, detail))?;
                if seen.odd.is_none() && seen.is_odd(*cell, has_decimal_comma) {
                    let text = cell.name().unwrap_or_default();
                    seen.odd = Some(UnparsedCell { text, file: file.file.name.clone(), place });
                }
            }
            labels.add(file, place, *label, &columns.target)
        })?;
    }
    let first = &files[0];
    if labels.is_empty() {
        return Err(first.wrong_header("there are columns but no row".to_owned()));
    }
    let profiles = seen.into_iter().map(|seen| seen.profile(first)).collect::<Result<_, _>>()?;
    Ok((profiles, labels.classes(&columns.target)?))
}

/// Statistics of a table column over the rows read so far.
struct ColumnStatistics {
    name: String,
    rows: u64,
    empty: u64,
    numbers: u64,
    dates: u64,
    others: u64,
    /// The first cell that is neither a number nor a date, with its place.
    odd: Option<UnparsedCell>,
    /// Distinct texts in the column, up to one more than the limit of categories.
    texts: BTreeSet<String>,
    /// Number of cells without any text.
    blank: u64,
    /// The first number with a decimal comma, as text; `point` is the first with a decimal point.
    comma: Option<String>,
    point: Option<String>,
    /// The number in the previous row, as long as the column counts up by one.
    count: Option<f64>,
    is_count: bool,
}

struct UnparsedCell {
    text: String,
    file: String,
    place: RowLocation,
}

impl ColumnStatistics {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            rows: 0,
            empty: 0,
            numbers: 0,
            dates: 0,
            others: 0,
            odd: None,
            texts: BTreeSet::new(),
            blank: 0,
            comma: None,
            point: None,
            count: None,
            is_count: true,
        }
    }

    /// Adds a cell to the statistics; `wrong` makes the error for a cell that no column may have.
    fn add(
        &mut self,
        cell: RawCell<'_>,
        has_decimal_comma: bool,
        wrong: impl Fn(String) -> DataError,
    ) -> Result<(), DataError> {
        self.rows += 1;
        let mut number = None;
        match cell.meaning(has_decimal_comma) {
            CellValue::Empty => self.empty += 1,
            CellValue::Number(value) => {
                self.numbers += 1;
                number = Some(value);
            }
            CellValue::Date(_) => self.dates += 1,
            CellValue::Other => {
                if let RawCell::Number(value) = cell {
                    return Err(wrong(format!(
                        "column `{}` has `{value}`, expected a finite number",
                        self.name
                    )));
                }
                self.others += 1;
            }
        }
        let is_next = number.is_some_and(|value| {
            value.fract() == 0.0 && self.count.is_none_or(|before| value - before == 1.0)
        });
        self.is_count &= is_next;
        self.count = number;
        match cell {
            RawCell::Empty => self.blank += 1,
            RawCell::Text(text) => self.keep(text, number.is_some() && has_decimal_comma),
            RawCell::Number(_) | RawCell::Flag(_) | RawCell::Date(_) => {}
        }
        Ok(())
    }

    /// Stores the text of a cell, which may be a category, or a number with a decimal comma if
    /// `may_have_comma`.
    fn keep(&mut self, text: &str, may_have_comma: bool) {
        if may_have_comma {
            if self.comma.is_none() && with_comma(text).is_some() {
                self.comma = Some(text.to_owned());
            } else if self.point.is_none() && text.contains('.') {
                self.point = Some(text.to_owned());
            }
        }
        if self.texts.len() <= MOST_CATEGORIES && !self.texts.contains(text) {
            let end = text.floor_char_boundary(MOST_BYTES + 1);
            self.texts.insert(text[..end].to_owned());
        }
    }

    fn is_odd(&self, cell: RawCell<'_>, has_decimal_comma: bool) -> bool {
        // The cell is counted already: it made the count 1.
        self.others == 1 && matches!(cell.meaning(has_decimal_comma), CellValue::Other)
    }

    /// Returns the profile of the column; `first` is the first file of the table, for messages.
    fn profile(self, first: &TableFile) -> Result<ColumnProfile, DataError> {
        let kind = self.kind(first)?;
        let warning = self.warning(&kind);
        let empty = match &kind {
            Kind::Category(_) => self.blank,
            Kind::Number | Kind::Date => self.empty,
        };
        Ok(ColumnProfile { name: self.name, kind, empty, warning })
    }

    fn kind(&self, first: &TableFile) -> Result<Kind, DataError> {
        let name = &self.name;
        if let (Some(comma), Some(point)) = (&self.comma, &self.point) {
            return Err(first.wrong_header(format!(
                "column `{name}` has numbers with a decimal comma (`{comma}`) and with a point (`{point}`); write all \
                 of them alike"
            )));
        }
        match (self.numbers, self.dates, self.others) {
            (_, 0, 0) => Ok(Kind::Number),
            (0, _, 0) => Ok(Kind::Date),
            (numbers, dates, others) if others > numbers + dates => self.category(first),
            (numbers, dates, _) => Err(self.mixed(numbers, dates, first)),
        }
    }

    /// Returns the error for a column that mixes numbers, dates and text.
    fn mixed(&self, numbers: u64, dates: u64, first: &TableFile) -> DataError {
        let name = &self.name;
        let ignore = format!("`data.ignore = [{name:?}]` leaves the column out");
        let Some(UnparsedCell { text, file, place }) = &self.odd else {
            let detail = format!(
                "column `{name}` has {numbers} numbers and {dates} dates, expected one of them; {ignore}"
            );
            return first.wrong_header(detail);
        };
        let (wanted, most) = if numbers >= dates { ("a finite number", numbers) } else { ("a date", dates) };
        let detail = format!(
            "column `{name}` has `{text}`, expected {wanted} as in {most} other rows; leave the cell empty where the \
             value is not known; {ignore}"
        );
        DataError::content(file, place.to_string(), detail)
    }

    fn category(&self, first: &TableFile) -> Result<Kind, DataError> {
        let name = &self.name;
        let ignore = format!("leave the column out with `data.ignore = [{name:?}]`");
        let examples = || {
            let some = self.texts.iter().take(3).map(|text| {
                let end = text.floor_char_boundary(40);
                format!("`{}{}`", &text[..end], if end < text.len() { "…" } else { "" })
            });
            some.collect::<Vec<_>>().join(", ")
        };
        let fail = |detail: String| Err(first.wrong_header(format!("column `{name}` {detail}")));
        if self.texts.iter().all(|text| is_other_date(text)) {
            let detail = "has dates such as";
            return fail(format!("{detail} {}; write dates as 2024-12-31, or {ignore}", examples()));
        }
        if self.texts.len() > MOST_CATEGORIES {
            let detail = format!("has more than {MOST_CATEGORIES} different texts, such as {}", examples());
            return fail(format!("{detail}; is it an id, or text to be read? {ignore}"));
        }
        if self.texts.iter().any(|text| text.len() > MOST_BYTES) {
            return fail(format!(
                "has texts of more than {MOST_BYTES} bytes, which are no categories; {ignore}"
            ));
        }
        let empty = (self.blank > 0).then(String::new);
        Ok(Kind::Category(empty.into_iter().chain(self.texts.iter().cloned()).collect()))
    }

    fn warning(&self, kind: &Kind) -> Option<String> {
        let name = &self.name;
        let lower = name.to_lowercase();
        let is_called_id = lower == "id" || lower.ends_with("_id") || lower.ends_with(" id");
        let what = match kind {
            Kind::Number | Kind::Date if self.empty == self.rows => "is empty in every row",
            Kind::Number if self.is_count && self.rows >= MANY => {
                "counts the rows; is it an index, as pandas writes it?"
            }
            Kind::Category(categories) if categories.len() as u64 == self.rows && self.rows >= MANY => {
                "has another text in each row; is it an id?"
            }
            Kind::Number | Kind::Category(_) if is_called_id => {
                "is called an id, from which nothing can be learned"
            }
            Kind::Number | Kind::Date | Kind::Category(_) => return None,
        };
        Some(format!("column `{name}` {what}; `data.ignore = [{name:?}]` leaves it out"))
    }
}
