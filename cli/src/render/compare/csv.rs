//! Comparison of trials as CSV.

use crate::render::table::csv;
use dtrain_runner::compare::{ResultValue, TrialComparison};

/// Formats all compared values as CSV: `part,name,differs` and one column per trial, numbers at full
/// precision.
pub(crate) fn compare_csv(comparison: &TrialComparison) -> String {
    let mut header = vec!["part".into(), "name".into(), "differs".into()];
    header.extend(comparison.trials.iter().map(|trial| trial.label.as_str().into()));
    let mut rows = vec![header];
    for (part, lines) in [("parameter", &comparison.params), ("environment", &comparison.environment)] {
        rows.extend(lines.iter().map(|line| {
            let mut row = vec![part.into(), line.name.as_str().into(), line.differs.to_string().into()];
            row.extend(
                line.values.iter().map(|cell| cell.as_ref().map_or("", |cell| cell.text.as_str()).into()),
            );
            row
        }));
    }
    rows.extend(comparison.results.iter().map(|figure| {
        let number =
            |value: &Option<ResultValue>| value.map(|value| value.value.to_string()).unwrap_or_default();
        let differs = figure.values.windows(2).any(|pair| number(&pair[0]) != number(&pair[1]));
        let mut row = vec!["result".into(), figure.name.as_str().into(), differs.to_string().into()];
        row.extend(figure.values.iter().map(|value| number(value).into()));
        row
    }));
    csv(rows)
}
