//! Timeline of one training step: a lane per pipeline stage, time from left to right.

use super::WIDTH;
use super::bars::{axis, percent};
use super::svg::{Anchor, AxisScale, Rectangle, Svg, escaped};
use crate::render::number::seconds;
use dtrain_planner::step::timeline::{Activity, Span, StageTrack, Timeline};
use std::fmt::Write as _;

/// Left and right edges of the lanes.
pub(super) const LANES: (f64, f64) = (84.0, WIDTH - 8.0);

/// Number of spans above which they are merged into shapes without tooltips, to limit the page's size.
const MOST_SAID: usize = 4000;

/// Width from which on a forward or backward pass shows its number.
const ROOM: f64 = 18.0;

/// Draws the timeline of a step and its legend.
pub(super) fn step_timeline(timeline: &Timeline) -> String {
    let count = timeline.lanes.len();
    let (row, gap) = if count > 16 { (20.0, 2.0) } else { (36.0, 6.0) };
    #[expect(clippy::cast_precision_loss, reason = "stages are few")]
    let bottom = 8.0 + row * count as f64;
    let mut svg = Svg::new(WIDTH, bottom + 26.0, "what each stage does in one step");
    let scale = AxisScale::even((0.0, timeline.step_seconds), LANES);
    let is_said = timeline.lanes.iter().map(|lane| lane.spans.len()).sum::<usize>() <= MOST_SAID;
    let mut y = 8.0;
    for (stage, lane) in timeline.lanes.iter().enumerate() {
        let name = if count == 1 { "all ranks".to_owned() } else { format!("stage {stage}") };
        svg.text((LANES.0 - 10.0, y + (row - gap) / 2.0), Anchor::End, "label", &name);
        if is_said {
            lane.spans.iter().for_each(|span| draw(&mut svg, span, scale, (y, row - gap)));
        } else {
            draw_all(&mut svg, lane, scale, (y, row - gap));
        }
        y += row;
    }
    axis(&mut svg, scale, bottom + 10.0, seconds);
    svg.finished() + &legend(timeline)
}

fn area(span: &Span, scale: AxisScale, (y, height): (f64, f64)) -> Rectangle {
    let (x, end) = (scale.at(span.begin), scale.at(span.begin + span.seconds));
    Rectangle { x, y, width: end - x, height }
}

fn draw_all(svg: &mut Svg, lane: &StageTrack, scale: AxisScale, row: (f64, f64)) {
    for doing in Activity::ALL {
        let spans = lane.spans.iter().filter(|span| span.doing == doing);
        svg.areas(spans.map(|span| area(span, scale, row)), class(doing));
    }
}

fn draw(svg: &mut Svg, span: &Span, scale: AxisScale, row: (f64, f64)) {
    let area = area(span, scale, row);
    svg.area(area, class(span.doing), Some(&span_title(span)));
    let number = span.pass.filter(|_| area.width > ROOM && span.doing != Activity::Communication);
    if let Some(pass) = number {
        let middle = (area.x + area.width / 2.0, area.y + area.height / 2.0);
        svg.text(middle, Anchor::Middle, "inside", &pass.micro.to_string());
    }
}

fn span_title(span: &Span) -> String {
    let took = seconds(span.seconds);
    match span.pass {
        Some(pass) if pass.chunk > 0 => {
            format!("{} of micro-batch {}, chunk {}: {took}", span.doing.words(), pass.micro, pass.chunk)
        }
        Some(pass) => format!("{} of micro-batch {}: {took}", span.doing.words(), pass.micro),
        None => format!("{}: {took}", span.doing.words()),
    }
}

/// Returns the CSS class for an activity of a stage.
pub(super) fn class(doing: Activity) -> &'static str {
    match doing {
        Activity::Forward => "tone-forward",
        Activity::Backward => "tone-backward",
        Activity::Weights => "tone-gradients",
        Activity::Communication => "tone-sent",
        Activity::Optimizer => "tone-optimizer",
        Activity::Overhead => "tone-overhead",
        Activity::Idle => "tone-idle",
    }
}

/// Formats the legend: color of each activity, and its share of the time of all stages.
fn legend(timeline: &Timeline) -> String {
    let all: f64 = timeline.lanes.iter().map(StageTrack::seconds).sum();
    let mut text = "<ul class=\"legend\">\n".to_owned();
    for doing in Activity::ALL {
        let seconds: f64 = timeline.lanes.iter().map(|lane| lane.of(doing)).sum();
        if seconds > 0.0 {
            let (class, words) = (class(doing), doing.words());
            let share = escaped(&percent(seconds / all));
            _ = writeln!(text, "<li><i class=\"swatch {class}\"></i>{words} <small>{share}</small></li>");
        }
    }
    text + "</ul>\n"
}
