//! Curves drawn with text characters: sparklines, and plots of several lines.

use super::number::loss;
use super::truncate::width;
use crate::output::PageStyle;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const PLAIN: [char; 8] = ['_', '.', ',', '-', '~', '=', '*', '#'];

/// Draws one character per value, scaled between minimum and maximum. A gap repeats the previous value;
/// blanks stand before the first and after the last value.
pub(crate) fn sparkline(values: &[Option<f64>], style: PageStyle) -> String {
    let levels = if style.is_ascii { PLAIN } else { BLOCKS };
    let Some((least, most)) = range(values.iter().copied().flatten()) else { return String::new() };
    let draw = |value: f64| {
        let height = if most > least { (value - least) / (most - least) } else { 0.0 };
        levels[level(height, levels.len())]
    };
    let end = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let mut before = None;
    let filled = values[..end].iter().map(|value| {
        before = value.or(before);
        before.map_or(' ', draw)
    });
    filled.collect()
}

/// Plots several curves over the same steps, the first as `A`, and with `=` where they overlap.
///
/// The plot has one column per value, `height` lines, and below them a line with the steps.
pub(crate) fn plot(
    curves: &[Vec<Option<f64>>],
    steps: (u64, u64),
    height: usize,
    style: PageStyle,
) -> String {
    let Some((least, most)) = range(curves.iter().flatten().copied().flatten()) else { return String::new() };
    let across = curves.iter().map(Vec::len).max().unwrap_or(0);
    let mut cells = vec![vec![' '; across]; height];
    for (letter, curve) in ('A'..='Z').zip(curves) {
        for (x, value) in curve.iter().enumerate() {
            let Some(value) = value else { continue };
            let share = if most > least { (value - least) / (most - least) } else { 0.0 };
            let cell = &mut cells[height - 1 - level(share, height)][x];
            *cell = if *cell == ' ' { letter } else { '=' };
        }
    }
    let labels = [loss(most), loss(least)];
    let margin = labels.iter().map(|label| width(label)).max().unwrap_or(0);
    let edge = if style.is_ascii { '|' } else { '│' };
    let mut page = String::new();
    for (row, line) in cells.iter().enumerate() {
        let label = match row {
            0 => labels[0].as_str(),
            _ if row + 1 == height => labels[1].as_str(),
            _ => "",
        };
        let line: String = line.iter().collect();
        page += format!("{label:>margin$} {edge}{line}").trim_end();
        page.push('\n');
    }
    let (first, last) = (steps.0.to_string(), format!("step {}", steps.1));
    let between = across.saturating_sub(width(&first) + width(&last)).max(1);
    page += &format!("{:margin$}  {first}{}{last}\n", "", " ".repeat(between));
    page
}

/// Returns the minimum and maximum of the finite values; `None` if there are none.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// Returns the index of the level, among `count`, for a share from 0 to 1.
fn level(share: f64, count: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a few levels")]
    let level = (share.clamp(0.0, 1.0) * count as f64) as usize;
    level.min(count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::table::tests::plain;

    #[test]
    fn a_curve_falls_from_left_to_right() {
        let values: Vec<_> = (0..8).rev().map(|v| Some(f64::from(v))).collect();
        assert_eq!(sparkline(&values, plain(80)), "█▇▆▅▄▃▂▁");
        assert_eq!(sparkline(&values, PageStyle { is_ascii: true, ..plain(80) }), "#*=~-,._");
        assert_eq!(sparkline(&[None, Some(4.0), None, Some(3.0), None], plain(80)), " ██▁");
        assert_eq!(sparkline(&[None, Some(f64::NAN)], plain(80)), "");
    }

    #[test]
    fn curves_are_drawn_over_each_other() {
        let curves = vec![
            vec![Some(4.0), Some(3.0), Some(2.0), Some(1.0)],
            vec![Some(4.0), Some(2.0), Some(1.0), None],
        ];
        let page = plot(&curves, (1, 400), 4, plain(80));
        assert_eq!(page, "4.0000 │=\n       │ A\n       │ BA\n1.0000 │  BA\n        1 step 400\n");
    }
}
