//! SVG drawings and HTML escaping; knows only shapes and scales.

use dtrain_recipes::sanitize::printable;
use std::fmt::Write as _;

/// Escapes the special characters of a text for HTML and XML.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    // XML does not allow control characters.
    for letter in printable(text).chars() {
        match letter {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\t' => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}

/// Horizontal alignment of a text at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A rectangle in the units of a drawing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// An SVG drawing of fixed width and height, which the page scales.
#[derive(Clone, Debug)]
pub(super) struct Svg {
    size: (f64, f64),
    name: String,
    /// Further attributes of the SVG element, escaped.
    attributes: String,
    body: String,
}

impl Svg {
    /// Creates an empty drawing; screen readers read `name`.
    pub(super) fn new(width: f64, height: f64, name: &str) -> Self {
        Self { size: (width, height), name: escaped(name), attributes: String::new(), body: String::new() }
    }

    /// Adds attributes to the SVG element.
    pub(super) fn set_attributes(&mut self, attributes: &[(&str, String)]) {
        for (name, value) in attributes {
            _ = write!(self.attributes, " {name}=\"{}\"", escaped(value));
        }
    }

    /// Draws a line through points, broken at `None`; `attributes` are inserted without escaping.
    ///
    /// Points are relative and rounded to tenths, which keeps pages with many points small.
    pub(super) fn polyline(&mut self, places: &[Option<(f64, f64)>], attributes: &str, title: &str) {
        let (mut shape, mut before) = (String::new(), None);
        for place in places {
            let Some((x, y)) = place.map(|(x, y)| (tenths(x), tenths(y))) else {
                before = None;
                continue;
            };
            match before {
                None => {
                    shape.push('M');
                    push_tenths(&mut shape, x, false);
                    push_tenths(&mut shape, y, true);
                    shape.push('l');
                    // A line of zero length has a visible end.
                    shape.push_str("0 0");
                }
                Some((from_x, from_y)) => {
                    push_tenths(&mut shape, x - from_x, true);
                    push_tenths(&mut shape, y - from_y, true);
                }
            }
            before = Some((x, y));
        }
        if !shape.is_empty() {
            _ = writeln!(
                self.body,
                "<path d=\"{shape}\"{attributes}><title>{}</title></path>",
                escaped(title)
            );
        }
    }

    /// Draws a rectangle, with `title` as an optional tooltip.
    pub(super) fn area(&mut self, area: Rectangle, class: &str, title: Option<&str>) {
        let Rectangle { x, y, width, height } = area;
        let place = format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{class}\"",
            number(x),
            number(y),
            number(width),
            number(height)
        );
        self.body += &place;
        self.close("rect", title);
    }

    /// Draws rectangles of one class as one shape.
    pub(super) fn areas(&mut self, areas: impl Iterator<Item = Rectangle>, class: &str) {
        let mut shape = String::new();
        for Rectangle { x, y, width, height } in areas {
            let [x, y, width, height] = [x, y, width, height].map(number);
            _ = write!(shape, "M{x} {y}h{width}v{height}h-{width}z");
        }
        if !shape.is_empty() {
            _ = writeln!(self.body, "<path d=\"{shape}\" class=\"{class}\"/>");
        }
    }

    /// Draws a dot around a point, with `title` as an optional tooltip.
    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, class: &str, title: Option<&str>) {
        _ = write!(
            self.body,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{class}\"",
            number(x),
            number(y),
            number(radius)
        );
        self.close("circle", title);
    }

    /// Draws a dot around a point; `attributes` are inserted without escaping.
    pub(super) fn spot(
        &mut self,
        (x, y): (f64, f64),
        radius: f64,
        class: &str,
        attributes: &str,
        title: &str,
    ) {
        let [x, y, radius] = [x, y, radius].map(number);
        _ = write!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\" {attributes}");
        self.close("circle", Some(title));
    }

    /// Draws a small cross at a point; `attributes` are inserted without escaping.
    pub(super) fn cross(&mut self, (x, y): (f64, f64), class: &str, attributes: &str, title: &str) {
        let [x, y] = [x - 4.0, y - 4.0].map(number);
        _ = write!(self.body, "<path d=\"M{x} {y}l8 8m-8 0l8 -8\" class=\"{class}\" {attributes}");
        self.close("path", Some(title));
    }

    /// Draws a straight line between two points.
    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
        _ = writeln!(self.body, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>");
    }

    /// Draws a text at a point.
    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            number(x),
            number(y),
            escaped(text)
        );
    }

    fn close(&mut self, element: &str, title: Option<&str>) {
        match title {
            Some(title) => _ = writeln!(self.body, "><title>{}</title></{element}>", escaped(title)),
            None => self.body += "/>\n",
        }
    }

    /// Returns the finished drawing as an SVG element.
    pub(super) fn finished(self) -> String {
        let (width, height) = (number(self.size.0), number(self.size.1));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{}\"{}>\n{}</svg>\n",
            self.name, self.attributes, self.body
        )
    }
}

/// Rounds a coordinate to tenths of a unit, and returns their number.
#[expect(clippy::cast_possible_truncation, reason = "drawings are far smaller than 2^31 tenths")]
fn tenths(value: f64) -> i32 {
    (10.0 * value).round() as i32
}

/// Appends a number of tenths in its shortest form; if `is_next`, after a space or minus sign that separates
/// it.
fn push_tenths(shape: &mut String, tenths: i32, is_next: bool) {
    if tenths < 0 {
        shape.push('-');
    } else if is_next {
        shape.push(' ');
    }
    let (whole, rest) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
    if whole > 0 || rest == 0 {
        _ = write!(shape, "{whole}");
    }
    if rest > 0 {
        _ = write!(shape, ".{rest}");
    }
}

/// Formats a coordinate, rounded to thousandths.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Scale that maps values to coordinates.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisScale {
    values: (f64, f64),
    places: (f64, f64),
    is_logarithmic: bool,
}

impl AxisScale {
    /// Creates a linear scale from the range `values` to the range `places`.
    pub(super) fn even(values: (f64, f64), places: (f64, f64)) -> Self {
        Self { values, places, is_logarithmic: false }
    }

    /// Creates a logarithmic scale from the range `values`, above 0, to the range `places`.
    pub(super) fn of_ratios(values: (f64, f64), places: (f64, f64)) -> Self {
        Self { values, places, is_logarithmic: true }
    }

    /// Returns the coordinate to which the scale maps a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let (low, high) = (of(self.values.0), of(self.values.1));
        let share = if high > low { (of(value) - low) / (high - low) } else { 0.5 };
        self.places.0 + share * (self.places.1 - self.places.0)
    }

    /// Returns round values for the scale's tick marks, about `count` on a linear scale.
    pub(super) fn marks(&self, count: u32) -> Vec<f64> {
        let (low, high) = self.values;
        let is_inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
        if self.is_logarithmic {
            let decades = decade(low)..=decade(high);
            let marks = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(d)));
            return marks.filter(is_inside).collect();
        }
        let rough = (high - low) / f64::from(count.max(1));
        if rough <= 0.0 {
            return vec![low];
        }
        let power = 10f64.powi(decade(rough));
        let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= rough * (1.0 - 1e-9));
        let step = digit.unwrap_or(10.0) * power;
        let first = (low / step - 1e-9).ceil();
        let marks = (0..=2 * count).map(|n| (first + f64::from(n)) * step);
        marks.take_while(|mark| *mark <= high + 1e-9 * step).collect()
    }
}

impl AxisScale {
    /// Returns the largest value of the scale.
    pub(super) fn largest(&self) -> f64 {
        self.values.1
    }

    /// Returns the same scale for values that are counted in multiples of `unit`.
    pub(super) fn in_units_of(self, unit: f64) -> Self {
        Self { values: (self.values.0 / unit, self.values.1 / unit), ..self }
    }

    /// Returns round values for the scale's tick marks, at most about `2 * count` on any scale.
    pub(super) fn few_marks(&self, count: u32) -> Vec<f64> {
        let marks = self.marks(count);
        let most = 2 * count as usize;
        if !self.is_logarithmic || marks.len() <= most {
            return marks;
        }
        let decades: Vec<f64> = (decade(self.values.0)..=decade(self.values.1))
            .map(|d| 10f64.powi(d))
            .filter(|mark| *mark >= self.values.0 && *mark <= self.values.1)
            .collect();
        let every = decades.len().div_ceil(most).max(1);
        decades.into_iter().step_by(every).collect()
    }
}

/// Returns the exponent of the power of ten at or below a value above 0.
#[expect(clippy::cast_possible_truncation, reason = "exponents are far below 2^31")]
fn decade(value: f64) -> i32 {
    (value.log10() + 1e-9).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_inside() {
        let even = AxisScale::even((0.0, 1.55), (0.0, 100.0)).marks(5);
        assert!(even.iter().zip([0.0, 0.5, 1.0, 1.5]).all(|(a, b)| (a - b).abs() < 1e-12), "{even:?}");
        assert_eq!(AxisScale::of_ratios((0.3, 4.0), (0.0, 1.0)).marks(5), [0.5, 1.0, 2.0]);
        assert_eq!(AxisScale::even((2.0, 2.0), (0.0, 1.0)).marks(5), [2.0]);
    }

    #[test]
    fn a_scale_takes_its_ends_to_its_ends() {
        for scale in
            [AxisScale::even((1.0, 9.0), (10.0, 20.0)), AxisScale::of_ratios((1.0, 9.0), (10.0, 20.0))]
        {
            assert!((scale.at(1.0) - 10.0).abs() < 1e-12 && (scale.at(9.0) - 20.0).abs() < 1e-12);
        }
        assert!((AxisScale::of_ratios((1.0, 9.0), (10.0, 20.0)).at(3.0) - 15.0).abs() < 1e-12);
    }

    #[test]
    fn text_is_harmless_and_numbers_are_short() {
        assert_eq!(escaped("a<b> & \"c\"\u{7}"), "a&lt;b&gt; &amp; &quot;c&quot;\u{fffd}");
        assert_eq!([1.0, 0.5, -0.0001, 12.3456].map(number), ["1", "0.5", "0", "12.346"]);
    }
}
