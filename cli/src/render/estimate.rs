//! Tables of `dtrain estimate`: estimated runs, and errors of the estimates by source.

use super::number::{count, seconds};
use super::table::{StyledText, TableColumn, TextRole, painted, table as drawn};
use crate::output::PageStyle;
use dtrain_planner::benchmarks::{AccuracyScores, RowEstimate};
use std::borrow::Cow;

const fn column(title: &'static str, is_right: bool, rank: u8, least: Option<usize>) -> TableColumn {
    TableColumn { title: Cow::Borrowed(title), is_right, rank, least }
}

const COLUMNS: [TableColumn; 10] = [
    column("ROW", false, 9, None),
    column("STEP", true, 9, None),
    column("8 IN 10", false, 6, None),
    column("TOK/S/GPU", true, 7, None),
    column("MFU", true, 5, None),
    column("MEMORY", true, 7, None),
    column("FITS", false, 4, None),
    column("MEASURED", true, 8, None),
    column("ERROR", true, 8, None),
    column("ASSUMED", false, 1, Some(8)),
];

/// Formats the table of estimates: one line per row of the input, in the same order.
pub(crate) fn table(priced: &[RowEstimate], style: PageStyle) -> String {
    let lines: Vec<_> = priced.iter().map(line).collect();
    drawn(&COLUMNS, &lines, style)
}

fn line(row: &RowEstimate) -> Vec<StyledText> {
    if !row.supported {
        let mut line = vec![StyledText::default(); COLUMNS.len()];
        line[0] = row.id.clone().into();
        line[1] = StyledText::new("–", TextRole::Bad);
        line[9] = StyledText::new(row.reason.clone().unwrap_or_default(), TextRole::Bad);
        return line;
    }
    let range = row.step_seconds_low.zip(row.step_seconds_high);
    vec![
        row.id.clone().into(),
        StyledText::new(figure(row.step_seconds, seconds), TextRole::Bold),
        StyledText::new(
            range.map(|(low, high)| format!("{} to {}", seconds(low), seconds(high))).unwrap_or_default(),
            TextRole::Dim,
        ),
        figure(row.tokens_per_second_per_device, count).into(),
        figure(row.model_flops_utilization, |share| format!("{:.0}%", 100.0 * share)).into(),
        figure(row.peak_bytes, |bytes| format!("{:.1} GiB", bytes / 1024f64.powi(3))).into(),
        fits(row.fits),
        figure(row.measured_step_seconds, seconds).into(),
        row.error.map(error).unwrap_or_default(),
        StyledText::new(row.assumptions.join("; "), TextRole::Dim),
    ]
}

fn figure(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map(show).unwrap_or_default()
}

fn fits(fits: Option<bool>) -> StyledText {
    match fits {
        Some(true) => "yes".into(),
        Some(false) => StyledText::new("no", TextRole::Bad),
        None => StyledText::new("?", TextRole::Notice),
    }
}

fn error(error: f64) -> StyledText {
    let tone = match error.abs() {
        size if size < 0.05 => TextRole::Good,
        size if size < 0.15 => TextRole::Plain,
        _ => TextRole::Notice,
    };
    StyledText::new(format!("{:+.1}%", 100.0 * error), tone)
}

const SCORES: [TableColumn; 12] = [
    column("SOURCE", false, 9, Some(20)),
    column("ROWS", true, 9, None),
    column("REFUSED", true, 6, None),
    column("MEAN", true, 9, None),
    column("MEDIAN", true, 7, None),
    column("P95", true, 8, None),
    column("BIAS", true, 6, None),
    column("80 % RANGE", true, 8, None),
    column("ORDERED", true, 5, None),
    column("REGRET", true, 5, None),
    column("MEMORY", true, 4, None),
    column("P95", true, 4, None),
];

/// Formats the relative errors of the estimates in percent: one line per source, and per part of it.
pub(crate) fn summary(scores: &[AccuracyScores], style: PageStyle) -> String {
    let lines: Vec<_> = scores.iter().map(score).collect();
    drawn(&SCORES, &lines, style)
}

fn score(of: &AccuracyScores) -> Vec<StyledText> {
    let counted = |share: Option<f64>, of: usize| {
        share.map(|share| format!("{:.1}% of {of}", 100.0 * share)).unwrap_or_default()
    };
    let percent = |share: Option<f64>| figure(share, |share| format!("{:.1}%", 100.0 * share));
    let refused = if of.refused > 0 { of.refused.to_string() } else { String::new() };
    vec![
        StyledText::new(if of.name.is_empty() { "(no source)" } else { &of.name }, TextRole::Bold),
        of.rows.to_string().into(),
        StyledText::new(refused, TextRole::Bad),
        percent(of.mean).into(),
        percent(of.median).into(),
        percent(of.p95).into(),
        figure(of.bias, |bias| format!("{:+.1}%", 100.0 * bias)).into(),
        figure(of.covered, |share| format!("{:.0}%", 100.0 * share)).into(),
        counted(of.ordered, of.pairs).into(),
        counted(of.regret, of.choices).into(),
        percent(of.memory_median).into(),
        percent(of.memory_p95).into(),
    ]
}

/// Formats the rows that have no estimate, each with the reason; empty if all have one.
pub(crate) fn unpriced_rows(priced: &[RowEstimate], style: PageStyle) -> String {
    let lines: Vec<String> = priced
        .iter()
        .filter_map(|row| row.reason.as_ref().map(|reason| format!("  {}: {reason}\n", row.id)))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let title = format!("{} of {} rows cannot be estimated:", lines.len(), priced.len());
    format!("\n{}\n{}", painted(&title, TextRole::Bad, style.paint), lines.concat())
}
