//! Page about a trial: header, curves, ranks, and messages or log.

use super::canvas::Canvas;
use super::chart::{self, figure};
use super::ranks;
use crate::render::history::status;
use crate::render::number::{count, counted, seconds, whole};
use crate::render::phases::bytes;
use crate::render::table::{StyledText, TextRole};
use crate::watch::app::{Pane, TrialViewState};
use crate::watch::model::series::ThinnedSeries;
use crate::watch::model::trial::{LoggedMessage, TrialModel};
use dtrain_recipes::Bytes;
use ratatui::layout::Rect;

/// Width in columns from which on panes are side by side.
const WIDE: u16 = 110;

/// Height in lines from which on the header has a third line.
const HIGH: u16 = 18;

/// Draws the page about a trial, except the last line of the screen.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel, look: &TrialViewState) {
    let lines = if area.height >= HIGH { 3 } else { 2 };
    head(canvas, area, trial, lines);
    let body = Rect { y: area.y + lines, height: area.height - lines, ..area };
    if look.is_large {
        pane(canvas, body, trial, look, look.pane);
    } else if body.width >= WIDE {
        let left = Rect { width: body.width * 11 / 20, ..body };
        let right = Rect { x: left.right() + 1, width: body.width - left.width - 1, ..body };
        let (top, bottom) = cut(left, left.height * 3 / 5);
        pane(canvas, top, trial, look, Pane::Curves);
        pane(canvas, bottom, trial, look, Pane::Told);
        let shown = u16::try_from(trial.ranks.len()).unwrap_or(u16::MAX).max(1);
        let (top, rest) = cut(right, shown.saturating_add(3).min(right.height.saturating_sub(4)));
        pane(canvas, top, trial, look, Pane::Ranks);
        let (middle, below) = cut(rest, 4);
        let memory = canvas.title(middle, "MEMORY OF THE HEAVIEST RANK", false);
        ranks::memory(canvas, memory, trial);
        let count = trial.metrics().len();
        if below.height >= 6 && count > 1 {
            curves(canvas, below, trial, (look.metric + 1) % count, false);
        }
    } else {
        let shown = u16::try_from(trial.ranks.len()).unwrap_or(u16::MAX).max(1);
        let ranks = shown.saturating_add(2).min((body.height / 3).max(3));
        let told = (body.height / 4).clamp(2, 8);
        let (curves, rest) = cut(body, body.height - ranks - told);
        let (middle, bottom) = cut(rest, ranks);
        pane(canvas, curves, trial, look, Pane::Curves);
        pane(canvas, middle, trial, look, Pane::Ranks);
        pane(canvas, bottom, trial, look, Pane::Told);
    }
}

/// Splits an area into its first `lines` lines and the rest.
fn cut(area: Rect, lines: u16) -> (Rect, Rect) {
    let lines = lines.min(area.height);
    let rest = Rect { y: area.y + lines, height: area.height - lines, ..area };
    (Rect { height: lines, ..area }, rest)
}

fn head(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel, lines: u16) {
    let word = status(trial.status);
    let ranks = trial.ranks.len().max(trial.places.len());
    let mut parts = vec![
        StyledText::new(format!("{}  ", trial.label), TextRole::Bold),
        StyledText::new(format!("{}  ", word.text), word.tone),
        trial.layout.clone().into(),
    ];
    if ranks > 0 {
        let hosts = if trial.hosts > 1 {
            format!(" on {}", counted(trial.hosts.into(), "host"))
        } else {
            String::new()
        };
        parts.push(StyledText::new(format!("  {}{hosts}", counted(ranks as u64, "rank")), TextRole::Dim));
    }
    let end = canvas.line(area, 0, &parts);
    let attempt = if trial.attempt > 1 { format!("attempt {}  ", trial.attempt) } else { String::new() };
    let study = trial.study.as_ref().map_or(String::new(), |study| format!("of {study}"));
    canvas.right(area, 0, end + 1, format!("{attempt}{study}").trim_end(), canvas.ink.tone(TextRole::Dim));

    let advance = trial.figures.advance(&trial.expected);
    let words = [
        advance.percent().map(|percent| format!("{percent:>3}%")),
        Some(advance.steps()),
        advance.eta_text().filter(|_| trial.verdict.is_none()),
        trial.verdict.clone(),
    ];
    let words = words.into_iter().flatten().collect::<Vec<_>>().join("  ");
    let room = area.width.saturating_sub(u16::try_from(words.chars().count()).unwrap_or(0) + 2).min(40);
    let mut x = 0;
    if let Some(share) = advance.share.filter(|_| room >= 5) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 40")]
        let full = (share.clamp(0.0, 1.0) * f64::from(room)) as usize;
        let done: String = std::iter::repeat_n(canvas.ink.mark('━', '='), full).collect();
        let left: String = std::iter::repeat_n(canvas.ink.mark('╌', '.'), usize::from(room) - full).collect();
        x = canvas.write(area, (0, 1), &done, canvas.ink.color(1));
        x = canvas.write(area, (x, 1), &left, canvas.ink.tone(TextRole::Dim)) + 2;
    }
    canvas.write(area, (x, 1), &words, canvas.ink.tone(TextRole::Plain));
    if lines > 2 {
        let line = speed(trial);
        canvas.line(area, 2, &line);
    }
}

/// Formats speed and memory of the trial beside the plan's predictions.
fn speed(trial: &TrialModel) -> Vec<StyledText> {
    let mut parts: Vec<StyledText> = Vec::new();
    let mut add = |measured: String, planned: Option<String>| {
        let gap = if parts.is_empty() { "" } else { "   " };
        parts.push(format!("{gap}{measured}").into());
        parts.extend(planned.map(|planned| StyledText::new(format!(", plan {planned}"), TextRole::Dim)));
    };
    if let Some((step, rate)) = trial.figures.pace {
        let planned = trial.rate.filter(|rate| *rate > 0.0).map(count);
        if rate > 0.0 {
            add(format!("{} {}/s", count(rate), trial.expected.unit), planned);
        }
        add(format!("{}/step", seconds(step)), trial.expected.step_seconds.map(seconds));
    }
    let heaviest = trial.ranks.values().map(|rank| rank.memory).fold(0.0, f64::max);
    if heaviest > 0.0 {
        add(bytes(heaviest), trial.memory.map(|planned| Bytes(planned).to_string()));
    }
    if let Some(saved) = trial.figures.saved {
        add(format!("saved {}", whole(saved.0)), None);
    }
    parts
}

/// Draws the curve of the metric with index `which`, and the metric that is drawn over it.
fn curves(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel, which: usize, is_focused: bool) {
    let metrics = trial.metrics();
    let at = which.min(metrics.len().saturating_sub(1));
    let Some((name, over)) = metrics.get(at) else {
        let below = canvas.title(area, "CURVES", is_focused);
        canvas.write(below, (1, 0), "no step yet", canvas.ink.tone(TextRole::Dim));
        return;
    };
    let series = &trial.curves[name];
    let newest = |name: &str| {
        let newest = trial.curves.get(name).and_then(ThinnedSeries::newest);
        newest.map_or(String::new(), |(_, value)| format!(" {}", figure(name, value)))
    };
    let mark = canvas.ink.mark('●', 'o');
    let second = over.as_ref().map_or(String::new(), |over| format!("   {mark} {over}{}", newest(over)));
    let title = format!("{name}{}{second}", newest(name));
    let below = canvas.title(area, &title, is_focused);
    if metrics.len() > 1 {
        let place = format!(" {}/{} ", at + 1, metrics.len());
        let from = u16::try_from(title.chars().count()).unwrap_or(u16::MAX).saturating_add(4);
        canvas.right(area, 0, from, &place, canvas.ink.tone(TextRole::Dim));
    }
    chart::draw(canvas, below, name, series, over.as_ref().and_then(|over| trial.curves.get(over)));
}

fn pane(canvas: &mut Canvas<'_>, area: Rect, trial: &TrialModel, look: &TrialViewState, which: Pane) {
    let is_focused = look.pane == which;
    match which {
        Pane::Curves => curves(canvas, area, trial, look.metric, is_focused),
        Pane::Ranks => {
            let title = format!("RANKS {}", trial.ranks.len());
            let below = canvas.title(area, title.trim_end_matches(" 0"), is_focused);
            ranks::draw(canvas, below, trial, look.ranks_first);
        }
        Pane::Told if look.has_log => {
            let title = match look.logs.get(look.log) {
                Some(name) => format!("LOG OF {name}  {}/{}", look.log + 1, look.logs.len()),
                None => "LOG".to_owned(),
            };
            let below = canvas.title(area, &title, is_focused);
            let lines = last(look.lines.iter(), below.height, look.back);
            for (y, line) in (0u16..).zip(lines) {
                canvas.write(below, (1, y), line, canvas.ink.tone(TextRole::Plain));
            }
            if look.lines.is_empty() {
                let text = if look.logs.is_empty() {
                    format!("no log is on this machine; `dtrain logs {}` asks its hosts", trial.label)
                } else {
                    "the log is empty".to_owned()
                };
                canvas.write(below, (1, 0), &text, canvas.ink.tone(TextRole::Dim));
            }
        }
        Pane::Told => {
            let below = canvas.title(area, "EVENTS", is_focused);
            let start = trial.started_ms.unwrap_or_else(|| trial.events.front().map_or(0, |line| line.at_ms));
            let mut lines: Vec<(String, &LoggedMessage, String)> = Vec::new();
            for line in &trial.events {
                let mut at = clock(line.at_ms, start);
                let room = usize::from(below.width).saturating_sub(at.chars().count() + 3);
                for part in wrap_text(&line.text, room) {
                    let blank = " ".repeat(at.chars().count());
                    lines.push((std::mem::replace(&mut at, blank), line, part));
                }
            }
            for (y, (at, line, text)) in (0u16..).zip(last(lines.iter(), below.height, look.back)) {
                let x = canvas.write(below, (1, y), at, canvas.ink.tone(TextRole::Dim));
                canvas.write(below, (x + 2, y), text, canvas.ink.tone(line.tone));
            }
        }
    }
}

/// Wraps a text to lines of `room` characters, between words if possible.
fn wrap_text(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        while !rest.is_empty() {
            let line = lines.last_mut().expect("never empty");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + rest.len() <= room {
                line.extend([" "].into_iter().filter(|_| gap > 0));
                line.extend(rest.drain(..));
            } else if used > 0 {
                lines.push(String::new());
            } else {
                line.extend(rest.drain(..rest.len().min(room.max(1))));
            }
        }
    }
    lines
}

/// Returns the items that fit into `height` lines and end `back` items before the last.
fn last<T>(lines: impl ExactSizeIterator<Item = T>, height: u16, back: usize) -> impl Iterator<Item = T> {
    let height = usize::from(height);
    let first = lines.len().saturating_sub(height + back);
    lines.skip(first).take(height)
}

/// Formats the time since the start as hours, minutes and seconds.
fn clock(at_ms: u64, start_ms: u64) -> String {
    let seconds = at_ms.saturating_sub(start_ms) / 1000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
