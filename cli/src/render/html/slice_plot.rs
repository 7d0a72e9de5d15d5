//! Slice plots: results of a study's trials against each searched value, and in the order of the trials.

use super::chart::{HALF, range, room};
use super::parallel_coordinates::{CoordinateAxis, Ending, TrialPolyline};
use super::svg::{Anchor, AxisScale, Svg, escaped};
use super::unit::number;

/// Edges of a plot's frame: left, right, top, bottom.
const FRAME: (f64, f64, f64, f64) = (70.0, HALF.0 - 16.0, 14.0, HALF.1 - 44.0);

/// Draws one plot per axis: value to the right, result upwards, limited to `within`.
pub(super) fn slice_plots(
    axes: &[CoordinateAxis],
    metric: &str,
    strands: &[TrialPolyline],
    within: (f64, f64),
) -> String {
    let drawn = axes.iter().enumerate().map(|(place, axis)| {
        let mut svg = Svg::new(HALF.0, HALF.1, &format!("{metric} against {}", axis.name));
        svg.set_attributes(&[("class", "curve".to_owned())]);
        let across = AxisScale::even((0.0, 1.0), (FRAME.0 + 14.0, FRAME.1 - 20.0));
        let up = frame(&mut svg, within);
        for (at, words) in &axis.marks {
            svg.line((across.at(*at), FRAME.3), (across.at(*at), FRAME.3 + 4.0), "axis");
            svg.text((across.at(*at), FRAME.3 + 14.0), Anchor::Middle, "small", words);
        }
        let middle = f64::midpoint(FRAME.0, FRAME.1);
        svg.text((middle, FRAME.3 + 34.0), Anchor::Middle, "small", &axis.name);
        for strand in strands {
            if let Some(at) = strand.places.get(place).copied().flatten() {
                spot(&mut svg, strand, across.at(at.clamp(0.0, 1.0)), up, within);
            }
        }
        figure(&format!("{metric} against {}", axis.name), &svg.finished())
    });
    drawn.collect()
}

/// Draws results in the order of the trials, with the best so far as a line; `is_less` means lower is better.
pub(super) fn progress(metric: &str, strands: &[TrialPolyline], within: (f64, f64), is_less: bool) -> String {
    let (width, _) = super::chart::HALF;
    let mut svg = Svg::new(width, HALF.1, &format!("{metric} of each trial and the best so far"));
    svg.set_attributes(&[("class", "curve".to_owned())]);
    #[expect(clippy::cast_precision_loss, reason = "trials are counted")]
    let at = |strand: &TrialPolyline| strand.number as f64 + 1.0;
    let ends = range(strands.iter().map(at)).unwrap_or((1.0, 1.0));
    let across = AxisScale::even(room(ends.0, ends.1), (FRAME.0, FRAME.1));
    let up = frame(&mut svg, within);
    for mark in across.marks(5).into_iter().filter(|mark| mark.fract() == 0.0 && *mark > 0.0) {
        svg.line((across.at(mark), FRAME.3), (across.at(mark), FRAME.3 + 4.0), "axis");
        svg.text((across.at(mark), FRAME.3 + 14.0), Anchor::Middle, "small", &number(mark));
    }
    svg.text((f64::midpoint(FRAME.0, FRAME.1), FRAME.3 + 34.0), Anchor::Middle, "small", "trial");
    let (mut best, mut steps) = (None::<f64>, Vec::new());
    for strand in strands {
        let fresh = strand.result.filter(|value| strand.end == Ending::Done && value.is_finite());
        let is_better = |fresh: f64, best: f64| if is_less { fresh < best } else { fresh > best };
        let x = across.at(at(strand));
        let height = |value: f64| up.at(value.clamp(within.0, within.1));
        steps.extend(best.map(|best| Some((x, height(best)))));
        if let Some(fresh) = fresh.filter(|fresh| best.is_none_or(|best| is_better(*fresh, best))) {
            best = Some(fresh);
            steps.push(Some((x, height(fresh))));
        }
    }
    svg.polyline(&steps, " class=\"line look-0\"", "the best so far");
    for strand in strands {
        spot(&mut svg, strand, across.at(at(strand)), up, within);
    }
    figure(&format!("{metric} of each trial; the line is the best so far"), &svg.finished())
}

/// Draws the vertical axis of results; returns its scale.
fn frame(svg: &mut Svg, within: (f64, f64)) -> AxisScale {
    let up = AxisScale::even(room(within.0, within.1), (FRAME.3, FRAME.2));
    for mark in up.marks(5) {
        svg.line((FRAME.0, up.at(mark)), (FRAME.1, up.at(mark)), "grid");
        svg.text((FRAME.0 - 8.0, up.at(mark)), Anchor::End, "small", &number(mark));
    }
    up
}

/// Draws a trial at `x`: a dot if it completed, a ring if pruned or unfinished, a cross at the top if it
/// failed.
fn spot(svg: &mut Svg, strand: &TrialPolyline, x: f64, up: AxisScale, within: (f64, f64)) {
    let y = strand.result.filter(|value| value.is_finite()).map(|v| up.at(v.clamp(within.0, within.1)));
    let attributes = format!("data-trial=\"{}\"", strand.number);
    match (strand.end, y) {
        (Ending::Failed, _) | (_, None) => {
            svg.cross((x, FRAME.2 + 4.0), "spot failed", &attributes, &strand.words);
        }
        (Ending::Pruned | Ending::Open, Some(y)) => {
            svg.spot((x, y), 4.0, "spot ring", &attributes, &strand.words);
        }
        (Ending::Done, Some(y)) if strand.is_best => {
            svg.spot((x, y), 7.0, "spot best", &attributes, &strand.words);
        }
        (Ending::Done, Some(y)) => svg.spot((x, y), 4.5, "spot look-0", &attributes, &strand.words),
    }
}

fn figure(title: &str, body: &str) -> String {
    format!("<figure>\n<figcaption>{}</figcaption>\n{body}</figure>\n", escaped(title))
}
