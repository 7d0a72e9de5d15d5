//! Estimates of given trainings: a row each, and how near they are by source.

use super::number::{count, seconds};
use super::table::{Column, Style, Text, Tone, painted, table as drawn};
use dtrain_planner::rows::{Priced, Scores};
use std::borrow::Cow;

const fn column(title: &'static str, is_right: bool, rank: u8, least: Option<usize>) -> Column {
    Column { title: Cow::Borrowed(title), is_right, rank, least }
}

const COLUMNS: [Column; 10] = [
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

/// A line for each row, in their order.
pub(crate) fn table(priced: &[Priced], style: Style) -> String {
    let lines: Vec<_> = priced.iter().map(line).collect();
    drawn(&COLUMNS, &lines, style)
}

fn line(row: &Priced) -> Vec<Text> {
    if !row.supported {
        let mut line = vec![Text::default(); COLUMNS.len()];
        line[0] = row.id.clone().into();
        line[1] = Text::new("–", Tone::Bad);
        line[9] = Text::new(row.reason.clone().unwrap_or_default(), Tone::Bad);
        return line;
    }
    let range = row.step_seconds_low.zip(row.step_seconds_high);
    vec![
        row.id.clone().into(),
        Text::new(figure(row.step_seconds, seconds), Tone::Bold),
        Text::new(
            range.map(|(low, high)| format!("{} to {}", seconds(low), seconds(high))).unwrap_or_default(),
            Tone::Dim,
        ),
        figure(row.tokens_per_second_per_device, count).into(),
        figure(row.model_flops_utilization, |share| format!("{:.0}%", 100.0 * share)).into(),
        figure(row.peak_bytes, |bytes| format!("{:.1} GiB", bytes / 1024f64.powi(3))).into(),
        fits(row.fits),
        figure(row.measured_step_seconds, seconds).into(),
        row.error.map(error).unwrap_or_default(),
        Text::new(row.assumptions.join("; "), Tone::Dim),
    ]
}

fn figure(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map(show).unwrap_or_default()
}

fn fits(fits: Option<bool>) -> Text {
    match fits {
        Some(true) => "yes".into(),
        Some(false) => Text::new("no", Tone::Bad),
        None => Text::new("?", Tone::Notice),
    }
}

fn error(error: f64) -> Text {
    let tone = match error.abs() {
        size if size < 0.05 => Tone::Good,
        size if size < 0.15 => Tone::Plain,
        _ => Tone::Notice,
    };
    Text::new(format!("{:+.1}%", 100.0 * error), tone)
}

const SCORES: [Column; 12] = [
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

/// A line for each source and its parts: sizes of errors in percent.
pub(crate) fn summary(scores: &[Scores], style: Style) -> String {
    let lines: Vec<_> = scores.iter().map(score).collect();
    drawn(&SCORES, &lines, style)
}

fn score(of: &Scores) -> Vec<Text> {
    let counted = |share: Option<f64>, of: usize| {
        share.map(|share| format!("{:.1}% of {of}", 100.0 * share)).unwrap_or_default()
    };
    let percent = |share: Option<f64>| figure(share, |share| format!("{:.1}%", 100.0 * share));
    let refused = if of.refused > 0 { of.refused.to_string() } else { String::new() };
    vec![
        Text::new(if of.name.is_empty() { "(no source)" } else { &of.name }, Tone::Bold),
        of.rows.to_string().into(),
        Text::new(refused, Tone::Bad),
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

/// Rows that cannot be priced, each with its reason; nothing where all can.
pub(crate) fn refused(priced: &[Priced], style: Style) -> String {
    let lines: Vec<String> = priced
        .iter()
        .filter_map(|row| row.reason.as_ref().map(|reason| format!("  {}: {reason}\n", row.id)))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    let title = format!("{} of {} rows cannot be estimated:", lines.len(), priced.len());
    format!("\n{}\n{}", painted(&title, Tone::Bad, style.paint), lines.concat())
}
