//! Units of the values in charts.

use super::bytes;
use crate::render::number::{count, seconds};

/// Unit of the values in a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Number without a unit.
    Number,
    /// Large count, such as steps or tokens.
    Count,
    Seconds,
    Bytes,
    /// Number of tokens or samples per second.
    PerSecond,
    /// Share of a whole, which is 1.
    Share,
    /// Number with the given unit.
    Named(&'static str),
}

impl Unit {
    /// Returns the unit of the series `key`.
    pub(super) fn of(key: &str) -> Self {
        match key {
            "tokens_per_second" => Self::PerSecond,
            _ if key.ends_with("_bytes_per_second") => Self::Named("bytes/s"),
            _ if key.ends_with("_seconds") => Self::Seconds,
            _ if key.ends_with("_bytes") => Self::Bytes,
            _ if key.ends_with("_percent") => Self::Named("%"),
            _ if key.ends_with("_watts") => Self::Named("W"),
            _ if key.ends_with("_celsius") => Self::Named("°C"),
            "valid.accuracy" => Self::Share,
            _ => Self::Number,
        }
    }

    /// Formats a value with its unit.
    pub(super) fn format(self, value: f64) -> String {
        match self {
            Self::Number => number(value),
            // Values that are no shares stay unchanged.
            Self::Share if value.abs() > 1.0 => number(value),
            Self::Count | Self::PerSecond | Self::Named(_) => count(value),
            Self::Seconds if value == 0.0 => "0".to_owned(),
            Self::Seconds => seconds(value),
            Self::Bytes => bytes(value),
            Self::Share => format!("{} %", number(100.0 * value)),
        }
    }

    /// Returns the suffix that names the unit in a chart's title; empty if the values show it.
    pub(super) fn title_suffix(self) -> String {
        match self {
            Self::Named(unit) => format!(" ({unit})"),
            _ => String::new(),
        }
    }

    /// Returns the size of the unit for round tick values up to `largest`: for bytes KiB, MiB and so on,
    /// otherwise 1.
    pub(super) fn round(self, largest: f64) -> f64 {
        let whole = |unit: &f64| *unit <= largest;
        match self {
            Self::Bytes => (1..5).map(|power| 1024f64.powi(power)).take_while(whole).last().unwrap_or(1.0),
            _ => 1.0,
        }
    }

    /// Returns the suffix that the page's script appends to a value.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Number | Self::Count | Self::Share => "",
            Self::Seconds => " s",
            Self::Bytes => " bytes",
            Self::PerSecond => " /s",
            Self::Named(unit) => unit,
        }
    }
}

/// Formats a number with four significant digits, and an exponent if it is very small or large.
pub(super) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-3..1e6).contains(&value.abs()) {
        let text = format!("{value:.3e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let places = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let told = [0.0, 2.5, 1e-4, 0.001_234_5, 123_456.0, 3.2e9, -0.25].map(number);
        assert_eq!(told, ["0", "2.5", "1e-4", "0.001234", "123456", "3.2e9", "-0.25"]);
        assert_eq!(Unit::of("save.stall_seconds").format(0.25), "250.0 ms");
        assert_eq!([500.0, 2048.0, 3e6].map(|most| Unit::Bytes.round(most)), [1.0, 1024.0, 1_048_576.0]);
        assert_eq!(Unit::of("valid.accuracy").format(0.5), "50 %");
    }
}
