//! Reads tables of trainings from CSV.

use std::collections::BTreeMap;

/// One row of a table of trainings, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRow {
    /// Identifier of the row: its cell in the column `id`, or its number.
    pub id: String,
    cells: BTreeMap<String, String>,
}

/// Reasons why a table of trainings cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The text is not valid CSV.
    #[error("it is not a CSV table")]
    Csv(#[from] csv::Error),
    /// The header lacks a required column.
    #[error("its header has no column `{column}`; wanted at least {wanted}")]
    Column {
        /// Name of the missing column.
        column: &'static str,
        /// Names of all required columns.
        wanted: String,
    },
}

/// Columns without which no row can be priced.
pub const NEEDED: [&str; 7] = ["hardware", "num_gpus", "layers", "hidden", "heads", "seq", "global_batch"];

/// Reads the rows of a CSV table with a header.
pub fn read_table(table: &[u8]) -> Result<Vec<TableRow>, TableError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(table);
    let header = reader.headers()?.clone();
    if let Some(column) = NEEDED.into_iter().find(|column| !header.iter().any(|name| name == *column)) {
        return Err(TableError::Column { column, wanted: NEEDED.join(", ") });
    }
    let row = |(number, record): (usize, Result<csv::StringRecord, csv::Error>)| {
        let cells: BTreeMap<String, String> =
            header.iter().zip(&record?).map(|(name, cell)| (name.to_owned(), cell.to_owned())).collect();
        Ok(TableRow::of(cells, number + 1))
    };
    reader.records().enumerate().map(row).collect()
}

impl TableRow {
    /// Creates a row from `cells` by column; without an `id` it is named after its number.
    pub fn of(cells: BTreeMap<String, String>, number: usize) -> Self {
        let id = cells.get("id").filter(|id| !id.is_empty()).cloned();
        Self { id: id.unwrap_or_else(|| format!("row {number}")), cells }
    }

    /// Returns the cell in `column`; empty if the table lacks the column.
    pub fn text(&self, column: &str) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    /// Returns the cell in `column` in lower case.
    pub fn lower(&self, column: &str) -> String {
        self.text(column).to_lowercase()
    }

    /// Returns the cell in `column` as a number above 0; `None` if it is none.
    pub fn positive(&self, column: &str) -> Option<f64> {
        self.number(column).filter(|value| *value > 0.0)
    }

    /// Returns the cell in `column` as a finite number; `None` if it is none.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|value: &f64| value.is_finite())
    }
}

/// Returns `true` if any of `words` occurs in `text`.
pub(super) fn has_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// Returns `true` if `text` contains `word` delimited by characters other than letters and digits.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_what_every_row_needs_is_refused_by_the_column() {
        let error = read_table(b"hardware,num_gpus,layers\nH100,8,32\n").expect_err("hidden is missing");
        assert!(error.to_string().contains("`hidden`"), "{error}");
    }

    #[test]
    fn a_row_without_an_id_has_its_number_and_short_rows_have_blanks() {
        let table = b"hardware,num_gpus,layers,hidden,heads,seq,global_batch\nH100,8,32\n";
        let rows = read_table(table).expect("the header is whole");
        assert_eq!(rows[0].id, "row 1");
        assert_eq!((rows[0].positive("layers"), rows[0].positive("seq")), (Some(32.0), None));
    }
}
