//! Report page about a study: its trials, their settings and results.

use super::chart::{Chart, HALF, Trace, range, reduced};
use super::document::{Cell, document, header, marked_table, section, table};
use super::parallel_coordinates::{CoordinateAxis, Ending, TrialPolyline, legend, parallel_coordinates};
use super::search_space::{RecordedDimension, to_text};
use super::slice_plot::{progress, slice_plots};
use super::svg::escaped;
use super::trial_page::HOVER;
use super::unit::{Unit, number};
use crate::render::number::counted;
use dtrain_runner::ledger::{MetricSample, TrialStatus};
use serde_json::Value;

/// Maximum number of points per curve.
const POINTS_MOST: usize = 400;

/// A study with its trials, as its page shows it.
#[derive(Clone, Debug)]
pub(crate) struct StudyPage {
    /// Name of the study.
    pub(crate) name: String,
    /// Stored JSON of the study, with its search space and sampler.
    pub(crate) json: Value,
    /// Name of the objective's metric.
    pub(crate) metric: String,
    /// True if a lower metric is better.
    pub(crate) is_less: bool,
    /// Trials of the study, by number.
    pub(crate) tried: Vec<PlottedTrial>,
    /// Importance of each dimension for the result: name, and share.
    pub(crate) importance: Vec<(String, f64)>,
    /// Steps at which the pruner compares trials; empty without rungs.
    pub(crate) rungs: Vec<u64>,
    /// Estimate for the recommended trial; `None` if there is none.
    pub(crate) believed: Option<PosteriorEstimate>,
}

/// Estimate of a trial's true metric, without its luck, with a 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PosteriorEstimate {
    /// Number of the estimated trial in its study.
    pub(crate) number: u64,
    /// Mean of the estimate.
    pub(crate) mean: f64,
    /// Lower end of the 90 % interval.
    pub(crate) low: f64,
    /// Upper end of the 90 % interval.
    pub(crate) high: f64,
}

/// A trial of a study, as its page plots it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlottedTrial {
    /// Number of the trial in its study, from 0.
    pub(crate) number: u64,
    /// Label of the trial; `None` if it was never trained, or was deleted.
    pub(crate) label: Option<String>,
    /// Value in each dimension of the search space; `null` if the dimension does not apply.
    pub(crate) values: Vec<Value>,
    /// Source of the proposed values, as stored in the history.
    pub(crate) source: Value,
    /// Status of the trial; `None` if it was never trained, or was deleted.
    pub(crate) status: Option<TrialStatus>,
    /// Last value of the objective's metric; `None` without one.
    pub(crate) result: Option<f64>,
    /// True if the pruner has paused the trial at a rung.
    pub(crate) is_paused: bool,
    /// Reason why the trial failed; empty if it did not.
    pub(crate) reason: String,
    /// Points of the objective's metric, by step.
    pub(crate) metric: Vec<MetricSample>,
    /// Points of the training loss, by step; empty if the loss is the metric.
    pub(crate) loss: Vec<MetricSample>,
}

impl PlottedTrial {
    fn end(&self) -> Ending {
        match self.status {
            Some(TrialStatus::Completed) if self.result.is_some_and(f64::is_finite) => Ending::Done,
            Some(TrialStatus::Pruned) => Ending::Pruned,
            Some(_) if self.is_paused => Ending::Pruned,
            Some(TrialStatus::Created | TrialStatus::Lost | TrialStatus::Stopped) => Ending::Open,
            Some(status) if status.is_live() => Ending::Open,
            Some(_) | None => Ending::Failed,
        }
    }

    fn ended(&self) -> String {
        match self.status {
            Some(_) if self.is_paused => "paused".to_owned(),
            Some(status) => crate::render::history::status(status).text,
            None if self.reason.is_empty() => "deleted".to_owned(),
            None => "not trained".to_owned(),
        }
    }

    /// Describes the source of the proposed values in a word or two.
    fn source(&self) -> String {
        let named = self.source.as_object().and_then(|kind| kind.keys().next().map(String::as_str));
        match self.source.as_str().or(named).unwrap_or("-") {
            "given" => "the plan's value".to_owned(),
            "sobol" => "space-filling".to_owned(),
            "tpe" => "TPE".to_owned(),
            "cma_es" => "CMA-ES".to_owned(),
            "swarm" => "particle swarm".to_owned(),
            "mutated" => "evolution".to_owned(),
            "model" => match self.source["model"]["improvement"].as_f64() {
                Some(improvement) => format!("model, expected improvement {}", number(improvement)),
                None => "model".to_owned(),
            },
            other => other.replace('_', " "),
        }
    }
}

/// Builds the HTML page about a study.
pub(crate) fn study_page(study: &StudyPage) -> String {
    let values: Vec<Vec<Value>> = study.tried.iter().map(|tried| tried.values.clone()).collect();
    let dimensions = RecordedDimension::of_study(&study.json, &values);
    let axes: Vec<CoordinateAxis> = dimensions.iter().map(RecordedDimension::axis).collect();
    let strands = trial_polylines(study, &dimensions);
    let within = result_range(study, &strands);
    let metric = study.metric.as_str();
    let mut page = String::new();
    head(&mut page, study, &dimensions, &strands);
    if let Some(within) = within {
        let told =
            "a ring was pruned or paused, a cross at the top failed; a point on the edge lies beyond it";
        let best = progress(metric, &strands, within, study.is_less);
        let weights = weights(study);
        section(&mut page, "Progress", told, &format!("<div class=\"charts\">\n{best}{weights}</div>\n"));
        let told = "a line for each trial through what it tried; drag or scroll sideways where it is wide";
        if !axes.is_empty() {
            let body = parallel_coordinates(&axes, metric, &strands, within) + &legend(&strands);
            section(&mut page, "What was tried and what came of it", told, &body);
            let body = slice_plots(&axes, metric, &strands, within);
            section(
                &mut page,
                "Slices",
                "the result against each param",
                &format!("<div class=\"charts\">\n{body}</div>\n"),
            );
        }
    }
    section(
        &mut page,
        "Curves of all trials",
        if study.rungs.is_empty() { "" } else { "dashed lines are the rungs at which trials are judged" },
        &curves(study, &strands, within),
    );
    section(&mut page, "Pruned, paused and failed", "", &failed_trials(study));
    section(&mut page, "Trials", "", &trials(study, &dimensions, &strands));
    page += &format!("<footer><p>made by dtrain {}</p></footer>\n", env!("CARGO_PKG_VERSION"));
    document(&study.name, &page, Some(HOVER))
}

/// Converts trials to lines, and marks the best tenth of them, at least three.
fn trial_polylines(study: &StudyPage, dimensions: &[RecordedDimension]) -> Vec<TrialPolyline> {
    let sign = if study.is_less { 1.0 } else { -1.0 };
    let done = study.tried.iter().filter(|tried| tried.end() == Ending::Done);
    let mut results: Vec<f64> = done.filter_map(|tried| tried.result).map(|value| sign * value).collect();
    results.sort_by(f64::total_cmp);
    let good = results.get((results.len() / 10).max(3).min(results.len()).saturating_sub(1)).copied();
    let mut best = results.first().copied();
    let strand = |tried: &PlottedTrial| {
        let result = tried.result.filter(|value| value.is_finite());
        let cost = result.filter(|_| tried.end() == Ending::Done).map(|value| sign * value);
        let is_best = cost.is_some() && cost == best;
        if is_best {
            // Of equal trials only one is marked.
            best = None;
        }
        let places = dimensions.iter().enumerate().map(|(at, one)| one.place(tried.values.get(at)?));
        let name = tried.label.clone().unwrap_or_else(|| tried.ended());
        let values = dimensions.iter().zip(&tried.values).filter(|(_, value)| !value.is_null());
        let values: Vec<String> =
            values.map(|(one, value)| format!("{} {}", one.name, to_text(value))).collect();
        let told =
            result.map_or_else(|| tried.ended(), |value| format!("{} {}", study.metric, number(value)));
        TrialPolyline {
            number: tried.number,
            places: places.collect(),
            result,
            end: tried.end(),
            is_good: cost.zip(good).is_some_and(|(cost, good)| cost <= good),
            is_best,
            words: format!("trial {} ({name}): {}; {told}", tried.number + 1, values.join(", ")),
        }
    };
    study.tried.iter().map(strand).collect()
}

/// Returns the range of results to draw, which excludes outliers in the worst tenth; `None` without results.
fn result_range(study: &StudyPage, strands: &[TrialPolyline]) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = strands.iter().filter_map(|strand| strand.result).collect();
    all.sort_by(f64::total_cmp);
    let (low, high) = range(all.iter().copied())?;
    let most = all.len() - 1;
    let tenth = most / 10;
    let (low, high) = if study.is_less {
        let usual = all[most - tenth];
        (low, high.min(usual + (usual - low)))
    } else {
        let usual = all[tenth];
        (low.max(usual - (high - usual)), high)
    };
    Some(if low < high { (low, high) } else { super::chart::room(low, high) })
}

fn head(page: &mut String, study: &StudyPage, dimensions: &[RecordedDimension], strands: &[TrialPolyline]) {
    let count = |end: Ending| study.tried.iter().filter(|tried| tried.end() == end).count();
    let kinds = [
        (Ending::Done, "completed"),
        (Ending::Pruned, "pruned or paused"),
        (Ending::Failed, "failed"),
        (Ending::Open, "not ended"),
    ];
    let kinds = kinds.into_iter().map(|(end, word)| (count(end), word)).filter(|(count, _)| *count > 0);
    let kinds: Vec<String> = kinds.map(|(count, word)| format!("{count} {word}")).collect();
    let way = if study.is_less { "less is better" } else { "more is better" };
    let mut told = vec![
        format!("{}: {}", counted(study.tried.len() as u64, "trial"), kinds.join(", ")),
        format!("{}, {way}", study.metric),
    ];
    if let Some(steps) = study.json["steps"].as_u64() {
        told.push(format!("{steps} steps a trial"));
    }
    let best = strands.iter().zip(&study.tried).find(|(strand, _)| strand.is_best);
    let mut figures = Vec::new();
    match best {
        None => told.push("no trial has completed".to_owned()),
        Some((strand, tried)) => {
            let value = strand.result.map(number).unwrap_or_default();
            figures.push((format!("best {}", study.metric), value));
            let label = tried.label.clone().unwrap_or_default();
            figures.push(("by trial".to_owned(), format!("{} ({label})", tried.number + 1)));
            let values = dimensions.iter().zip(&tried.values).filter(|(_, value)| !value.is_null());
            figures.extend(values.map(|(one, value)| (one.name.clone(), to_text(value))));
        }
    }
    let recommended = study.believed.and_then(|best| {
        let tried = study.tried.iter().find(|tried| tried.number == best.number)?;
        let label = tried.label.as_ref()?;
        let [mean, low, high] = [best.mean, best.low, best.high].map(number);
        let number = best.number + 1;
        Some(format!("recommended: trial {number} ({label}), believed {mean} (90 %: {low} to {high})"))
    });
    told.extend(recommended);
    header(page, &study.name, &told, &figures);
}

/// Draws the importance of each dimension as a bar.
fn weights(study: &StudyPage) -> String {
    let mut shares: Vec<&(String, f64)> = study.importance.iter().collect();
    if shares.is_empty() {
        return String::new();
    }
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let row = |(name, share): &(String, f64)| {
        let percent = 100.0 * share;
        format!(
            "<li><span>{}</span><span>{percent:.0} %</span><i><b style=\"width:{percent:.1}%\"></b></i></li>\n",
            escaped(name)
        )
    };
    let rows: String = shares.into_iter().map(row).collect();
    format!(
        "<figure>\n<figcaption>importance</figcaption>\n<ul class=\"bars\">\n{rows}</ul>\n<p class=\"none\">the share of \
         each param in what makes trials good (PED-ANOVA); all together 100 %</p>\n</figure>\n"
    )
}

/// Draws metric and loss of all trials over steps.
fn curves(study: &StudyPage, strands: &[TrialPolyline], within: Option<(f64, f64)>) -> String {
    let rungs: Vec<f64> = study.rungs.iter().map(|rung| step(*rung)).collect();
    let drawn = |key: &str, of: &dyn Fn(&PlottedTrial) -> &Vec<MetricSample>| {
        let lines: Vec<Trace> =
            ordered(study, strands).filter_map(|(strand, tried)| line(strand, of(tried))).collect();
        // A single point is no curve.
        if lines.iter().all(|line| line.points.len() < 2) {
            return String::new();
        }
        let within = if key == study.metric { curve_range(study, within, &lines) } else { None };
        let across = ("steps", Unit::Count);
        Chart { title: key, across, unit: Unit::of(key), lines: &lines, within, guides: &rungs, size: HALF }
            .drawn()
    };
    let loss = if study.metric == "loss" { String::new() } else { drawn("loss", &|tried| &tried.loss) };
    let charts = drawn(&study.metric, &|tried| &tried.metric) + &loss;
    if charts.is_empty() {
        return charts;
    }
    format!("<div class=\"charts\">\n{charts}</div>\n") + &legend(strands)
}

/// Orders trials by quality, the best last, so that they are drawn on top.
fn ordered<'a>(
    study: &'a StudyPage,
    strands: &'a [TrialPolyline],
) -> impl Iterator<Item = (&'a TrialPolyline, &'a PlottedTrial)> {
    let mut all: Vec<_> = strands.iter().zip(&study.tried).collect();
    all.sort_by_key(|(strand, _)| (strand.is_best, strand.is_good));
    all.into_iter()
}

fn line(strand: &TrialPolyline, samples: &[MetricSample]) -> Option<Trace> {
    if samples.is_empty() {
        return None;
    }
    let class = match (strand.end, strand.is_best, strand.is_good) {
        (_, true, _) => "look-1",
        (_, _, true) => "look-0",
        (Ending::Failed, _, _) => "faint failed",
        (Ending::Pruned, _, _) => "faint pruned",
        _ => "faint",
    };
    let points: Vec<_> = samples.iter().map(|sample| (step(sample.step), sample.value)).collect();
    let mark = if strand.is_best { "★".to_owned() } else { String::new() };
    let points = reduced(&points, POINTS_MOST);
    Some(Trace {
        name: strand.words.clone(),
        mark,
        class: class.to_owned(),
        trial: Some(strand.number),
        points,
    })
}

/// Returns the range of values for the curves: the range `within` of the results, widened towards the better
/// end.
fn curve_range(study: &StudyPage, within: Option<(f64, f64)>, lines: &[Trace]) -> Option<(f64, f64)> {
    let (low, high) = within?;
    let all = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
    let (least, most) = range(all)?;
    let width = high - low;
    Some(if study.is_less {
        (least.min(low), most.min(high + width))
    } else {
        (least.max(low - width), most.max(high))
    })
    .filter(|(low, high)| low < high)
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
fn step(step: u64) -> f64 {
    step as f64
}

fn failed_trials(study: &StudyPage) -> String {
    let of = study.tried.iter().filter(|one| matches!(one.end(), Ending::Pruned | Ending::Failed));
    let row = |tried: &PlottedTrial| -> Vec<Cell> {
        let at = tried
            .metric
            .last()
            .or_else(|| tried.loss.last())
            .map_or(String::new(), |one| one.step.to_string());
        let value = tried.result.map(number).unwrap_or_default();
        let label = tried.label.clone().unwrap_or_default();
        let ended =
            if tried.end() == Ending::Failed { Cell::bad(tried.ended()) } else { tried.ended().into() };
        vec![
            (tried.number + 1).to_string().into(),
            label.into(),
            ended,
            at.into(),
            value.into(),
            tried.reason.clone().into(),
        ]
    };
    table(&["trial", "name", "ended", "at step", &study.metric, "why"], &of.map(row).collect::<Vec<_>>())
}

fn trials(study: &StudyPage, dimensions: &[RecordedDimension], strands: &[TrialPolyline]) -> String {
    let mut titles = vec!["trial", "name"];
    titles.extend(dimensions.iter().map(|one| one.name.as_str()));
    titles.extend([study.metric.as_str(), "ended", "source"]);
    let row = |(tried, strand): (&PlottedTrial, &TrialPolyline)| -> Vec<Cell> {
        let result = tried.result.map_or("-".to_owned(), number);
        let mut row: Vec<Cell> =
            vec![(tried.number + 1).to_string().into(), tried.label.clone().unwrap_or_default().into()];
        row.extend(
            (0..dimensions.len()).map(|at| Cell::from(tried.values.get(at).map_or("-".to_owned(), to_text))),
        );
        row.push(if strand.is_best { Cell::best(result) } else { result.into() });
        row.push(if tried.end() == Ending::Failed { Cell::bad(tried.ended()) } else { tried.ended().into() });
        row.push(tried.source().into());
        row
    };
    let rows: Vec<Vec<Cell>> = study.tried.iter().zip(strands).map(row).collect();
    marked_table(&titles, &rows, |at| study.tried.get(at).map(|tried| tried.number))
}
