//! Parallel coordinates of a study: each trial is a line through the axes of the searched settings, up to its
//! result.

use super::svg::{Anchor, Svg, escaped};
use super::unit::number;
use super::{WIDTH, wide};

/// Axis for one searched setting.
#[derive(Clone, Debug)]
pub(super) struct CoordinateAxis {
    pub(super) name: String,
    /// Tick marks of the axis: position (0 at the bottom, 1 at the top) and label.
    pub(super) marks: Vec<(f64, String)>,
}

/// Outcome of a plotted trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Done,
    Pruned,
    Failed,
    Open,
}

/// A trial as a line through the axes.
#[derive(Clone, Debug)]
pub(super) struct TrialPolyline {
    pub(super) number: u64,
    /// Position of the line on each axis; `None` if the trial has no value there.
    pub(super) places: Vec<Option<f64>>,
    pub(super) result: Option<f64>,
    pub(super) end: Ending,
    /// True for one of the best trials, which are highlighted.
    pub(super) is_good: bool,
    pub(super) is_best: bool,
    pub(super) words: String,
}

/// Number of lines from which on each is drawn fainter.
pub(super) const MANY: usize = 60;

const TOP: f64 = 44.0;
const BOTTOM: f64 = 330.0;

/// Vertical position of a line on an axis where it has no value.
const WITHOUT: f64 = 360.0;

/// Draws the axes side by side with a line per trial; the last axis is the result, limited to `range`.
pub(super) fn parallel_coordinates(
    axes: &[CoordinateAxis],
    metric: &str,
    strands: &[TrialPolyline],
    range: (f64, f64),
) -> String {
    let count = axes.len() + 1;
    #[expect(clippy::cast_precision_loss, reason = "axes are few")]
    let gap = ((WIDTH - 190.0) / (count - 1) as f64).max(120.0);
    #[expect(clippy::cast_precision_loss, reason = "axes are few")]
    let width = 190.0 + gap * (count - 1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "axes are few")]
    let across = |axis: usize| 100.0 + gap * axis as f64;
    let up = |place: f64| BOTTOM - place.clamp(0.0, 1.0) * (BOTTOM - TOP);
    let result = super::svg::AxisScale::even(range, (0.0, 1.0));
    let mut svg = Svg::new(width, WITHOUT + 26.0, &format!("{metric} of each trial by what it tried"));
    let many = if strands.len() > MANY { " many" } else { "" };
    svg.set_attributes(&[("class", format!("parallel{many}"))]);
    let mut ordered: Vec<&TrialPolyline> = strands.iter().collect();
    ordered.sort_by_key(|strand| (strand.is_best, strand.is_good));
    for strand in ordered {
        let class = match (strand.end, strand.is_best, strand.is_good) {
            (_, true, _) => "strand best",
            (_, _, true) => "strand good",
            (Ending::Failed, _, _) => "strand failed",
            (Ending::Pruned, _, _) => "strand pruned",
            _ => "strand",
        };
        let mut places: Vec<Option<(f64, f64)>> = Vec::new();
        for (axis, place) in strand.places.iter().enumerate() {
            places.push(Some((across(axis), place.map_or(WITHOUT, up))));
        }
        let value = strand.result.filter(|value| value.is_finite()).map(|value| up(result.at(value)));
        places.push(Some((across(axes.len()), value.unwrap_or(WITHOUT))));
        let attributes = format!(" class=\"{class}\" data-trial=\"{}\"", strand.number);
        svg.polyline(&places, &attributes, &strand.words);
    }
    let without = strands.iter().any(|strand| {
        strand.places.iter().any(Option::is_none) || strand.result.is_none_or(|value| !value.is_finite())
    });
    if without {
        svg.text((10.0, WITHOUT), Anchor::Start, "small", "no value");
    }
    for (place, axis) in axes.iter().enumerate() {
        let name = if gap > 190.0 { axis.name.as_str() } else { last(&axis.name) };
        axis_of(&mut svg, across(place), name, &axis.marks, &up);
    }
    let marks = super::svg::AxisScale::even(range, (0.0, 1.0)).marks(6);
    let marks: Vec<_> = marks.into_iter().map(|mark| (result.at(mark), number(mark))).collect();
    axis_of(&mut svg, across(axes.len()), metric, &marks, &up);
    wide(&svg.finished())
}

fn axis_of(svg: &mut Svg, x: f64, name: &str, marks: &[(f64, String)], up: &impl Fn(f64) -> f64) {
    svg.line((x, TOP - 6.0), (x, BOTTOM + 6.0), "axis");
    svg.text((x, 18.0), Anchor::Middle, "label", name);
    for (place, words) in marks {
        svg.line((x - 4.0, up(*place)), (x, up(*place)), "axis");
        svg.text((x - 7.0, up(*place)), Anchor::End, "small halo", words);
    }
}

/// Returns the last word of a key, such as `learning_rate` of `train.learning_rate`.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Formats the legend of the line styles that occur.
pub(super) fn legend(strands: &[TrialPolyline]) -> String {
    let any = |of: &dyn Fn(&TrialPolyline) -> bool| strands.iter().any(of);
    let kinds = [
        ("best", "the best", any(&|s| s.is_best)),
        ("good", "the best tenth, at least three", any(&|s| s.is_good && !s.is_best)),
        ("", "others", any(&|s| s.end == Ending::Done && !s.is_good)),
        ("pruned", "pruned or paused", any(&|s| s.end == Ending::Pruned)),
        ("failed", "failed", any(&|s| s.end == Ending::Failed)),
    ];
    let mut text = "<ul class=\"legend\">\n".to_owned();
    for (class, name, _) in kinds.iter().filter(|(_, _, is_there)| *is_there) {
        let key = "<svg class=\"key\" viewBox=\"0 0 34 8\" aria-hidden=\"true\">";
        text +=
            &format!("<li>{key}<path d=\"M1 4h32\" class=\"strand {class}\"/></svg>{}</li>\n", escaped(name));
    }
    text + "</ul>\n"
}
