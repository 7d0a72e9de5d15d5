//! Line chart of a metric, drawn in braille, or with stars in ASCII.

use super::canvas::Canvas;
use crate::render::number::{accuracy, count, loss, seconds};
use crate::render::phases::bytes;
use crate::render::table::TextRole;
use crate::watch::model::series::ThinnedSeries;
use ratatui::layout::Rect;

/// Bit of each dot in a braille character, by line, then left and right.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Draws the series `series` as a line, and marks the points of `over` on it.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    area: Rect,
    name: &str,
    series: &ThinnedSeries,
    over: Option<&ThinnedSeries>,
) {
    let Some(steps) = series.steps() else {
        canvas.write(area, (1, 0), "no step yet", canvas.ink.tone(TextRole::Dim));
        return;
    };
    let points = series.points().chain(over.into_iter().flat_map(ThinnedSeries::points));
    let values = points.map(|(_, value)| value).filter(|value| value.is_finite());
    let Some((least, most)) = values.fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
    }) else {
        canvas.write(area, (1, 0), "no finite value yet", canvas.ink.tone(TextRole::Dim));
        return;
    };
    let labels = [figure(name, most), figure(name, least)];
    let margin = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let margin = u16::try_from(margin).unwrap_or(0) + 2;
    if area.width < margin + 4 || area.height < 3 {
        return;
    }
    let plot = Rect { x: area.x + margin, width: area.width - margin, height: area.height - 1, ..area };
    let dim = canvas.ink.tone(TextRole::Dim);
    for y in 0..plot.height {
        let edge = canvas.ink.mark('│', '|').to_string();
        canvas.write(area, (margin - 1, y), &edge, dim);
    }
    let at = |label: &str| margin - 1 - u16::try_from(label.chars().count()).unwrap_or(0);
    if most > least {
        canvas.write(area, (at(&labels[0]), 0), &labels[0], dim);
        canvas.write(area, (at(&labels[1]), plot.height - 1), &labels[1], dim);
    } else {
        canvas.write(area, (at(&labels[0]), plot.height / 2), &labels[0], dim);
    }
    let below = Rect { y: plot.bottom(), height: 1, ..plot };
    let (first, last) = ends(name, steps);
    let end = canvas.write(below, (0, 0), &first, dim);
    canvas.right(below, 0, end, &last, dim);

    let (across, down) = if canvas.ink.is_ascii { (1, 1) } else { (2, 4) };
    let (wide, high) = (usize::from(plot.width) * across, usize::from(plot.height) * down);
    let height = |value: f64| {
        let share = if most > least { (most - value) / (most - least) } else { 0.5 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of some hundred dots"
        )]
        let dot = (share.clamp(0.0, 1.0) * high as f64) as usize;
        dot.min(high - 1)
    };
    let heights = bridged(&series.means(steps, wide).iter().map(|mean| mean.map(height)).collect::<Vec<_>>());
    let mut cells = vec![0u8; usize::from(plot.width) * usize::from(plot.height)];
    for (x, here) in heights.iter().enumerate() {
        let Some(here) = *here else { continue };
        let before = x.checked_sub(1).and_then(|x| heights[x]).unwrap_or(here);
        // Each of the two dot columns draws half of the step up or down.
        let from = if before > here + 1 {
            before - 1
        } else if before + 1 < here {
            before + 1
        } else {
            here
        };
        let lines = if canvas.ink.is_ascii { here..=here } else { from.min(here)..=from.max(here) };
        for y in lines {
            let cell = (y / down) * usize::from(plot.width) + x / across;
            cells[cell] |= DOTS[y % down][x % across];
        }
    }
    let style = canvas.ink.color(1);
    for (place, bits) in cells.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        let braille = char::from_u32(0x2800 + u32::from(*bits)).unwrap_or('*');
        let mark = canvas.ink.mark(braille, '*').to_string();
        canvas.write(plot, position(place, plot.width), &mark, style);
    }
    let Some(over) = over else { return };
    let mark = canvas.ink.mark('●', 'o').to_string();
    let style = canvas.ink.color(3);
    for (x, mean) in over.means(steps, usize::from(plot.width)).iter().enumerate() {
        if let Some(mean) = mean {
            canvas.write(
                plot,
                position(height(*mean) / down * usize::from(plot.width) + x, plot.width),
                &mark,
                style,
            );
        }
    }
}

/// Returns column and line of the cell with index `place` in an area of this width.
fn position(place: usize, width: u16) -> (u16, u16) {
    let of = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    (of(place % usize::from(width)), of(place / usize::from(width)))
}

/// Interpolates heights linearly over columns without a point.
fn bridged(heights: &[Option<usize>]) -> Vec<Option<usize>> {
    let mut filled = heights.to_vec();
    let known: Vec<(usize, usize)> =
        heights.iter().enumerate().filter_map(|(x, height)| Some((x, (*height)?))).collect();
    for pair in known.windows(2) {
        let ((from, first), (to, last)) = (pair[0], pair[1]);
        for (x, column) in filled.iter_mut().enumerate().take(to).skip(from + 1) {
            let (left, right) = (to - x, x - from);
            *column = Some((first * left + last * right) / (to - from));
        }
    }
    filled
}

/// Formats the labels of the x axis at its two ends.
fn ends(name: &str, steps: (u64, u64)) -> (String, String) {
    if name.starts_with("system.") || name.starts_with("gpu.") {
        let span = std::time::Duration::from_secs(steps.1.saturating_sub(steps.0));
        return (format!("{} before", seconds(span.as_secs_f64())), "last".to_owned());
    }
    (format!("step {}", steps.0), format!("step {}", steps.1))
}

/// Formats a value of the metric `name`.
pub(super) fn figure(name: &str, value: f64) -> String {
    if !value.is_finite() {
        value.to_string()
    } else if name.ends_with("loss") {
        loss(value)
    } else if name == "valid.accuracy" {
        accuracy(value, 2)
    } else if name.ends_with("_bytes") {
        bytes(value)
    } else if name.ends_with("_seconds") {
        seconds(value)
    } else if value != 0.0 && value.abs() < 0.01 {
        format!("{value:.2e}")
    } else if value.abs() < 100.0 {
        format!("{value:.3}")
    } else {
        count(value)
    }
}
