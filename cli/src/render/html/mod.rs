//! Reports and plans as self-contained HTML pages: no script, font or picture is loaded from anywhere.
//!
//! `plan_page` and `what_if_page` supply the contents of a plan's page; page and drawings depend only on
//! [`PlanPage`].

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

/// Contents of the page about a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanPage {
    /// Title of the page: model and hosts of the plan.
    title: String,
    subtitle: String,
    /// Lines that describe the chosen layout, the shortest first.
    choice: Vec<String>,
    /// Figures in the page's header: name, and value with unit.
    figures: Vec<(&'static str, String)>,
    time: StepTimeShares,
    memory: Vec<StageMemoryBar>,
    /// Memory available to a rank, in bytes.
    available: f64,
    front: Option<ParetoChart>,
    timeline: Option<Timeline>,
    losers: Vec<AlternativeRow>,
    /// Sources of the rates from which the plan was priced.
    sources: Vec<String>,
}

/// One part of a stacked bar.
#[derive(Clone, Debug)]
struct StackPart {
    name: String,
    value: f64,
    /// Value of the part with its unit, for display.
    words: String,
    /// Color of the part, as the suffix of a CSS class.
    tone: &'static str,
}

/// Predicted time of a step by cause, with the ends of its 80 % interval.
#[derive(Clone, Debug)]
struct StepTimeShares {
    seconds: f64,
    low: f64,
    high: f64,
    causes: Vec<StackPart>,
}

/// Memory of a stage or rank by category, as a bar.
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

/// Pareto front of candidates over time, memory and cost.
#[derive(Clone, Debug)]
struct ParetoChart {
    /// Name of the device that costs are counted in: a core or a GPU.
    device: String,
    choice: Dot,
    dots: Vec<Dot>,
}

/// One candidate in the chart of the Pareto front.
#[derive(Clone, Debug)]
struct Dot {
    /// Number among the labeled candidates; `None` without a label.
    number: Option<usize>,
    words: String,
    step_seconds: f64,
    memory_bytes: f64,
    memory_fraction: f64,
    devices: u32,
    device_hours: Option<f64>,
    money: Option<f64>,
}

/// Best candidate whose value of one setting differs from the choice.
#[derive(Clone, Debug)]
struct AlternativeRow {
    axis: String,
    value: String,
    loss: String,
    memory: String,
    causes: String,
}

impl ParetoChart {
    /// Builds the chart of the Pareto front around a choice; `words` describes a candidate.
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

/// Converts seconds by cause into the parts of a bar.
fn causes(parts: &[(&str, f64)]) -> Vec<StackPart> {
    let of = |(name, value): &(&str, f64)| StackPart {
        name: (*name).to_owned(),
        value: *value,
        words: seconds(*value),
        tone: tone(name),
    };
    parts.iter().map(of).collect()
}

/// Returns the color of a cause of time, as the suffix of a CSS class.
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

/// Converts bytes by category into the parts of a bar, colored by index.
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

/// Formats a number of bytes with a unit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
fn bytes(value: f64) -> String {
    Bytes(value.max(0.0) as u64).to_string()
}

#[expect(clippy::cast_precision_loss, reason = "it is drawn")]
fn whole(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

/// Builds the HTML page about a plan.
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
