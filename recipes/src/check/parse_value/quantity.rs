//! Parses numbers, shares and quantities with a unit.

use super::{parse, wrong};
use crate::check::parsed::ParsedValue;
use crate::document::{SpannedValue, Value};
use crate::keys::ValueType;
use crate::number_format::thousands;
use crate::problem::Problem;
use crate::units;

/// Upper bound on token counts: far beyond any training, yet products of a recipe's values fit in 64 bits.
pub(super) const MOST_TOKENS: u64 = 10_000_000_000_000_000;
pub(super) const MOST_STEPS: u64 = 10_000_000_000;
const MOST_EPOCHS: f64 = 1e6;
const LONGEST_SECONDS: f64 = 100.0 * 365.25 * 86_400.0;

pub(super) fn whole(path: &str, node: &SpannedValue, low: u64, high: u64) -> Result<u64, Problem> {
    let wanted = if high >= i64::MAX as u64 {
        format!("a whole number from {low}")
    } else {
        format!("a whole number from {low} to {high}")
    };
    match &node.value {
        Value::Whole(number) => match u64::try_from(*number) {
            Ok(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(wrong(path, &wanted, node)),
        },
        Value::Text(text) if text.trim().parse::<u64>().is_ok() => {
            Err(wrong(path, &wanted, node).hint("remove the quotes"))
        }
        _ => Err(wrong(path, &wanted, node)),
    }
}

fn real(node: &SpannedValue) -> Option<f64> {
    match &node.value {
        #[expect(clippy::cast_precision_loss, reason = "a rate or a share, not a count")]
        Value::Whole(number) => Some(*number as f64),
        Value::Real(number) => Some(*number),
        _ => None,
    }
}

pub(super) fn number(
    path: &str,
    node: &SpannedValue,
    range: &str,
    is_right: impl Fn(f64) -> bool,
) -> Result<f64, Problem> {
    let wanted = format!("a number {range}");
    match real(node) {
        Some(x) if x.is_finite() && is_right(x) => Ok(x),
        Some(_) => Err(wrong(path, &wanted, node)),
        None => {
            let is_quoted = matches!(&node.value, Value::Text(text) if text.trim().parse::<f64>().is_ok());
            let problem = wrong(path, &wanted, node);
            Err(if is_quoted { problem.hint("remove the quotes") } else { problem })
        }
    }
}

pub(super) fn share(
    path: &str,
    node: &SpannedValue,
    range: &str,
    is_right: impl Fn(f64) -> bool,
) -> Result<f64, Problem> {
    let found = match &node.value {
        Value::Text(text) => match units::fraction(text) {
            Ok(x) => x,
            Err(error) => return Err(unit(path, "a number or a percentage", node, &error)),
        },
        _ => real(node).ok_or_else(|| wrong(path, "a number or a percentage", node))?,
    };
    let article = if range.starts_with("a ") { "" } else { "a share " };
    let problem = || {
        let problem = wrong(path, &format!("{article}{range}"), node);
        let is_percentage = matches!(&node.value, Value::Text(text) if text.contains(['%', 'p']));
        if is_percentage && found > 1.0 {
            problem.hint("a percentage of a whole is below 100%, such as \"15%\"")
        } else if found > 1.0 && found <= 100.0 {
            problem.hint(format!("did you mean \"{found}%\"?"))
        } else {
            problem
        }
    };
    if found.is_finite() && is_right(found) { Ok(found) } else { Err(problem()) }
}

fn unit(path: &str, wanted: &str, node: &SpannedValue, error: &units::UnitError) -> Problem {
    let text = error.to_string();
    let (fact, hint) = text.split_once("; ").map_or((text.as_str(), None), |(fact, hint)| (fact, Some(hint)));
    let problem = Problem::new(format!("`{path}` must be {wanted}: {fact}")).at(&node.origin);
    match hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

pub(super) fn quantity(
    path: &str,
    node: &SpannedValue,
    wanted: &str,
    most: u64,
    read: impl Fn(&str) -> Result<u64, units::UnitError>,
) -> Result<u64, Problem> {
    let found = match &node.value {
        Value::Whole(number) => u64::try_from(*number).map_err(|_| wrong(path, wanted, node))?,
        Value::Real(number) if number.fract() == 0.0 && (0.0..9e15).contains(number) => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
            let number = *number as u64;
            number
        }
        Value::Text(text) => read(text).map_err(|error| unit(path, wanted, node, &error))?,
        _ => return Err(wrong(path, wanted, node)),
    };
    if found == 0 {
        Err(Problem::new(format!("`{path}` must be at least 1, found 0")).at(&node.origin))
    } else if found > most {
        let (most, found) = (thousands(most), thousands(found));
        Err(Problem::new(format!("`{path}` must be at most {most}, found {found}")).at(&node.origin))
    } else {
        Ok(found)
    }
}

pub(super) fn epochs(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = match &node.value {
        Value::Text(text) => {
            units::epochs(text).map_err(|error| unit(path, "a number of epochs", node, &error))?
        }
        _ => real(node).ok_or_else(|| wrong(path, "a number of epochs", node))?,
    };
    if found > 0.0 && found <= MOST_EPOCHS {
        Ok(ParsedValue::Real(found))
    } else {
        Err(wrong(path, "a number of epochs above 0 and at most a million", node))
    }
}

pub(super) fn time(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = match &node.value {
        Value::Text(text) => units::seconds(text).map_err(|error| unit(path, "a duration", node, &error))?,
        Value::Whole(_) | Value::Real(_) => {
            return Err(wrong(path, "a duration with its unit", node)
                .hint("write for example \"90 s\", \"30 min\" or \"1h 30min\""));
        }
        _ => return Err(wrong(path, "a duration", node)),
    };
    if found.0 > LONGEST_SECONDS {
        Err(wrong(path, "at most a hundred years", node))
    } else if found.0 > 0.0 {
        Ok(ParsedValue::Time(found.0))
    } else {
        Err(wrong(path, "a duration above 0", node))
    }
}

pub(super) fn size(path: &str, node: &SpannedValue) -> Result<ParsedValue, Problem> {
    let found = match &node.value {
        Value::Text(text) => units::bytes(text).map_err(|error| unit(path, "a size", node, &error))?,
        Value::Whole(_) | Value::Real(_) => {
            return Err(
                wrong(path, "a size with its unit", node).hint("write for example \"200 MiB\" or \"1 GB\"")
            );
        }
        _ => return Err(wrong(path, "a size", node)),
    };
    if found.0 > 0 { Ok(ParsedValue::Size(found.0)) } else { Err(wrong(path, "a size above 0", node)) }
}

/// Parses a value that may be either of two types of quantity; a text that fits neither gets a message about
/// both.
pub(super) fn alternative(
    path: &str,
    node: &SpannedValue,
    a: ValueType,
    b: ValueType,
    wanted: &str,
    example: &str,
) -> Result<ParsedValue, Problem> {
    let first = parse(path, a, node);
    match (&node.value, first) {
        (_, Ok(value)) => Ok(value),
        (Value::Text(_), Err(_)) => parse(path, b, node)
            .map_err(|_| wrong(path, wanted, node).hint(format!("write for example {example}"))),
        (_, Err(_)) => Err(wrong(path, wanted, node).hint(format!("write for example {example}"))),
    }
}
