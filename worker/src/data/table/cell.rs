//! Cells of a table, as stored and as interpreted.

use chrono::{DateTime, NaiveDate, NaiveDateTime};

/// Words that stand for an empty cell in a column of numbers or dates, in lower case.
const MISSING: [&str; 6] = ["na", "n/a", "nan", "null", "none", "?"];

/// A cell of a table as its file stores it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RawCell<'a> {
    Empty,
    Number(f64),
    Flag(bool),
    /// A date, in days since 1970-01-01 UTC.
    Date(f64),
    /// Text that is not empty, without blanks around it.
    Text(&'a str),
}

/// The interpretation of a cell as a number or date.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum CellValue {
    Empty,
    Number(f64),
    /// A date, in days since 1970-01-01 UTC.
    Date(f64),
    Other,
}

impl<'a> RawCell<'a> {
    /// Creates a cell from its text, which may be empty.
    pub(super) fn of(text: &'a str) -> Self {
        match text.trim() {
            "" => Self::Empty,
            text => Self::Text(text),
        }
    }

    /// Interprets the cell as a number or date. `1,5` is a number if `has_decimal_comma` is set.
    pub(super) fn meaning(self, has_decimal_comma: bool) -> CellValue {
        match self {
            Self::Empty => CellValue::Empty,
            Self::Number(value) if value.is_nan() => CellValue::Empty,
            Self::Number(value) if value.is_finite() => CellValue::Number(value),
            Self::Number(_) => CellValue::Other,
            Self::Flag(value) => CellValue::Number(f64::from(u8::from(value))),
            Self::Date(days) => CellValue::Date(days),
            Self::Text(text) => parse_text(text, has_decimal_comma),
        }
    }

    /// Returns the category or class that the cell names; `None` for an empty cell and for a date.
    pub(super) fn name(self) -> Option<String> {
        match self {
            Self::Empty | Self::Date(_) => None,
            Self::Number(value) => (!value.is_nan()).then(|| value.to_string()),
            Self::Flag(value) => Some(value.to_string()),
            Self::Text(text) => Some(text.to_owned()),
        }
    }
}

fn parse_text(text: &str, has_decimal_comma: bool) -> CellValue {
    if MISSING.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return CellValue::Empty;
    }
    let number = text.parse::<f64>().ok().or_else(|| with_comma(text).filter(|_| has_decimal_comma));
    match (number, date(text)) {
        (Some(number), _) if number.is_finite() => CellValue::Number(number),
        (None, Some(days)) => CellValue::Date(days),
        (Some(_) | None, _) => CellValue::Other,
    }
}

/// Parses a number with a decimal comma; `None` if the text is not one.
pub(super) fn with_comma(text: &str) -> Option<f64> {
    let is_plain = text.matches(',').count() == 1 && !text.contains('.');
    is_plain.then(|| text.replace(',', ".").parse().ok()).flatten()
}

/// Parses an ISO 8601 date, with or without a time of the day, and returns it as days since 1970-01-01
/// UTC.
fn date(text: &str) -> Option<f64> {
    // Most cells are no dates: those of another shape are skipped early.
    let bytes = text.as_bytes();
    if bytes.len() < 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return Some(days(date.and_hms_opt(0, 0, 0)?));
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(days(time.naive_utc()));
    }
    let formats = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
    formats.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok()).map(days)
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of some centuries are below 2^53")]
fn days(time: NaiveDateTime) -> f64 {
    time.and_utc().timestamp_micros() as f64 / 86_400e6
}

/// Returns `true` if a text looks like a date in another format than ISO 8601, such as `31.12.2024` or
/// `12/31/24`.
pub(super) fn is_other_date(text: &str) -> bool {
    let day = text.split([' ', 'T']).next().unwrap_or_default();
    let is_number = |part: &str| matches!(part.len(), 1 | 2 | 4) && part.bytes().all(|b| b.is_ascii_digit());
    ['.', '/', '-'].iter().any(|mark| {
        let parts: Vec<&str> = day.split(*mark).collect();
        parts.len() == 3
            && parts.iter().all(|part| is_number(part))
            && (parts[0].len() == 4 || parts[2].len() > 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> CellValue {
        RawCell::of(text).meaning(true)
    }

    #[test]
    fn numbers_dates_and_empty_cells_are_told_apart() {
        assert_eq!(meaning(" 1e3 "), CellValue::Number(1000.0));
        assert_eq!(meaning("1700000001"), CellValue::Number(1_700_000_001.0));
        assert_eq!(meaning("-1,5"), CellValue::Number(-1.5));
        assert_eq!(RawCell::of("-1,5").meaning(false), CellValue::Other);
        for missing in ["", "NA", "n/a", "NaN", "NULL", "None", "?"] {
            assert_eq!(meaning(missing), CellValue::Empty, "{missing}");
        }
        for other in ["inf", "1.234,5", "1,234,567", "12 %", "2024-13-01", "x"] {
            assert_eq!(meaning(other), CellValue::Other, "{other}");
        }
    }

    #[test]
    fn dates_are_days() {
        assert_eq!(meaning("1970-01-02"), CellValue::Date(1.0));
        assert_eq!(meaning("1969-12-31"), CellValue::Date(-1.0));
        for noon in [
            "2000-01-01 12:00",
            "2000-01-01T12:00:00.000",
            "2000-01-01T12:00:00Z",
            "2000-01-01T14:00:00+02:00",
        ] {
            assert_eq!(meaning(noon), CellValue::Date(10_957.5), "{noon}");
        }
        for other in ["31.12.2024", "12/31/24", "1/2/2024 10:00", "31-12-2024"] {
            assert!(is_other_date(other), "{other}");
        }
        for none in ["1.2", "a/b/c", "1.2.3", "1.2.3.4", "192.168.1"] {
            assert!(!is_other_date(none), "{none}");
        }
    }
}
