//! Pane about ranks: step time and memory of each, and stragglers.

use super::canvas::Canvas;
use crate::render::number::seconds;
use crate::render::phases::bytes;
use crate::render::table::{StyledText, TextRole};
use crate::render::truncate::width;
use crate::watch::model::rank::RankFigures;
use crate::watch::model::trial::TrialModel;
use dtrain_recipes::Bytes;
use ratatui::layout::Rect;

/// Part of a bar: its letter, its name, and its short name.
type BarPart = (char, &'static str, &'static str);

/// Phases of a step as parts of a bar, in the order of the model's `PHASES`.
const PHASES: [BarPart; 6] = [
    ('d', "data", "data"),
    ('f', "forward", "fwd"),
    ('b', "backward", "bwd"),
    ('c', "communication", "comm"),
    ('i', "pipeline bubble", "idle"),
    ('o', "optimizer", "opt"),
];

/// Categories of memory as parts of a bar.
const HELD: [BarPart; 4] = [
    ('w', "weights", "weights"),
    ('g', "gradients", "grads"),
    ('m', "moments", "moments"),
    ('a', "activations, rest", "rest"),
];

/// Width of the narrowest bar, in columns.
const BAR: u16 = 10;

/// Draws one line per rank, starting with rank `first`.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel, first: usize) {
    if trial.ranks.is_empty() {
        canvas.write(area, (1, 0), "no step yet", canvas.ink.tone(TextRole::Dim));
        return;
    }
    let rows = usize::from(area.height.saturating_sub(1));
    let first = first.min(trial.ranks.len().saturating_sub(rows));
    let slowness = trial.slowness();
    let longest = trial.ranks.values().filter_map(|rank| rank.step).fold(0.0, f64::max);
    let has_hosts = trial.hosts > 1;
    let cells: Vec<[StyledText; 5]> = trial
        .ranks
        .iter()
        .skip(first)
        .take(rows)
        .map(|(rank, figures)| {
            let slow = slowness.get(rank).filter(|slow| TrialModel::is_straggler(**slow));
            let host = trial.host(*rank).filter(|_| has_hosts).unwrap_or_default();
            [
                rank.to_string().into(),
                host.chars().take(14).collect::<String>().into(),
                figures.step.map(seconds).unwrap_or_default().into(),
                (if figures.memory > 0.0 { bytes(figures.memory) } else { String::new() }).into(),
                slow.map_or(StyledText::default(), |slow| {
                    StyledText::new(format!("straggler {slow:.1}x"), TextRole::Bad)
                }),
            ]
        })
        .collect();
    let titles = ["RANK", if has_hosts { "HOST" } else { "" }, "STEP", "MEMORY", ""];
    let widths: Vec<u16> = (0..5)
        .map(|c| cells.iter().map(|row| width(&row[c].text)).chain([width(titles[c])]).max().unwrap_or(0))
        .map(|wide| u16::try_from(wide).unwrap_or(u16::MAX))
        .collect();
    let dim = canvas.ink.tone(TextRole::Dim);
    let gap = |wide: u16| if wide > 0 { wide + 2 } else { 0 };
    let bar_at = 1 + gap(widths[0]) + gap(widths[1]) + gap(widths[2]) + gap(widths[3]);
    let note = gap(widths[4]);
    let bar = area.width.saturating_sub(bar_at + note);
    // A foreign program reports no phases.
    let bar = if bar < BAR || longest <= 0.0 { 0 } else { bar };
    let mut x = 1;
    for c in 0..4 {
        let title = format!("{:>1$}", titles[c], usize::from(widths[c]));
        let title = if c == 1 { titles[1].to_owned() } else { title };
        canvas.write(area, (x, 0), &title, dim);
        x += gap(widths[c]);
    }
    if bar > 0 {
        let full: usize = PHASES.iter().map(|(_, name, _)| width(name) + 3).sum();
        let is_short = usize::from(area.width.saturating_sub(x)) < full;
        let named = PHASES.map(|(letter, name, short)| (letter, if is_short { short } else { name }));
        legend(canvas, area, (x, 0), &named);
    }
    for (y, (row, figures)) in (1u16..).zip(cells.iter().zip(trial.ranks.values().skip(first))) {
        let mut x = 1;
        for c in 0..4 {
            let text = if c == 1 {
                row[c].text.clone()
            } else {
                format!("{:>1$}", row[c].text, usize::from(widths[c]))
            };
            canvas.write(area, (x, y), &text, canvas.ink.tone(row[c].tone));
            x += gap(widths[c]);
        }
        if bar > 0 {
            stacked(canvas, Rect { x: area.x + x, width: bar, ..area }, y, &PHASES, &figures.phases, longest);
            x += bar;
        }
        canvas.write(area, (x + u16::from(bar > 0), y), &row[4].text, canvas.ink.tone(row[4].tone));
    }
}

/// Draws the memory of the rank with the highest peak, beside that which the plan predicts.
pub(super) fn memory(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel) {
    let heaviest = trial.ranks.iter().max_by(|one, other| one.1.memory.total_cmp(&other.1.memory));
    let Some((rank, figures)) = heaviest.filter(|(_, figures)| figures.memory > 0.0) else {
        canvas.write(area, (1, 0), "not reported", canvas.ink.tone(TextRole::Dim));
        return;
    };
    let planned = trial.memory.map_or(String::new(), |planned| format!(", planned {}", Bytes(planned)));
    let text = format!("rank {rank}: {}{planned}", bytes(figures.memory));
    canvas.write(area, (1, 0), &text, canvas.ink.tone(TextRole::Plain));
    let parts = memory_parts(figures);
    #[expect(clippy::cast_precision_loss, reason = "a bar of some dozen characters")]
    let most = figures.memory.max(trial.memory.unwrap_or(0) as f64);
    let bar = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    stacked(canvas, bar, 1, &HELD, &parts, most);
    let texts: Vec<String> =
        HELD.iter().zip(parts).map(|((_, _, short), part)| format!("{short} {}", bytes(part))).collect();
    let named: Vec<(char, &str)> =
        HELD.iter().map(|(letter, ..)| *letter).zip(texts.iter().map(String::as_str)).collect();
    legend(canvas, area, (1, 2), &named);
}

fn memory_parts(figures: &RankFigures) -> [f64; 4] {
    let [weights, gradients, optimizer] = figures.held;
    [weights, gradients, optimizer, (figures.memory - weights - gradients - optimizer).max(0.0)]
}

/// Draws a legend of the colors or letters of a bar.
fn legend(canvas: &mut Canvas<'_>, area: Rect, (mut x, y): (u16, u16), parts: &[(char, &str)]) {
    for (index, (letter, name)) in parts.iter().enumerate() {
        let mark = if canvas.ink.is_colored { canvas.ink.mark('█', *letter) } else { *letter };
        x = canvas.write(area, (x, y), &mark.to_string(), canvas.ink.color(index));
        x = canvas.write(area, (x, y), &format!(" {name} "), canvas.ink.tone(TextRole::Dim));
    }
}

/// Draws parts of `whole` side by side: in colors, or as letters on a terminal without colors.
fn stacked(canvas: &mut Canvas<'_>, area: Rect, y: u16, names: &[BarPart], parts: &[f64], whole: f64) {
    let (mut x, mut sum) = (0, 0.0);
    for (index, (part, (letter, ..))) in parts.iter().zip(names).enumerate() {
        sum += part;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the width")]
        let end = (sum / whole * f64::from(area.width)).round().clamp(0.0, f64::from(area.width)) as u16;
        let mark = if canvas.ink.is_colored { canvas.ink.mark('█', *letter) } else { *letter };
        while x < end {
            x = canvas.write(area, (x, y), &mark.to_string(), canvas.ink.color(index)).max(x + 1);
        }
    }
}
