//! Line charts of values over steps, tokens or time.

use super::parallel_coordinates::MANY;
use super::svg::{Anchor, AxisScale, Svg, escaped};
use super::unit::Unit;
use crate::render::number::counted;
use std::fmt::Write as _;

/// Maximum number of points in a line; longer lines are reduced to minima and maxima.
pub(super) const POINTS_MOST: usize = 2000;

/// Maximum number of points in a line that are drawn as dots too.
const DOTS_MOST: usize = 40;

/// Ratio of the largest to the smallest value from which on the scale is logarithmic.
const WIDE: f64 = 30.0;

/// Number of line styles (color and dashes); further lines reuse them.
pub(super) const LOOKS: usize = 6;

/// A line in a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trace {
    /// Name of the line in the legend.
    pub(super) name: String,
    /// Short label at the end of the line; may be empty.
    pub(super) mark: String,
    /// CSS class of the line: `look-0` to `look-5`, or `faint`.
    pub(super) class: String,
    /// Number of the trial that the line belongs to, for the page's script; `None` if it is not needed.
    pub(super) trial: Option<u64>,
    /// Points (x, y) of the line; a value that is not finite breaks it.
    pub(super) points: Vec<(f64, f64)>,
}

/// Returns the CSS class of the line with index `place`.
pub(super) fn line_class(place: usize) -> String {
    format!("look-{}", place % LOOKS)
}

/// A line chart with its axes and size.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// Label and unit of the chart's x axis.
    pub(super) across: (&'a str, Unit),
    pub(super) unit: Unit,
    pub(super) lines: &'a [Trace],
    /// Range of y values to show, with other values drawn at the edge; `None` for the range of all values.
    pub(super) within: Option<(f64, f64)>,
    /// X positions that a vertical line marks.
    pub(super) guides: &'a [f64],
    /// Width and height of the chart.
    pub(super) size: (f64, f64),
}

/// Width and height of a chart that takes half the page's width.
pub(super) const HALF: (f64, f64) = (500.0, 250.0);

impl Chart<'_> {
    /// Draws the chart as an HTML figure; empty without points.
    pub(super) fn drawn(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let finite = || points().filter(|(x, y)| x.is_finite() && y.is_finite());
        let (Some(across), Some(values)) =
            (range(points().map(|(x, _)| *x)), range(finite().map(|(_, y)| *y)))
        else {
            return self.without_a_number(points().count());
        };
        let (low, high) = self.within.unwrap_or(values);
        let is_wide = low > 0.0 && high / low >= WIDE;
        let (width, height) = self.size;
        let marked = if self.lines.iter().any(|line| !line.mark.is_empty()) { 30.0 } else { 14.0 };
        let frame = (70.0, width - marked, 12.0, height - 44.0);
        let places = (frame.3, frame.2);
        let x = AxisScale::even(across, (frame.0, frame.1));
        let y = if is_wide {
            AxisScale::of_ratios((low, high), places)
        } else {
            AxisScale::even(room(low, high), places)
        };
        let name = format!("{} over {}", self.title, self.across.0);
        let mut svg = Svg::new(width, height, &name);
        svg.set_attributes(&[
            ("class", format!("curve{}", if self.lines.len() > MANY { " many" } else { "" })),
            ("data-x", scale_attribute((frame.0, frame.1), across, false)),
            ("data-y", scale_attribute(places, if is_wide { (low, high) } else { room(low, high) }, is_wide)),
            ("data-across", self.across.0.to_owned()),
            ("data-across-unit", self.across.1.suffix().to_owned()),
            ("data-unit", self.unit.suffix().to_owned()),
        ]);
        self.axes(&mut svg, x, y, frame);
        for guide in self.guides.iter().filter(|guide| (across.0..=across.1).contains(*guide)) {
            svg.line((x.at(*guide), frame.2), (x.at(*guide), frame.3), "guide");
        }
        for line in self.lines {
            draw(&mut svg, line, x, y, (low, high));
        }
        marks(&mut svg, self.lines, x, y, (low, high), frame);
        let lost = points().count() - finite().count();
        let scale = if is_wide { ", log scale" } else { "" };
        let unit = self.unit.title_suffix();
        let lost =
            if lost > 0 { format!("; {} not finite", counted(lost as u64, "point")) } else { String::new() };
        caption(&format!("{}{unit}{scale}{lost}", self.title), &svg.finished())
    }

    fn without_a_number(&self, points: usize) -> String {
        if points == 0 {
            return String::new();
        }
        caption(self.title, &format!("<p class=\"none\">none of {points} points is finite</p>\n"))
    }

    fn axes(
        &self,
        svg: &mut Svg,
        x: AxisScale,
        y: AxisScale,
        (left, right, _, bottom): (f64, f64, f64, f64),
    ) {
        let unit = self.unit.round(y.largest());
        for mark in y.in_units_of(unit).few_marks(5).into_iter().map(|mark| mark * unit) {
            svg.line((left, y.at(mark)), (right, y.at(mark)), "grid");
            svg.text((left - 8.0, y.at(mark)), Anchor::End, "small", &self.unit.format(mark));
        }
        for mark in x.marks(5) {
            svg.line((x.at(mark), bottom), (x.at(mark), bottom + 4.0), "axis");
            svg.text((x.at(mark), bottom + 14.0), Anchor::Middle, "small", &self.across.1.format(mark));
        }
        svg.text((f64::midpoint(left, right), bottom + 34.0), Anchor::Middle, "small", self.across.0);
    }
}

fn caption(title: &str, body: &str) -> String {
    format!("<figure>\n<figcaption>{}</figcaption>\n{body}</figure>\n", escaped(title))
}

/// Formats an axis's coordinates, values and kind of scale as an attribute for the page's script.
fn scale_attribute(places: (f64, f64), values: (f64, f64), ratios: bool) -> String {
    format!("{} {} {:e} {:e} {}", places.0, places.1, values.0, values.1, u8::from(ratios))
}

/// Returns the smallest and the largest finite value; `None` if there is none.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |range: Option<(f64, f64)>, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Widens a range a little so that no line lies on the frame; a single value becomes a range around it.
pub(super) fn room(low: f64, high: f64) -> (f64, f64) {
    let margin = if high > low { 0.04 * (high - low) } else { (0.05 * high.abs()).max(1e-9) };
    let floor = if low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
    ((low - margin).max(floor), high + margin)
}

/// Reduces a line to at most `most` points (an even number): minimum and maximum of equal sections, in order.
pub(super) fn reduced(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let part = points.len().div_ceil((most / 2).max(1));
    let ends = points.chunks(part).flat_map(|part| {
        let finite = || part.iter().enumerate().filter(|(_, (_, y))| y.is_finite());
        let least = finite().min_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let most = finite().max_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let (Some(least), Some(most)) = (least, most) else { return vec![part[0]] };
        let (first, second) = if least.0 <= most.0 { (least, most) } else { (most, least) };
        if first.0 == second.0 { vec![*first.1] } else { vec![*first.1, *second.1] }
    });
    ends.collect()
}

fn draw(svg: &mut Svg, line: &Trace, x: AxisScale, y: AxisScale, (low, high): (f64, f64)) {
    let mut attributes = format!(" class=\"line {}\" data-name=\"{}\"", line.class, escaped(&line.name));
    if let Some(trial) = line.trial {
        _ = write!(attributes, " data-trial=\"{trial}\"");
    }
    let place =
        |(at, value): &(f64, f64)| value.is_finite().then(|| (x.at(*at), y.at(value.clamp(low, high))));
    let places: Vec<Option<(f64, f64)>> = line.points.iter().map(place).collect();
    svg.polyline(&places, &attributes, &line.name);
    let told: Vec<_> = places.iter().flatten().collect();
    if line.class != "faint" && told.len() <= DOTS_MOST {
        told.iter().for_each(|place| svg.dot(**place, 2.6, &format!("spot {}", line.class), None));
    }
}

/// Draws the labels at the ends of the lines, without overlaps.
fn marks(
    svg: &mut Svg,
    lines: &[Trace],
    x: AxisScale,
    y: AxisScale,
    (low, high): (f64, f64),
    (_, _, top, bottom): (f64, f64, f64, f64),
) {
    let end = |line: &Trace| line.points.iter().rev().find(|(_, value)| value.is_finite()).copied();
    let mut ends: Vec<_> = lines
        .iter()
        .filter(|line| !line.mark.is_empty())
        .filter_map(|line| end(line).map(|(at, value)| (y.at(value.clamp(low, high)), x.at(at), line)))
        .collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = top;
    for (place, at, line) in ends {
        let place = place.max(free).min(bottom);
        free = place + 13.0;
        svg.text((at + 6.0, place), Anchor::Start, &format!("mark {}", line.class), &line.mark);
    }
}

/// Formats the legend of a chart: style and name of each line; empty for a single line.
pub(super) fn legend(lines: &[(String, String)]) -> String {
    if lines.len() < 2 {
        return String::new();
    }
    let mut text = "<ul class=\"legend\">\n".to_owned();
    for (class, name) in lines {
        let key = "<svg class=\"key\" viewBox=\"0 0 34 8\" aria-hidden=\"true\">";
        let key = format!("{key}<path d=\"M1 4h32\" class=\"line {class}\"/></svg>");
        _ = writeln!(text, "<li>{key}{}</li>", escaped(name));
    }
    text + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[f64]) -> Vec<(f64, f64)> {
        let at = |place: usize| f64::from(u32::try_from(place).expect("few"));
        values.iter().enumerate().map(|(place, value)| (at(place), *value)).collect()
    }

    fn chart(values: &[f64]) -> String {
        let line =
            Trace { name: "a".into(), class: line_class(0), points: points(values), ..Trace::default() };
        Chart {
            title: "loss",
            across: ("steps", Unit::Count),
            unit: Unit::Number,
            lines: &[line],
            within: None,
            guides: &[],
            size: HALF,
        }
        .drawn()
    }

    #[test]
    fn a_long_line_keeps_the_least_and_the_most_of_every_part() {
        let mut values: Vec<f64> = (0..10_000).map(|step| f64::from(10_000 - step)).collect();
        values[4321] = 1e6;
        values[4322] = -1e6;
        let kept = reduced(&points(&values), POINTS_MOST);
        assert!(kept.len() <= POINTS_MOST, "{}", kept.len());
        assert!(kept.contains(&(4321.0, 1e6)) && kept.contains(&(4322.0, -1e6)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        let none = reduced(&points(&[f64::NAN; 100]), 10);
        assert!(none.len() <= 10 && none.iter().all(|(_, value)| value.is_nan()));
    }

    #[test]
    fn what_is_not_finite_breaks_a_line_and_is_counted() {
        let drawn = chart(&[3.0, 2.0, f64::NAN, 1.0, 0.5]);
        assert_eq!(drawn.matches('M').count(), 2, "{drawn}");
        assert!(drawn.contains("; 1 point not finite"));
        assert!(chart(&[f64::NAN, f64::INFINITY]).contains("none of 2 points is finite"));
        assert_eq!(chart(&[]), "");
    }

    #[test]
    fn equal_ratios_are_drawn_alike_where_values_are_far_apart() {
        assert!(chart(&[1e-1, 1e2]).contains("log scale"));
        assert!(!chart(&[1.0, 10.0]).contains("log scale"));
        assert!(!chart(&[0.0, 1e5]).contains("log scale"));
    }
}
