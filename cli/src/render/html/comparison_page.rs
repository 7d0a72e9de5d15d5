//! Report page about several trials: their differences, results and curves.

use super::chart::{POINTS_MOST, Trace, line_class, reduced};
use super::document::{Cell, document, header, section, table};
use super::trial_page::{ChartedTrial, HOVER, HorizontalAxis, chart, views};
use super::unit::{Unit, number};
use crate::render::history::status;
use crate::render::{compare, param};
use dtrain_planner::tune::significance::confidence_interval;
use dtrain_runner::compare::{ResultPerTrial, TrialComparison, ValuePerTrial};
use dtrain_runner::ledger::TrialDetails;
use std::collections::{BTreeMap, BTreeSet};

/// Trials with their comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparedTrials {
    /// Differences between the trials.
    pub(crate) comparison: TrialComparison,
    /// The trials, in the order of the comparison.
    pub(crate) trials: Vec<ChartedTrial>,
}

/// Returns the label in charts of the trial with index `place`: `A` to `Z`, then `A2` and so on.
fn letter(place: usize) -> String {
    let letter = ('A'..='Z').nth(place % 26).unwrap_or('A');
    if place < 26 { letter.to_string() } else { format!("{letter}{}", place / 26 + 1) }
}

/// Builds the HTML page of a comparison.
pub(crate) fn comparison_page(compared: &ComparedTrials) -> String {
    let ComparedTrials { comparison, trials } = compared;
    let labels: Vec<&str> = comparison.trials.iter().map(|trial| trial.label.as_str()).collect();
    let title = match labels.as_slice() {
        [a, b] => format!("{a} and {b}"),
        _ => format!("{} trials", labels.len()),
    };
    let mut page = String::new();
    let told = labels.iter().enumerate().map(|(place, label)| {
        let status = status(comparison.trials[place].status).text;
        format!("{}  {label}: {status}, {}", letter(place), trials[place].trial.row.layout)
    });
    header(&mut page, &title, &told.collect::<Vec<_>>(), &[]);
    let titles = titles(&labels);
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let differing = comparison.params.iter().filter(|one| one.differs).count();
    let told = format!("{differing} of {} params and settings", comparison.params.len());
    section(&mut page, "What differs", &told, &differences(&titles, &comparison.params));
    let told = "a star marks the best; ± is the median absolute deviation";
    section(&mut page, "Results", told, &results(&titles, &comparison.results));
    section(&mut page, "Paired by seed", "the same seed on both sides", &pairs(trials));
    section(&mut page, "Curves", "rank 0; of attempts that overlap, the later one", &curves(trials));
    section(&mut page, "Environment", "what differs", &differences(&titles, &comparison.environment));
    section(&mut page, "Code", "", &code(&titles, comparison));
    page += &format!("<footer><p>made by dtrain {}</p></footer>\n", env!("CARGO_PKG_VERSION"));
    document(&title, &page, Some(HOVER))
}

fn titles(labels: &[&str]) -> Vec<String> {
    let named = labels.iter().enumerate().map(|(place, label)| format!("{} {label}", letter(place)));
    std::iter::once(String::new()).chain(named).collect()
}

fn differences(titles: &[&str], all: &[ValuePerTrial]) -> String {
    let differing = all.iter().filter(|one| one.differs);
    let row = |one: &ValuePerTrial| -> Vec<Cell> {
        let values = one.values.iter().map(|cell| {
            cell.as_ref().map_or_else(|| Cell::from("-"), |cell| compare::text(one, cell).into())
        });
        std::iter::once(Cell::from(param::name(&one.name))).chain(values).collect()
    };
    table(titles, &differing.map(row).collect::<Vec<_>>())
}

fn results(titles: &[&str], results: &[ResultPerTrial]) -> String {
    let row = |figure: &ResultPerTrial| -> Vec<Cell> {
        let best = figure.best();
        let values = figure.values.iter().map(|value| match value {
            None => Cell::from("-"),
            Some(value) => {
                let words = compare::measured_text(*value, figure.unit);
                if best == Some(value.value) { Cell::best(words) } else { words.into() }
            }
        });
        std::iter::once(Cell::from(figure.name.as_str())).chain(values).collect()
    };
    table(titles, &results.iter().map(row).collect::<Vec<_>>())
}

fn code(titles: &[&str], comparison: &TrialComparison) -> String {
    let revisions = comparison.code.revisions.iter().map(|revision| match revision {
        None => Cell::from("no repository"),
        Some(revision) if revision.patch.is_some() => Cell::from(format!(
            "{}, with uncommitted changes (+{} −{} in {} files)",
            short(&revision.commit),
            revision.added,
            revision.removed,
            revision.files
        )),
        Some(revision) => Cell::from(short(&revision.commit)),
    });
    table(titles, &[std::iter::once(Cell::from("commit")).chain(revisions).collect()])
}

fn short(commit: &str) -> String {
    commit.chars().take(10).collect()
}

/// Draws one chart for each metric that any of the trials has.
fn curves(trials: &[ChartedTrial]) -> String {
    let keys: Vec<&str> = {
        let mut seen = BTreeSet::new();
        let all = trials.iter().flat_map(|shown| &shown.curves).map(|curve| curve.key.as_str());
        all.filter(|key| !key.starts_with("system.") && !key.starts_with("gpu.") && seen.insert(*key))
            .collect()
    };
    let tokens = trials.iter().all(|shown| shown.step_tokens().is_some());
    let counted = trials.first().filter(|_| tokens).map(ChartedTrial::counted);
    let drawn =
        views(counted, |across, name| keys.iter().map(|key| over(trials, key, across, name)).collect());
    let told: Vec<(String, String)> = trials
        .iter()
        .enumerate()
        .map(|(place, shown)| (line_class(place), format!("{} {}", letter(place), shown.trial.row.label)))
        .collect();
    if drawn.is_empty() { drawn } else { drawn + &super::chart::legend(&told) }
}

fn over(trials: &[ChartedTrial], key: &str, across: HorizontalAxis, name: (&'static str, Unit)) -> String {
    let lines = trials.iter().enumerate().filter_map(|(place, shown)| {
        let curve = shown.curves.iter().find(|curve| curve.key == key)?;
        // If a step has two points, that of the later attempt counts.
        let mut by_step = BTreeMap::new();
        for (attempt, samples) in &curve.attempts {
            by_step.extend(
                samples
                    .iter()
                    .map(|sample| (sample.step, (shown.place(*attempt, sample, across), sample.value))),
            );
        }
        let mut points: Vec<(f64, f64)> = by_step.into_values().collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let letter = letter(place);
        let name = format!("{letter} {}", shown.trial.row.label);
        let most = if trials.len() > 4 { POINTS_MOST / 4 } else { POINTS_MOST / 2 };
        Some(Trace {
            name,
            mark: letter,
            class: line_class(place),
            trial: None,
            points: reduced(&points, most),
        })
    });
    chart(key, name, &lines.collect::<Vec<_>>()).drawn()
}

/// Returns the settings of a trial except the seed, and the seed.
fn setting(trial: &TrialDetails) -> (Vec<(&str, String)>, String) {
    let is_seed = |path: &str| path == "train.seed" || path == "params.seed";
    let (seeds, others): (Vec<_>, Vec<_>) = trial.params.iter().partition(|param| is_seed(&param.path));
    let others = others.into_iter().map(|param| (param.path.as_str(), param.value.to_string())).collect();
    (others, seeds.iter().map(|param| param.value.to_string()).collect::<Vec<_>>().join(","))
}

/// Results of one setting's trials by seed: index among the compared trials, and best value.
type SeedResults = BTreeMap<String, (usize, f64)>;

/// Formats tests of settings, trained with two or more common seeds, against the first of these settings.
fn pairs(trials: &[ChartedTrial]) -> String {
    let mut groups: Vec<(Vec<(&str, String)>, SeedResults)> = Vec::new();
    for (place, shown) in trials.iter().enumerate() {
        let Some(best) = shown.trial.row.best.filter(|best| best.is_finite()) else { continue };
        let (others, seed) = setting(&shown.trial);
        match groups.iter_mut().find(|(known, _)| *known == others) {
            Some((_, seeds)) => _ = seeds.insert(seed, (place, best)),
            None => groups.push((others, SeedResults::from([(seed, (place, best))]))),
        }
    }
    let Some(((_, first), others)) = groups.split_first() else { return String::new() };
    let rows: Vec<Vec<Cell>> = others.iter().filter_map(|(_, seeds)| pair(first, seeds)).collect();
    table(&["against the first", "seeds", "mean difference", "90 % interval", ""], &rows)
}

fn pair(first: &SeedResults, other: &SeedResults) -> Option<Vec<Cell>> {
    let common = first.iter().filter_map(|(seed, (a, before))| {
        other.get(seed).map(|(b, after)| (format!("{}–{}", letter(*a), letter(*b)), after - before))
    });
    let (names, differences): (Vec<String>, Vec<f64>) = common.unzip();
    let (mean, margin) = confidence_interval(&differences);
    let reach = margin?;
    let call = if mean.abs() <= reach { "not distinguishable" } else { "distinguishable" };
    Some(vec![
        names.join(", ").into(),
        differences.len().to_string().into(),
        number(mean).into(),
        format!("{} to {}", number(mean - reach), number(mean + reach)).into(),
        call.into(),
    ])
}
