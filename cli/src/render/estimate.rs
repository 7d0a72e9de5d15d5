//! Text of `dtrain estimate`: the answer for one run, or tables of runs and of the errors by source.

use super::answer;
use super::number::{count, seconds};
use super::table::{StyledText, TableColumn, TextRole, painted, table as drawn};
use crate::output::PageStyle;
use dtrain_planner::answer::{Answer, COLUMNS, LINES, ROWS};
use dtrain_planner::benchmarks::{AccuracyScores, RowEstimate};
use dtrain_planner::text::wrapped_with_indent;
use std::borrow::Cow;

const fn column(title: &'static str, is_right: bool, rank: u8, least: Option<usize>) -> TableColumn {
    TableColumn { title: Cow::Borrowed(title), is_right, rank, least }
}

/// Number of columns in the short table: all but the assumptions.
const SHORT: usize = 9;

const COLUMNS_OF_ROWS: [TableColumn; 10] = [
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

/// Smallest number of lines for the summary of sources.
const SOURCES_LEAST: usize = 3;

/// Formats the estimates so that they fit one screen together with the command `next`: the answer of a single
/// run, or the first runs of a table, the first sources of `scores`, and the reason why runs have no estimate.
pub(crate) fn short(
    priced: &[RowEstimate],
    scores: &[AccuracyScores],
    next: Option<&str>,
    style: PageStyle,
) -> String {
    if let [row] = priced
        && let Some(answer) = Answer::of_row(row)
    {
        return answer::text(&answer, ROWS, next, 0, style);
    }
    let style = PageStyle { width: style.width.min(COLUMNS), ..style };
    let shown: Vec<_> = priced.iter().take(ROWS).map(|row| line(row)[..SHORT].to_vec()).collect();
    let mut columns = COLUMNS_OF_ROWS[..SHORT].to_vec();
    columns[0].least = Some(20);
    let mut text = drawn(&columns, &shown, style);
    if priced.len() > ROWS {
        text += &format!("… {} more rows: --explain\n", priced.len() - ROWS);
    }
    let refused: Vec<&RowEstimate> = priced.iter().filter(|row| row.reason.is_some()).collect();
    let refusal = refused.first().map_or_else(String::new, |first| {
        let reason = first.reason.as_deref().unwrap_or_default();
        let told = format!(
            "\n{} of {} rows have no estimate, such as {}: {reason}",
            refused.len(),
            priced.len(),
            first.id
        );
        let told = wrapped_with_indent(&told, style.width, 2);
        first_lines(&told, 4, "  …")
    });
    let below = next.map_or(0, |command| command.lines().count());
    let used = text.lines().count() + 1 + refusal.lines().count() + below;
    let room = LINES.saturating_sub(used).max(SOURCES_LEAST);
    let sources = summary(scores, style);
    let more = (sources.lines().count() + 1).saturating_sub(room);
    let sources = first_lines(&sources, room, &format!("… {more} more lines: --summary"));
    format!("{text}\n{sources}{refusal}")
}

/// Returns the first lines of a text, `most` in all; `rest` stands for those that are left out.
fn first_lines(text: &str, most: usize, rest: &str) -> String {
    if text.lines().count() <= most {
        return text.to_owned();
    }
    let kept = text.lines().take(most.saturating_sub(1)).chain([rest]);
    kept.map(|line| format!("{line}\n")).collect()
}

/// Formats the table of estimates: one line per row of the input, in the same order.
pub(crate) fn table(priced: &[RowEstimate], style: PageStyle) -> String {
    let lines: Vec<_> = priced.iter().map(line).collect();
    drawn(&COLUMNS_OF_ROWS, &lines, style)
}

fn line(row: &RowEstimate) -> Vec<StyledText> {
    if !row.supported {
        let mut line = vec![StyledText::default(); COLUMNS_OF_ROWS.len()];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;
    use dtrain_planner::benchmarks::scores;

    /// Returns estimates of `count` rows, every third of which was refused, from as many sources.
    fn rows(count: usize) -> Vec<RowEstimate> {
        let row = |place: usize| RowEstimate {
            id: format!("a-row-with-a-name-that-is-quite-long-{place}"),
            source: format!("a source with a long name, number {place}"),
            supported: !place.is_multiple_of(3),
            reason: (place.is_multiple_of(3)).then(|| "words ".repeat(60)),
            step_seconds: (!place.is_multiple_of(3)).then_some(1.5),
            ..RowEstimate::default()
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn a_short_answer_fits_a_screen_and_says_what_it_leaves_out() {
        let style = PageStyle { paint: ColorMode::plain(), width: 120, is_ascii: false, now_ms: 0 };
        for count in [2, 5, 6, 40, 400] {
            let rows = rows(count);
            let text = short(&rows, &scores(&rows), Some("one \\\n    two"), style);
            assert!(text.lines().count() + 2 <= LINES, "{count}: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{count}: {text}");
            assert_eq!(text.contains("more rows: --explain"), count > ROWS, "{text}");
            assert_eq!(text.contains("more lines: --summary"), count > 6, "{text}");
        }
    }
}
