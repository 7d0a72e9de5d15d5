//! Text about the results of compared trials: values with errors, and changes from the first trial.

use super::ComparisonLine;
use crate::render::number::{count, seconds};
use crate::render::table::TextRole;
use dtrain_recipes::Bytes;
use dtrain_runner::compare::{BaselineDelta, ChangeAssessment, ResultPerTrial, ResultValue, ValueUnit};

pub(super) fn result(figure: &ResultPerTrial) -> ComparisonLine {
    let values = figure
        .values
        .iter()
        .map(|value| value.map_or("-".to_owned(), |value| measured_text(value, figure.unit)));
    let last = figure.changes.iter().skip(1).flatten().last();
    let remarks: Vec<_> =
        figure.changes.iter().skip(1).map(|change| change.as_ref().map_or("-".to_owned(), remark)).collect();
    let tone = match last.map(|change| change.call) {
        Some(ChangeAssessment::Better) => TextRole::Good,
        Some(ChangeAssessment::Worse) => TextRole::Bad,
        Some(ChangeAssessment::Same | ChangeAssessment::Open) | None => TextRole::Plain,
    };
    let is_empty = figure.changes.iter().all(Option::is_none);
    ComparisonLine {
        name: figure.name.clone(),
        values: values.collect(),
        remark: if is_empty { String::new() } else { remarks.join(" | ") },
        tone,
    }
}

fn remark(change: &BaselineDelta) -> String {
    let share = match change.relative {
        Some(share) if share.abs() >= 0.000_5 => format!("{:+.1}%", share * 100.0),
        Some(_) if change.difference == 0.0 => "same".to_owned(),
        Some(share) => format!("{:+.3}%", share * 100.0),
        None => format!("{:+}", change.difference),
    };
    match change.call {
        ChangeAssessment::Better => format!("{share} better"),
        ChangeAssessment::Worse => format!("{share} worse"),
        ChangeAssessment::Same if change.difference != 0.0 => format!("{share} (noise)"),
        ChangeAssessment::Same | ChangeAssessment::Open => share,
    }
}

/// Formats a measured value in its unit, with its error if that is known.
pub(crate) fn measured_text(value: ResultValue, unit: ValueUnit) -> String {
    let show = |number: f64| match unit {
        ValueUnit::Plain => digits(number),
        ValueUnit::Seconds => seconds(number),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes are whole and positive"
        )]
        ValueUnit::Bytes => Bytes(number as u64).to_string(),
        ValueUnit::PerSecond => count(number),
        ValueUnit::Share => format!("{:.2}%", number * 100.0),
        ValueUnit::Steps => format!("{number:.0}"),
    };
    match value.spread {
        Some(spread) if spread > 0.0 => give_or_take(&show(value.value), &show(spread)),
        Some(_) | None => show(value.value),
    }
}

/// Joins a value and its error as `200.0 ± 10.0 ms`, with a common unit written once.
fn give_or_take(value: &str, spread: &str) -> String {
    match (value.rsplit_once(' '), spread.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} ± {spread}"),
        _ => format!("{value} ± {spread}"),
    }
}

/// Formats a number with four significant digits, without trailing zeros.
pub(super) fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let places = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}
