//! Formats an answer: rows of a key and its value, and the table of layouts.

use super::numbers::{bytes, bytes_of, step_interval, step_time};
use super::reason::REASONS;
use super::{Answer, AnswerCandidate, Assumption, MemoryAnswer, StepAnswer, TrainingValue};
use crate::analytic::uncertainty::exceedance_probability;
use crate::text::wrapped_with_indent;
use dtrain_recipes::number_format::{count, thousands};
use std::fmt::Write as _;

/// Largest number of lines of an answer, with the command that is printed below it.
pub const LINES: usize = 24;

/// Largest width of an answer in columns.
pub const COLUMNS: usize = 80;

/// Column at which the values of rows start.
pub const INDENT: usize = 12;

/// Default number of rows of the table.
pub const ROWS: usize = 5;

/// Smallest width in columns for which the form is made.
const NARROWEST: usize = 40;

/// Largest number of lines of one row.
const LINES_OF_ROW: usize = 4;

/// Space that does not break a line.
const FIXED: char = '\u{a0}';

/// Amount of detail in the rows about the cost, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Details {
    /// Values without their rules.
    Bare,
    /// Values with the rules of those that the recipe does not pin.
    Values,
    /// Values with their rules.
    Rules,
    /// Values with their rules, and the effect of failures.
    All,
}

/// Parts of an answer that are shown. Without room, fewer are.
#[derive(Clone, Copy, Debug)]
struct Shown {
    rows: usize,
    reasons: usize,
    improvements: usize,
    details: Details,
}

impl Shown {
    /// Returns what to show instead with less room; `None` if this is the least.
    fn less(self) -> Option<Self> {
        let Self { rows, reasons, improvements, details } = self;
        let less = if improvements > 1 {
            Self { improvements: 1, ..self }
        } else if rows == ROWS {
            Self { rows: 4, ..self }
        } else if details == Details::All {
            Self { details: Details::Rules, ..self }
        } else if rows == 4 {
            Self { rows: 3, ..self }
        } else if details == Details::Rules {
            Self { details: Details::Values, ..self }
        } else if reasons > 2 {
            Self { reasons: 2, ..self }
        } else if rows == 3 {
            Self { rows: 2, ..self }
        } else if improvements > 0 {
            Self { improvements: 0, ..self }
        } else if reasons > 1 {
            Self { reasons: 1, ..self }
        } else if details == Details::Values {
            Self { details: Details::Bare, ..self }
        } else {
            return None;
        };
        Some(less)
    }
}

impl Answer {
    /// Formats the answer in at most [`LINES`] lines of at most `width` and [`COLUMNS`] columns, `below` of
    /// which are left for what is printed after it. Where that is not enough room, the least important
    /// clauses, table rows and reasons are left out. `rows` is the number of table rows; more than [`ROWS`]
    /// make the answer longer.
    pub fn text(&self, width: usize, rows: usize, below: usize) -> String {
        let width = width.clamp(NARROWEST, COLUMNS);
        let limit = (LINES + rows.saturating_sub(ROWS)).saturating_sub(below);
        let mut shown = Shown { rows, reasons: REASONS, improvements: 2, details: Details::All };
        loop {
            let text = self.format(width, shown);
            match shown.less() {
                Some(less) if text.lines().count() > limit => shown = less,
                _ => return text,
            }
        }
    }

    /// Formats layout, step, total, memory, training and confidence in rows at most `width` wide, for the
    /// start of a training.
    pub fn short_text(&self, width: usize) -> String {
        let width = width.clamp(NARROWEST, COLUMNS);
        self.cost_rows(Details::All).into_iter().map(|(key, value)| row(key, &value, width)).collect()
    }

    /// Returns the rows about the choice and its cost: keys and values.
    fn cost_rows(&self, details: Details) -> Vec<(&'static str, String)> {
        let is_shown = |is_minor: bool| !is_minor || details == Details::All;
        let total = self.total.iter().chain(self.failures.iter().filter(|_| is_shown(true)));
        let assumed = self.assumptions.iter().filter(|assumed| is_shown(assumed.is_minor));
        let training = self.training.iter().map(|value| training(value, details));
        let joined = |clauses: Vec<String>, joint| clauses.join(joint);
        let rows = [
            ("runs", self.runs.join(", ")),
            ("step", self.step.as_ref().map_or_else(String::new, step)),
            ("total", joined(total.map(|clause| fixed(clause)).collect(), ", ")),
            ("memory", self.memory.as_ref().map_or_else(String::new, memory)),
            ("training", joined(training.collect(), "; ")),
            ("assumed", joined(assumed.map(assumption).collect(), "; ")),
            ("confidence", self.confidence.join("; ")),
        ];
        rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    fn format(&self, width: usize, shown: Shown) -> String {
        let mut text = wrapped_with_indent(&self.subject, width, 2);
        for (key, value) in self.cost_rows(shown.details) {
            text += &row(key, &value, width);
        }
        for (place, param) in self.params.iter().take(LINES / 2).enumerate() {
            text += &row(if place == 0 { "params" } else { "" }, param, width);
        }
        if shown.rows > 0 && self.candidates.len() > 1 {
            text += &self.table(width, shown.rows);
        }
        for (place, reason) in self.reasons.iter().take(shown.reasons).enumerate() {
            text += &row(if place == 0 { "why" } else { "" }, &reason.to_string(), width);
        }
        for (place, change) in self.improvements.iter().take(shown.improvements).enumerate() {
            text += &row(if place == 0 { "helps most" } else { "" }, change, width);
        }
        text.replace(FIXED, " ")
    }

    /// Formats the choice and the best others, `rows` in all, fastest first; a star marks the choice.
    fn table(&self, width: usize, rows: usize) -> String {
        let mut shown: Vec<(bool, &AnswerCandidate)> =
            self.candidates.iter().take(rows).enumerate().map(|(place, one)| (place == 0, one)).collect();
        shown.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        let differ = shown.iter().any(|(_, one)| one.devices != shown[0].1.devices);
        let cells =
            |one: &AnswerCandidate| [step_time(one.seconds), bytes(one.bytes), thousands(one.devices.into())];
        let titles = ["step".to_owned(), "memory".to_owned(), format!("{}s", self.device)];
        let longest = |column: usize| {
            let all = shown.iter().map(|(_, one)| cells(one)[column].chars().count());
            all.chain([titles[column].chars().count()]).max().unwrap_or(0)
        };
        let columns = if differ { 3 } else { 2 };
        let widths: Vec<usize> = (0..columns).map(longest).collect();
        let line = |cells: &[String], layout: &str| {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                _ = write!(line, "{cell:>width$}  ", width = *width);
            }
            line.replace(' ', &FIXED.to_string()) + layout
        };
        let mut text = row("layouts", &line(&titles, "layout"), width);
        let start = INDENT + widths.iter().map(|width| width + 2).sum::<usize>();
        // Wrapping takes at least half of the width.
        let start = start.min(width / 2);
        for (is_choice, one) in shown {
            let key = format!("{:>width$}", if is_choice { "*" } else { "" }, width = INDENT - 2);
            let words = format!("{key:<INDENT$}").replace(' ', &FIXED.to_string());
            text += &wrapped_with_indent(&(words + &line(&cells(one), &one.layout)), width, start);
        }
        text
    }
}

/// Formats a row: a key, and its value in lines at most `width` wide. Words longer than a line are cut.
fn row(key: &str, value: &str, width: usize) -> String {
    let room = width - INDENT;
    let fitting = |word: &str| match word.chars().count() > room {
        true => word.chars().take(room - 1).chain(['…']).collect::<String>(),
        false => word.to_owned(),
    };
    let words: Vec<String> = value.split(' ').map(fitting).collect();
    let key = format!("{key:<INDENT$}").replace(' ', &FIXED.to_string());
    let text = wrapped_with_indent(&(key + &words.join(" ")), width, INDENT);
    if text.lines().count() <= LINES_OF_ROW {
        return text;
    }
    let mut kept: Vec<&str> = text.lines().take(LINES_OF_ROW).collect();
    let last = kept.pop().unwrap_or_default();
    let last = if last.chars().count() + 2 > width {
        last.rsplit_once(' ').map_or(last, |(rest, _)| rest)
    } else {
        last
    };
    let mut text: String = kept.into_iter().map(|line| format!("{line}\n")).collect();
    _ = writeln!(text, "{} …", last.trim_end_matches([',', ';']));
    text
}

/// Keeps a quantity and its unit, or a short clause, on one line.
fn fixed(text: &str) -> String {
    text.replace(' ', &FIXED.to_string())
}

fn step(step: &StepAnswer) -> String {
    let mut text = fixed(&step_time(step.seconds));
    if let Some((low, high)) = step.interval {
        _ = write!(text, " ({} interval {})", fixed("80 %"), fixed(&step_interval(low, high)));
    }
    if let Some((rate, unit)) = step.throughput {
        _ = write!(text, ", {} {unit}", fixed(&count(rate)));
    }
    if let Some(share) = step.utilization {
        _ = write!(text, ", {} MFU", fixed(&format!("{:.0} %", 100.0 * share)));
    }
    if let Some(measured) = step.measured {
        let error = 100.0 * (step.seconds / measured - 1.0);
        _ = write!(text, "; measured {}", fixed(&step_time(measured)));
        _ = write!(text, ", error {}", fixed(&format!("{error:+.1} %")));
    }
    text
}

fn memory(memory: &MemoryAnswer) -> String {
    let MemoryAnswer { peak, available, high, holder, measured } = memory;
    let size = available.map_or_else(|| bytes(*peak), |available| bytes_of(*peak, available));
    let mut text = format!("{} {holder}", fixed(&size));
    if let Some(high) = high {
        _ = write!(text, "; below {} with {} chance", fixed(&bytes(*high)), fixed("90 %"));
    }
    if let Some((high, available)) = high.zip(*available)
        && high > available
    {
        let chance = exceedance_probability(*peak, high, available);
        _ = write!(
            text,
            "; warning: {} chance that it does not fit",
            fixed(&format!("{:.0} %", 100.0 * chance))
        );
    }
    if let Some(measured) = measured {
        _ = write!(text, "; measured {}", fixed(&bytes(*measured)));
    }
    text
}

fn training(value: &TrainingValue, details: Details) -> String {
    let TrainingValue { value, rule } = value;
    let is_shown = match details {
        Details::Rules | Details::All => true,
        // A value of the recipe needs no rule where there is little room.
        Details::Values => !rule.starts_with("pinned"),
        Details::Bare => false,
    };
    if rule.is_empty() || !is_shown { fixed(value) } else { format!("{} ({rule})", fixed(value)) }
}

fn assumption(assumption: &Assumption) -> String {
    let Assumption { what, correction, .. } = assumption;
    match correction {
        Some(correction) => format!("{what} ({correction})"),
        None => what.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_between_words() {
        let long = vec!["words"; 100].join(" ");
        let text = row("key", &long, 40);
        assert_eq!(text.lines().count(), LINES_OF_ROW);
        assert!(text.ends_with("words …\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        let text = row("key", &"x".repeat(100), 40);
        assert_eq!(text.trim_end().chars().count(), 40);
    }
}
