//! A plan as a self-contained HTML page: no script, font or picture is loaded from anywhere.
//!
//! `plan_page` and `what_if_page` supply the contents; the page and its drawings depend only on [`PlanPage`].

mod bars;
mod chart;
mod comparison_page;
mod document;
mod parallel_coordinates;
mod plan_page;
mod ranks;
mod scatter;
mod search_space;
mod slice_plot;
mod step_timeline;
mod study_page;
mod svg;
mod trial_page;
mod trial_timeline;
mod unit;
mod what_if_page;

#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod tests;

use crate::render::number::seconds;
pub(crate) use comparison_page::{ComparedTrials, comparison_page};
use document::{document, section};
use dtrain_planner::choice::tradeoffs::Tradeoffs;
use dtrain_planner::step::timeline::Timeline;
use dtrain_recipes::Bytes;
pub(crate) use plan_page::plan_page;
use std::fmt::Write as _;
pub(crate) use study_page::{PlottedTrial, PosteriorEstimate, StudyPage, study_page};
use svg::escaped;
pub(crate) use trial_page::{ChartedTrial, MetricCurve, trial_page};
pub(crate) use what_if_page::what_if_page;

/// Width of all drawings, in their own units.
const WIDTH: f64 = 1040.0;

/// Contents of a plan's page.
#[derive(Clone, Debug)]
pub(crate) struct PlanPage {
    /// Model and hosts of the plan.
    title: String,
    subtitle: String,
    /// The choice in words, shortest line first.
    choice: Vec<String>,
    /// Named figures.
    figures: Vec<(&'static str, String)>,
    time: StepTimeShares,
    memory: Vec<StageMemoryBar>,
    /// Bytes available to a rank.
    available: f64,
    front: Option<ParetoChart>,
    timeline: Option<Timeline>,
    losers: Vec<AlternativeRow>,
    /// Sources of the rates.
    sources: Vec<String>,
}

/// One part of a stacked bar.
#[derive(Clone, Debug)]
struct StackPart {
    name: String,
    value: f64,
    /// Value with its unit.
    words: String,
    /// Color: suffix of a CSS class.
    tone: &'static str,
}

/// Parts of a step's time, and the 80 % interval.
#[derive(Clone, Debug)]
struct StepTimeShares {
    seconds: f64,
    low: f64,
    high: f64,
    causes: Vec<StackPart>,
}

/// Parts of a rank's memory.
#[derive(Clone, Debug)]
struct StageMemoryBar {
    name: String,
    parts: Vec<StackPart>,
}

impl StageMemoryBar {
    fn total(&self) -> f64 {
        self.parts.iter().map(|part| part.value).sum()
    }
}

/// Pareto front over time, memory and cost.
#[derive(Clone, Debug)]
struct ParetoChart {
    /// Billed device: a core or a GPU.
    device: String,
    choice: Dot,
    dots: Vec<Dot>,
}

/// One candidate in the chart.
#[derive(Clone, Debug)]
struct Dot {
    /// Number among the labelled candidates.
    number: Option<usize>,
    words: String,
    step_seconds: f64,
    memory_bytes: f64,
    memory_fraction: f64,
    devices: u32,
    device_hours: Option<f64>,
    money: Option<f64>,
}

/// Best candidate with another value of one setting.
#[derive(Clone, Debug)]
struct AlternativeRow {
    axis: String,
    value: String,
    loss: String,
    memory: String,
    causes: String,
}

impl ParetoChart {
    /// Builds the chart of a choice; `words` describes a candidate.
    fn of<T>(weighed: &Tradeoffs<T>, device: &str, words: impl Fn(&T) -> String) -> Self {
        let dot = |point: &dtrain_planner::choice::tradeoffs::Tradeoff<T>, number| Dot {
            number,
            words: words(&point.candidate),
            step_seconds: point.cost.step_seconds,
            memory_bytes: whole(point.memory_peak),
            memory_fraction: point.cost.memory_fraction,
            devices: point.devices,
            device_hours: point.device_hours,
            money: point.money,
        };
        let number = |index: usize| weighed.distinct.iter().position(|named| *named == index).map(|n| n + 1);
        let dots = weighed.pareto_front.iter().enumerate().map(|(index, point)| dot(point, number(index)));
        Self { device: device.to_owned(), dots: dots.collect(), choice: dot(&weighed.choice, None) }
    }
}

/// Converts causes of time into parts.
fn causes(parts: &[(&str, f64)]) -> Vec<StackPart> {
    let of = |(name, value): &(&str, f64)| StackPart {
        name: (*name).to_owned(),
        value: *value,
        words: seconds(*value),
        tone: tone(name),
    };
    parts.iter().map(of).collect()
}

/// Returns the color of a cause of time.
fn tone(cause: &str) -> &'static str {
    match cause {
        "forward" | "computing" => "forward",
        "backward" => "backward",
        "recompute" => "gradients",
        "gradient sums" | "replicas" => "sent",
        "weight gathers" | "gathering weights" => "weights",
        "tensor parallel" => "tensor",
        "context ring" | "context parallel" => "context",
        "experts" => "experts",
        "optimizer" | "optimizer and the rest" => "optimizer",
        "pipeline bubble" | "slowest replica" => "idle",
        "pipeline messages" | "tied embedding" => "messages",
        _ => "overhead",
    }
}

/// Converts categories of memory into parts, colored by index.
fn categories(parts: impl IntoIterator<Item = (&'static str, f64)>) -> Vec<StackPart> {
    const TONES: [&str; 8] =
        ["forward", "gradients", "optimizer", "sent", "tensor", "weights", "experts", "overhead"];
    let of = |((name, value), tone): ((&'static str, f64), &'static str)| StackPart {
        name: name.to_owned(),
        value,
        words: bytes(value),
        tone,
    };
    parts.into_iter().zip(TONES.into_iter().cycle()).map(of).collect()
}

/// Formats bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn bytes(value: f64) -> String {
    Bytes(value.max(0.0) as u64).to_string()
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
fn whole(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

/// Builds the page.
pub(crate) fn page(report: &PlanPage) -> String {
    let mut page = String::new();
    head(&mut page, report);
    section(
        &mut page,
        "Time of a step",
        "by cause; the bar below it is the 80 % interval",
        &bars::time(&report.time),
    );
    if let Some(timeline) = &report.timeline {
        let told = "what each stage computes and when; idle time is waiting for other stages; shares are of all stages";
        section(&mut page, "One step", told, &step_timeline::step_timeline(timeline));
    }
    let told = "peak memory of one rank per stage; the numbers below are for the heaviest rank";
    section(&mut page, "Memory", told, &bars::memory(&report.memory, report.available));
    if let Some(front) = &report.front {
        let told = "the Pareto front: every configuration that no other beats in time, memory and money";
        section(&mut page, "Trade-offs", told, &scatter::pareto_chart(front));
    }
    if !report.losers.is_empty() {
        let told = "the best configuration for every other value, and what it would cost";
        section(&mut page, "Why the others lose", told, &alternatives_table(&report.losers));
    }
    page += "<footer>\n";
    for source in &report.sources {
        _ = writeln!(page, "<p>{}</p>", escaped(source));
    }
    page += "</footer>\n";
    document(&report.title, &page, None)
}

/// Wraps a drawing so that it scrolls in its own box on a narrow page.
fn wide(drawing: &str) -> String {
    format!("<div class=\"wide\" tabindex=\"0\">\n{drawing}</div>\n")
}

fn head(page: &mut String, report: &PlanPage) {
    _ = writeln!(page, "<header>\n<h1>{}</h1>\n<p>{}</p>", escaped(&report.title), escaped(&report.subtitle));
    for (place, line) in report.choice.iter().enumerate() {
        let class = if place == 0 { "choice-words" } else { "choice-why" };
        _ = writeln!(page, "<p class=\"{class}\">{}</p>", escaped(line));
    }
    page.push_str("<dl>\n");
    for (name, value) in &report.figures {
        _ = writeln!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    page.push_str("</dl>\n</header>\n");
}

fn alternatives_table(losers: &[AlternativeRow]) -> String {
    let mut text = "<table>\n<thead><tr><th>axis</th><th>value</th><th>time</th><th>memory</th>".to_owned();
    text += "<th>what takes longer (+) or shorter (−)</th></tr></thead>\n<tbody>\n";
    let mut last = "";
    for loser in losers {
        let axis = if loser.axis == last { "" } else { &loser.axis };
        last = &loser.axis;
        let cells = [axis, &loser.value, &loser.loss, &loser.memory, &loser.causes];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</tbody>\n</table>\n"
}
