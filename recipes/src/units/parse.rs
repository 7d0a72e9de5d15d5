//! Parses quantities as people write them: `20M tokens`, `80 GiB`, `1h 30min`, `5%`.
//!
//! Counts use powers of 1000 (`K`, `M`, `B` or `G`, `T`). Bytes distinguish `GB` (10⁹) from `GiB` (2³⁰) and
//! refuse a bare `G`. Counts are computed in integers, without rounding through floats.

use super::{Bytes, Samples, Seconds, Tokens};
use thiserror::Error;

/// An error in parsing a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The text does not begin with a number.
    #[error("no number in {found:?}; {accepted}")]
    NoNumber {
        /// The text that could not be parsed.
        found: String,
        /// Description of the accepted forms.
        accepted: &'static str,
    },
    /// The number has no unit, and the quantity has no default unit.
    #[error("{found} has no unit; {accepted}")]
    NoUnit {
        /// The text that could not be parsed.
        found: String,
        /// Description of the accepted forms.
        accepted: &'static str,
    },
    /// The unit is unknown or belongs to another quantity.
    #[error("unknown unit {unit:?}; {accepted}")]
    UnknownUnit {
        /// The unknown unit.
        unit: String,
        /// Description of the accepted forms.
        accepted: &'static str,
    },
    /// The number is below zero.
    #[error("{found} is negative")]
    Negative {
        /// The text that could not be parsed.
        found: String,
    },
    /// The number is out of range.
    #[error("{found} is too large")]
    TooLarge {
        /// The text that could not be parsed.
        found: String,
    },
    /// The text is not a whole number, but the quantity is a count.
    #[error("{found} is not a whole number of {noun}")]
    NotWhole {
        /// The text that could not be parsed.
        found: String,
        /// Noun for the counted things, such as `tokens`.
        noun: &'static str,
    },
}

const TOKENS: &str = "write for example `20M tokens` (K, M, B, T are powers of 1000)";
const SAMPLES: &str = "write for example `50K samples` (K, M, B, T are powers of 1000)";
const STEPS: &str = "write for example `500 steps` (K, M, B, T are powers of 1000)";
const EPOCHS: &str = "write for example `3 epochs`";
const TIME: &str = "write for example `90 s`, `30 min`, `1.5 h` or `1h 30min` (ms, s, min, h, d)";
const BYTES: &str = "write for example `80 GiB` (KiB, MiB, GiB, TiB: powers of 1024) or `80 GB` (KB, MB, GB, TB: powers of 1000)";
const FRACTION: &str = "write for example `5%` or `0.05`";

/// Parses a number of tokens: `20M tokens`, `20M`, `20000000`.
pub fn tokens(text: &str) -> Result<Tokens, UnitError> {
    count(text, &["token", "tokens", "tok"], "tokens", TOKENS).map(Tokens)
}

/// Parses a number of samples: `50K samples`, `50K`, `50000`.
pub fn samples(text: &str) -> Result<Samples, UnitError> {
    count(text, &["sample", "samples"], "samples", SAMPLES).map(Samples)
}

/// Parses a number of optimizer steps: `500 steps`, `5K`, `500`.
pub fn steps(text: &str) -> Result<u64, UnitError> {
    count(text, &["step", "steps"], "steps", STEPS)
}

/// Parses a number of passes over the training data, which may be a fraction: `1.5 epochs`, `3`.
pub fn epochs(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split(text, EPOCHS)?;
    match unit {
        "" | "epoch" | "epochs" => float(number, text),
        // Any other unit is refused.
        unit => Err(UnitError::UnknownUnit { unit: shown(unit), accepted: EPOCHS }),
    }
}

/// Parses a number of bytes: `80 GiB` (2³⁰ each) or `80 GB` (10⁹ each). A bare number is refused.
pub fn bytes(text: &str) -> Result<Bytes, UnitError> {
    let (number, unit) = split(text, BYTES)?;
    let lower = unit.to_ascii_lowercase();
    let scale: u128 = match lower.as_str() {
        "" => return Err(UnitError::NoUnit { found: shown(text.trim()), accepted: BYTES }),
        "b" | "byte" | "bytes" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "pib" => 1 << 50,
        // Any other unit is refused.
        _ => return Err(UnitError::UnknownUnit { unit: shown(unit), accepted: BYTES }),
    };
    exact(number, scale, text).map(|(whole, _)| Bytes(whole))
}

/// Parses a duration: `90 s`, `30 min`, `1.5 h`, `1h 30min`. A bare number is refused.
pub fn seconds(text: &str) -> Result<Seconds, UnitError> {
    let mut rest = text.trim();
    let mut total = 0.0;
    loop {
        let (number, after) = number(rest, TIME)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let scale = match unit {
            "" => return Err(UnitError::NoUnit { found: shown(rest), accepted: TIME }),
            "ms" => 1e-3,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            "w" | "week" | "weeks" => 604_800.0,
            // Any other unit is refused.
            _ => return Err(UnitError::UnknownUnit { unit: shown(unit), accepted: TIME }),
        };
        total += float(number, text)? * scale;
        rest = next.trim_start();
        if rest.is_empty() {
            break;
        }
    }
    if total.is_finite() { Ok(Seconds(total)) } else { Err(UnitError::TooLarge { found: shown(text) }) }
}

/// Parses a share such as `5%` or `0.05`. The caller checks its range.
pub fn fraction(text: &str) -> Result<f64, UnitError> {
    let (number, unit) = split(text, FRACTION)?;
    match unit {
        "" => float(number, text),
        "%" | "percent" => Ok(float(number, text)? / 100.0),
        // Any other unit is refused.
        unit => Err(UnitError::UnknownUnit { unit: shown(unit), accepted: FRACTION }),
    }
}

fn count(text: &str, nouns: &[&str], noun: &'static str, accepted: &'static str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, accepted)?;
    let mut words = unit.split_whitespace();
    let first = words.next().unwrap_or("");
    let (scale, named) = match first {
        "" => (1, None),
        "K" | "k" | "thousand" => (1000, words.next()),
        "M" | "million" => (1_000_000, words.next()),
        "B" | "G" | "billion" => (1_000_000_000, words.next()),
        "T" | "trillion" => (1_000_000_000_000, words.next()),
        // A word that is no scale must be a noun, which is checked below.
        other => (1, Some(other)),
    };
    let known = named.is_none_or(|word| nouns.contains(&word));
    if !known || words.next().is_some() {
        return Err(UnitError::UnknownUnit { unit: shown(unit), accepted });
    }
    match exact(number, scale, text)? {
        (whole, true) => Ok(whole),
        (_, false) => Err(UnitError::NotWhole { found: shown(text.trim()), noun }),
    }
}

/// Splits a text such as `80 GiB` into number and unit, both trimmed.
fn split<'t>(text: &'t str, accepted: &'static str) -> Result<(&'t str, &'t str), UnitError> {
    let (number, unit) = number(text.trim(), accepted)?;
    Ok((number, unit.trim()))
}

/// Splits a text into the number at its start and the remaining text.
fn number<'t>(text: &'t str, accepted: &'static str) -> Result<(&'t str, &'t str), UnitError> {
    if text.starts_with('-') {
        return Err(UnitError::Negative { found: shown(text) });
    }
    let bytes = text.as_bytes();
    let mut end = usize::from(text.starts_with('+'));
    let mut digits = 0;
    while end < bytes.len() && (bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b'_')) {
        digits += usize::from(bytes[end].is_ascii_digit());
        end += 1;
    }
    // An exponent needs a digit after it, so that `5 e` and `5epochs` are left to the unit.
    if end < bytes.len() && matches!(bytes[end], b'e' | b'E') {
        let sign = usize::from(bytes.get(end + 1).is_some_and(|b| matches!(b, b'+' | b'-')));
        let from = end + 1 + sign;
        let to = from + bytes[from.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
        if to > from {
            end = to;
        }
    }
    let (number, rest) = text.split_at(end);
    if digits == 0 || number.matches('.').count() > 1 {
        return Err(UnitError::NoNumber { found: shown(text), accepted });
    }
    Ok((number, rest))
}

/// Returns `number × scale`, rounded down, and `true` if no rounding was needed.
fn exact(number: &str, scale: u128, text: &str) -> Result<(u64, bool), UnitError> {
    let too_large = || UnitError::TooLarge { found: shown(text.trim()) };
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let mut exponent: i32 = exponent.parse().map_err(|_| too_large())?;
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut value: u128 = 0;
    for digit in whole.bytes().chain(part.bytes()).filter(u8::is_ascii_digit) {
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u128::from(digit - b'0')))
            .ok_or_else(too_large)?;
    }
    let places = part.bytes().filter(u8::is_ascii_digit).count();
    exponent = exponent.saturating_sub(i32::try_from(places).unwrap_or(i32::MAX));
    value = value.checked_mul(scale).ok_or_else(too_large)?;
    let mut is_exact = true;
    while exponent > 0 && value > 0 {
        value = value.checked_mul(10).ok_or_else(too_large)?;
        exponent -= 1;
    }
    while exponent < 0 && value > 0 {
        is_exact &= value.is_multiple_of(10);
        value /= 10;
        exponent += 1;
    }
    let value = u64::try_from(value).map_err(|_| too_large())?;
    // Counts are stored in signed 64-bit columns of the history.
    if i64::try_from(value).is_err() { Err(too_large()) } else { Ok((value, is_exact)) }
}

fn float(number: &str, text: &str) -> Result<f64, UnitError> {
    match number.replace('_', "").parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(UnitError::TooLarge { found: shown(text.trim()) }),
    }
}

/// Returns at most forty characters of a text, for error messages.
fn shown(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_powers_of_a_thousand_and_exact() {
        let check = |text: &str, expected: u64| assert_eq!(tokens(text), Ok(Tokens(expected)), "{text}");
        check("20M tokens", 20_000_000);
        check("20M", 20_000_000);
        check("20 M tokens", 20_000_000);
        check("1.5B", 1_500_000_000);
        check("1.5G tokens", 1_500_000_000);
        check("2T", 2_000_000_000_000);
        check("1_000", 1000);
        check("1e9 tokens", 1_000_000_000);
        check("2.5e3", 2500);
        check("1 token", 1);
        check("0.3K", 300);
        check("9007199254740993", 9_007_199_254_740_993);
        check("3 million tokens", 3_000_000);
    }

    #[test]
    fn wrong_counts_say_what_is_accepted() {
        let check = |text: &str, part: &str| {
            let error = tokens(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("", "no number");
        check("M", "no number");
        check("20 min", "unknown unit \"min\"; write for example `20M tokens`");
        check("20m", "unknown unit \"m\"");
        check("20M tokens please", "unknown unit");
        check("-5", "negative");
        check("1.5", "not a whole number of tokens");
        check("1e99", "too large");
        check("1e99999999999999", "too large");
        check("10000000000000000000", "too large");
        check("1.2.3", "no number");
        check("_", "no number");
    }

    #[test]
    fn bytes_keep_si_and_binary_apart() {
        assert_eq!(bytes("80 GiB"), Ok(Bytes(80 << 30)));
        assert_eq!(bytes("80GB"), Ok(Bytes(80_000_000_000)));
        assert_eq!(bytes("1.5 KiB"), Ok(Bytes(1536)));
        assert_eq!(bytes("1 kB"), Ok(Bytes(1000)));
        assert_eq!(bytes("7 bytes"), Ok(Bytes(7)));
        assert!(matches!(bytes("80"), Err(UnitError::NoUnit { .. })));
        assert!(matches!(bytes("80G"), Err(UnitError::UnknownUnit { .. })));
    }

    #[test]
    fn durations_may_be_composed() {
        assert_eq!(seconds("30 min"), Ok(Seconds(1800.0)));
        assert_eq!(seconds("1.5h"), Ok(Seconds(5400.0)));
        assert_eq!(seconds("1h 30min"), Ok(Seconds(5400.0)));
        assert_eq!(seconds("1h30m"), Ok(Seconds(5400.0)));
        assert_eq!(seconds("250 ms"), Ok(Seconds(0.25)));
        assert!(matches!(seconds("30"), Err(UnitError::NoUnit { .. })));
        assert!(matches!(seconds("1h 30"), Err(UnitError::NoUnit { .. })));
        assert!(matches!(seconds("3 fortnights"), Err(UnitError::UnknownUnit { .. })));
        assert!(seconds("1e308 w").is_err());
    }

    #[test]
    fn fractions_are_percent_or_bare() {
        assert_eq!(fraction("5%"), Ok(0.05));
        assert_eq!(fraction("0.25"), Ok(0.25));
        assert_eq!(epochs("1.5 epochs"), Ok(1.5));
        assert_eq!(epochs("3epochs"), Ok(3.0));
        assert!(fraction("5 GiB").is_err());
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!(Tokens(20_000_000).to_string(), "20,000,000 tokens");
        assert_eq!(Samples(100).to_string(), "100 samples");
        assert_eq!(crate::number_format::thousands(1000), "1,000");
    }
}
