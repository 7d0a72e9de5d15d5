//! Stacked bars: shares of a step's time, and memory of each stage.

use super::svg::{Anchor, AxisScale, Rectangle, Svg, escaped};
use super::{StackPart, StageMemoryBar, StepTimeShares, WIDTH, bytes};
use crate::render::number::seconds;
use std::fmt::Write as _;

/// Estimated width of one letter in a label.
const LETTER: f64 = 7.5;

/// Draws the shares of a step's time as one bar, and below it the 80 % interval of the time.
pub(super) fn time(step: &StepTimeShares) -> String {
    const LEFT: f64 = 16.0;
    let mut svg = Svg::new(WIDTH, 96.0, "time of a step by cause");
    let longest = step.high.max(step.seconds);
    let scale = AxisScale::even((0.0, longest), (LEFT, WIDTH - LEFT));
    parts(&mut svg, &step.causes, step.seconds, scale, (8.0, 40.0));
    let (low, middle, high) = (scale.at(step.low), scale.at(step.seconds), scale.at(step.high));
    let y = 60.0;
    svg.line((low, y), (high, y), "range");
    for x in [low, high] {
        svg.line((x, y - 5.0), (x, y + 5.0), "range");
    }
    svg.dot((middle, y), 4.0, "range-dot", None);
    axis(&mut svg, scale, 80.0, seconds);
    svg.finished() + &legend(&step.causes, step.seconds)
}

/// Draws the memory of each stage as a bar, on a common scale up to the memory available to a rank.
pub(super) fn memory(stages: &[StageMemoryBar], available: f64) -> String {
    let (mut svg, scale, height) =
        stacked(stages, available, "memory of a rank of each stage by category", bytes);
    let limit = scale.at(available);
    svg.line((limit, 4.0), (limit, height), "limit");
    let place = (limit, height + 10.0);
    svg.text(place, Anchor::Middle, "small", &format!("{} usable", bytes(available)));
    svg.finished() + &of_largest(stages)
}

/// Draws one bar per rank, and one for the plan if given, on a common scale; the legend describes the largest
/// rank's bar. `what` is the accessible name of the drawing.
pub(super) fn ranks(
    plan: Option<StageMemoryBar>,
    ranks: Vec<StageMemoryBar>,
    what: &str,
    words: fn(f64) -> String,
) -> String {
    let legend = of_largest(&ranks);
    let rows: Vec<StageMemoryBar> = plan.into_iter().chain(ranks).collect();
    super::wide(&stacked(&rows, 0.0, what, words).0.finished()) + &legend
}

/// Draws bars with names and totals on a scale up to `least` or more; returns drawing, scale and height.
fn stacked(
    stages: &[StageMemoryBar],
    least: f64,
    what: &str,
    words: fn(f64) -> String,
) -> (Svg, AxisScale, f64) {
    const LEFT: f64 = 110.0;
    const RIGHT: f64 = 96.0;
    let row = if stages.len() > 12 { 20.0 } else { 32.0 };
    #[expect(clippy::cast_precision_loss, reason = "stages are few")]
    let height = 18.0 + row * stages.len() as f64;
    let below = if least > 0.0 { 24.0 } else { 0.0 };
    let mut svg = Svg::new(WIDTH, height + below, what);
    let fullest = stages.iter().map(StageMemoryBar::total).fold(least, f64::max);
    let scale = AxisScale::even((0.0, fullest), (LEFT, WIDTH - RIGHT));
    let mut y = 12.0;
    for stage in stages {
        let middle = y + row / 2.0 - 1.0;
        svg.text((LEFT - 10.0, middle), Anchor::End, "label", &stage.name);
        parts(&mut svg, &stage.parts, stage.total(), scale, (y, row - 6.0));
        let end = scale.at(stage.total()) + 8.0;
        svg.text((end, middle), Anchor::Start, "figure", &words(stage.total()));
        y += row;
    }
    (svg, scale, height)
}

/// Returns the legend of the largest of the bars.
fn of_largest(stages: &[StageMemoryBar]) -> String {
    let all = stages.iter().max_by(|a, b| a.total().total_cmp(&b.total()));
    all.map_or_else(String::new, |stage| legend(&stage.parts, stage.total()))
}

/// Draws the parts of a bar side by side, with labels where they fit.
fn parts(svg: &mut Svg, parts: &[StackPart], whole: f64, scale: AxisScale, (y, height): (f64, f64)) {
    let mut before = 0.0;
    for part in parts.iter().filter(|part| part.value > 0.0) {
        let (x, end) = (scale.at(before), scale.at(before + part.value));
        let title = format!("{}: {}, {}", part.name, part.words, percent(part.value / whole));
        svg.area(Rectangle { x, y, width: end - x, height }, &format!("tone-{}", part.tone), Some(&title));
        #[expect(clippy::cast_precision_loss, reason = "a few letters")]
        let room = part.name.chars().count() as f64 * LETTER + 8.0;
        if end - x > room && height > 20.0 {
            let class = if part.tone == "idle" { "in-light" } else { "inside" };
            svg.text(((x + end) / 2.0, y + height / 2.0), Anchor::Middle, class, &part.name);
        }
        before += part.value;
    }
}

/// Draws a horizontal axis with tick marks, labeled by `words`.
pub(super) fn axis(svg: &mut Svg, scale: AxisScale, y: f64, words: fn(f64) -> String) {
    for mark in scale.marks(8) {
        let x = scale.at(mark);
        svg.line((x, y - 6.0), (x, y - 2.0), "axis");
        let words = if mark == 0.0 { "0".to_owned() } else { words(mark) };
        svg.text((x, y + 6.0), Anchor::Middle, "small", &words);
    }
}

/// Formats the legend of a bar: color, name and share of each part.
fn legend(parts: &[StackPart], whole: f64) -> String {
    let mut text = "<ul class=\"legend\">\n".to_owned();
    for part in parts.iter().filter(|part| part.value > 0.0) {
        _ = writeln!(
            text,
            "<li><i class=\"swatch tone-{}\"></i>{} <b>{}</b> <small>{}</small></li>",
            part.tone,
            escaped(&part.name),
            escaped(&part.words),
            escaped(&percent(part.value / whole))
        );
    }
    text + "</ul>\n"
}

/// Formats a share in percent; tiny ones as `< 0.1 %`.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 0.1 { "< 0.1 %".to_owned() } else { format!("{percent:.1} %") }
}
