//! Comma-separated values with a header.

use super::DataError;
use super::files::DataFile;
use super::table::{Label, Place, Raw};
use std::sync::Arc;

/// Reads a file. Without the column `target`, which may lack unless it is `needed`, the rows have no labels.
pub(super) fn read(file: &Arc<DataFile>, target: &str, needed: bool) -> Result<Raw, DataError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file.reader()?);
    let header = reader.headers().map_err(|error| csv_error(file, &error))?.clone();
    let at = header.iter().position(|name| name == target);
    if at.is_none() && needed {
        let found = header.iter().collect::<Vec<_>>().join(", ");
        let detail = format!("there is no column `{target}`; the columns are: {found}");
        return Err(DataError::content(&file.name, "line 1", detail));
    }
    let columns =
        header.iter().enumerate().filter(|(column, _)| Some(*column) != at).map(|(_, name)| name.to_owned());
    let columns = columns.collect();
    let mut raw = Raw { columns, header: Place::Line(1), values: Vec::new(), labels: Vec::new() };
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(file, &error))?;
        let line = record.position().map_or(0, csv::Position::line);
        for (column, field) in record.iter().enumerate().filter(|(column, _)| Some(*column) != at) {
            let value = field.parse::<f32>().ok().filter(|value| value.is_finite());
            raw.values.push(value.ok_or_else(|| {
                let name = header.get(column).unwrap_or("?");
                let detail = format!("column `{name}` has `{field}`, expected a finite number");
                DataError::content(&file.name, format!("line {line}"), detail)
            })?);
        }
        if let Some(at) = at {
            let (text, place) = (record[at].to_owned(), Place::Line(line));
            raw.labels.push(Label { text, file: Arc::clone(file), place });
        }
    }
    Ok(raw)
}

fn csv_error(file: &DataFile, error: &csv::Error) -> DataError {
    if let csv::ErrorKind::Io(source) = error.kind() {
        return file.unreadable(std::io::Error::new(source.kind(), source.to_string()));
    }
    let line = error.position().map_or(1, csv::Position::line);
    DataError::content(&file.name, format!("line {line}"), error.to_string())
}
