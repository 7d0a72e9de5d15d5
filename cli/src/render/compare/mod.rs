//! Comparison of trials as a page of text or as CSV: their differences and results.

mod code;
mod csv;
mod figures;

pub(crate) use csv::compare_csv;
pub(super) use figures::measured_text;

use super::history::status;
use super::param;
use super::sparkline::plot;
use super::table::{TextRole, age, painted};
use super::truncate::{truncate, width};
use crate::output::PageStyle;
use code::{patches, same_code};
use dtrain_runner::compare::{ComparedValue, TrialComparison, ValuePerTrial};
use figures::{digits, result};

/// Greatest width of a line's name, in characters.
const NAME: usize = 28;

/// Height of the loss plot, in lines.
const HEIGHT: usize = 8;

/// One line of the comparison: a name, one text per trial, and a remark.
struct ComparisonLine {
    name: String,
    values: Vec<String>,
    remark: String,
    tone: TextRole,
}

/// Formats the page of a comparison: only the differences, unless `all`; with `code`, also uncommitted
/// changes.
pub(crate) fn compare(comparison: &TrialComparison, all: bool, code: bool, style: PageStyle) -> String {
    let params = part(&comparison.params, all);
    let environment = part(&comparison.environment, all);
    let results: Vec<_> = comparison.results.iter().map(result).collect();
    let (names, states) = heads(comparison, style);
    let sides = ColumnWidths::fit(&[&params, &results, &environment], &names, style);
    let mut page = sides.line("", &names, "change", TextRole::Bold, style);
    page += &sides.line("", &states, "", TextRole::Plain, style);
    page += &sides.section("PARAMETERS", &counted(&comparison.params, all), &params, style);
    page += &sides.section("RESULTS", "", &results, style);
    let drawing = plot(&comparison.curves, comparison.curve_steps, HEIGHT, style);
    if !drawing.is_empty() {
        page += &format!("{}\n{drawing}", title("LOSS", style));
    }
    page += &sentence("CODE", &same_code(&comparison.code, code, style), style);
    if code {
        page += &patches(&comparison.code);
    }
    page += &sides.section("ENVIRONMENT", &counted(&comparison.environment, all), &environment, style);
    page
}

/// Widths of the columns of the page, in characters.
struct ColumnWidths {
    name: usize,
    value: usize,
}

impl ColumnWidths {
    /// Computes the widths that the texts need, reduced to what fits the page.
    fn fit(parts: &[&Vec<ComparisonLine>], heads: &[String], style: PageStyle) -> Self {
        let lines = || parts.iter().flat_map(|part| part.iter());
        let name = lines().map(|line| width(&line.name)).max().unwrap_or(0).min(NAME);
        let remark = lines().map(|line| width(&line.remark)).max().unwrap_or(0).max(6);
        let values = lines().flat_map(|line| &line.values).chain(heads);
        let natural = values.map(|value| width(value)).max().unwrap_or(0);
        let left = style.width.saturating_sub(2 + name + 2 + remark);
        Self { name, value: natural.min((left / heads.len().max(1)).saturating_sub(2)).max(8) }
    }

    fn line(&self, name: &str, values: &[String], remark: &str, tone: TextRole, style: PageStyle) -> String {
        let name = truncate(name, self.name, style);
        let mut line = format!("  {name:<wide$}", wide = self.name);
        for value in values {
            line += &format!("  {:<wide$}", truncate(value, self.value, style), wide = self.value);
        }
        line += "  ";
        line += &painted(remark, tone, style.paint);
        format!("{}\n", line.trim_end())
    }

    fn section(&self, name: &str, about: &str, lines: &[ComparisonLine], style: PageStyle) -> String {
        let mut page = format!("{}  {}\n", title(name, style), painted(about, TextRole::Dim, style.paint));
        page = format!("{}\n", page.trim_end());
        for line in lines {
            page += &self.line(&line.name, &line.values, &line.remark, line.tone, style);
        }
        page
    }
}

/// Formats a title and its parts on one line, or each on a line of its own if they do not fit.
fn sentence(name: &str, parts: &[String], style: PageStyle) -> String {
    let whole = parts.join("; ");
    if width(name) + 2 + width(&whole) <= style.width {
        return format!("{}  {whole}\n", title(name, style));
    }
    let lines: Vec<_> = parts
        .iter()
        .map(|part| format!("  {}\n", truncate(part, style.width.saturating_sub(2), style)))
        .collect();
    format!("{}\n{}", title(name, style), lines.concat())
}

fn title(name: &str, style: PageStyle) -> String {
    painted(name, TextRole::Bold, style.paint)
}

/// Returns two heads for each trial's column: `A gpt-1`, and `done, 2h`.
fn heads(comparison: &TrialComparison, style: PageStyle) -> (Vec<String>, Vec<String>) {
    let told = ('A'..='Z').zip(&comparison.trials).map(|(letter, trial)| {
        let state = format!("{}, {}", status(trial.status).text, age(trial.created_ms, style.now_ms));
        (format!("{letter} {}", trial.label), state)
    });
    told.unzip()
}

/// Returns lines for the values that differ between the trials, or with `all` for all values.
fn part(differences: &[ValuePerTrial], all: bool) -> Vec<ComparisonLine> {
    let shown = differences.iter().filter(|difference| all || difference.differs);
    shown.map(difference).collect()
}

fn difference(difference: &ValuePerTrial) -> ComparisonLine {
    let sources = difference.values.iter().flatten().map(|cell| cell.source);
    let is_one_source = sources.clone().is_sorted_by(|a, b| a == b);
    let value = |cell: &Option<ComparedValue>| match cell {
        None => "-".to_owned(),
        Some(cell) => match cell.source {
            Some(source) if !is_one_source => format!("{} ({})", text(difference, cell), source.word()),
            Some(_) | None => text(difference, cell),
        },
    };
    let ratio = if difference.differs { difference.ratio() } else { None };
    ComparisonLine {
        name: param::name(&difference.name).to_owned(),
        values: difference.values.iter().map(value).collect(),
        remark: ratio.map(|ratio| format!("×{}", digits(ratio))).unwrap_or_default(),
        tone: TextRole::Plain,
    }
}

/// Formats the value of one trial in the unit of its key.
pub(crate) fn text(difference: &ValuePerTrial, cell: &ComparedValue) -> String {
    let told = cell.number.and_then(|number| param::number(&difference.name, number));
    told.unwrap_or_else(|| cell.text.clone())
}

/// Formats the number of differing values: `2 of 37 differ; --all shows the rest`.
fn counted(differences: &[ValuePerTrial], all: bool) -> String {
    let differing = differences.iter().filter(|difference| difference.differs).count();
    let verb = if differing == 1 { "differs" } else { "differ" };
    let rest = if all || differing == differences.len() { "" } else { "; --all shows the rest" };
    format!("{differing} of {} {verb}{rest}", differences.len())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::render::table::tests::plain;
    use dtrain_protocol::TrialId;
    use dtrain_runner::compare::{
        BaselineDelta, BetterDirection, ChangeAssessment, CodeVersions, ComparedTrial, ComparedValue,
        ResultPerTrial, ResultValue, Revision, ValueUnit,
    };
    use dtrain_runner::ledger::{TrialStatus, ValueSource};

    fn cell(text: &str, source: ValueSource) -> Option<ComparedValue> {
        Some(ComparedValue { text: text.into(), number: text.parse().ok(), source: Some(source) })
    }

    fn difference(name: &str, values: Vec<Option<ComparedValue>>) -> ValuePerTrial {
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        ValuePerTrial { name: name.into(), values, differs }
    }

    fn figure(
        name: &str,
        unit: ValueUnit,
        a: ResultValue,
        b: ResultValue,
        call: ChangeAssessment,
    ) -> ResultPerTrial {
        let difference = b.value - a.value;
        let change = BaselineDelta { difference, relative: Some(difference / a.value), call };
        ResultPerTrial {
            name: name.into(),
            unit,
            values: vec![Some(a), Some(b)],
            better: BetterDirection::Less,
            changes: vec![None, Some(change)],
        }
    }

    fn value(value: f64, spread: f64) -> ResultValue {
        ResultValue { value, spread: (spread > 0.0).then_some(spread) }
    }

    /// Returns a comparison of two different trials.
    pub(crate) fn comparison() -> TrialComparison {
        let head = |label: &str, status, age: u64| ComparedTrial {
            id: TrialId("01J9ZQ6W3M0000000000000000".into()),
            label: label.into(),
            status,
            created_ms: 1_700_000_000_000 - age * 1000,
        };
        let revision = |patch: Option<&str>| {
            Some(Revision {
                commit: "a1b2c3d4e5f6".into(),
                branch: Some("main".into()),
                patch: patch.map(str::to_owned),
                files: 2,
                added: 14,
                removed: 3,
            })
        };
        let curve = |from: f64| (1..=40).map(|x| Some(from / f64::from(x).sqrt())).collect();
        TrialComparison {
            version: 1,
            trials: vec![
                head("gpt-12", TrialStatus::Completed, 7300),
                head("gpt-31", TrialStatus::Completed, 2460),
            ],
            params: vec![
                difference(
                    "train.batch",
                    vec![cell("256", ValueSource::Recipe), cell("512", ValueSource::Recipe)],
                ),
                difference(
                    "train.learning_rate",
                    vec![cell("6e-4", ValueSource::Recipe), cell("8.5e-4", ValueSource::Planner)],
                ),
                difference("train.clip", vec![None, cell("1.0", ValueSource::Recipe)]),
                difference(
                    "train.seed",
                    vec![cell("7", ValueSource::Default), cell("7", ValueSource::Default)],
                ),
            ],
            results: vec![
                figure(
                    "best valid.loss",
                    ValueUnit::Plain,
                    value(3.118, 0.0),
                    value(3.121, 0.0),
                    ChangeAssessment::Open,
                ),
                figure(
                    "tokens/s",
                    ValueUnit::PerSecond,
                    value(39_140.0, 110.0),
                    value(39_510.0, 90.0),
                    ChangeAssessment::Better,
                ),
                figure(
                    "step",
                    ValueUnit::Seconds,
                    value(0.2, 0.01),
                    value(0.203, 0.01),
                    ChangeAssessment::Same,
                ),
                figure(
                    "peak memory",
                    ValueUnit::Bytes,
                    value(7e9, 0.0),
                    value(7.2e9, 0.0),
                    ChangeAssessment::Open,
                ),
                ResultPerTrial {
                    name: "time to valid.loss 3.000".into(),
                    unit: ValueUnit::Seconds,
                    values: vec![None, Some(value(1860.0, 0.0))],
                    better: BetterDirection::Less,
                    changes: vec![None, None],
                },
            ],
            code: CodeVersions {
                revisions: vec![revision(None), revision(Some("-a\n+b\n"))],
                is_same_commit: true,
                is_same: false,
            },
            environment: vec![difference(
                "kernel",
                vec![cell("6.18", ValueSource::Default), cell("6.18", ValueSource::Default)],
            )],
            curves: vec![curve(4.2), curve(4.0)],
            curve_steps: (1, 900),
        }
    }

    #[test]
    fn a_comparison_shows_what_differs() {
        let page = compare(&comparison(), false, false, plain(100));
        assert!(!page.contains("train.seed"), "{page}");
        insta::assert_snapshot!("compare_100", page);
        assert!(compare(&comparison(), true, false, plain(100)).contains("train.seed"));
        assert!(
            compare(&comparison(), false, true, plain(100)).contains("--- B: uncommitted changes\n-a\n+b\n")
        );
        for wide in [80, 100, 140] {
            let page = compare(&comparison(), true, false, plain(wide));
            assert!(page.lines().all(|line| width(line) <= wide), "at {wide}:\n{page}");
        }
    }

    #[test]
    fn a_comparison_as_csv_has_a_column_for_each_trial() {
        let page = compare_csv(&comparison());
        assert!(
            page.starts_with("part,name,differs,gpt-12,gpt-31\nparameter,train.batch,true,256,512\n"),
            "{page}"
        );
        assert!(page.contains("result,tokens/s,true,39140,39510\n"), "{page}");
        assert!(page.lines().all(|line| line.split(',').count() == 5), "{page}");
    }
}
