//! The step tracker: it turns a foreign program's reported lines into events with steps.

use super::step_counters::{CounterPosition, STEPS_OF_A_UNIT, StepCounters, whole};
use dtrain_protocol::{Event, NamedFigure, PhaseTimes, ResidentBytes, StepFigures, StepId};
use dtrain_recipes::line_template::{Number, is_metric_name};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Maximum number of metrics in one line; more are skipped.
const METRICS_OF_A_LINE: usize = 1000;

/// Largest count, 2^53: floating point has every whole number up to it.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The figures that one line of a program reports, unchanged.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReportedLine {
    step: Option<Number>,
    loss: Option<f64>,
    learning_rate: Option<f64>,
    gradient_norm: Option<f64>,
    tokens: Option<f64>,
    seconds: Option<f64>,
    valid_loss: Option<f64>,
    valid_accuracy: Option<f64>,
    metrics: Vec<NamedFigure>,
}

impl ReportedLine {
    /// Collects named numbers into a line. Skips names that no metric may have.
    pub(super) fn of<'n>(found: impl IntoIterator<Item = (&'n str, Number)>) -> Self {
        let mut line = Self::default();
        for (name, number) in found {
            line.take(name, number);
        }
        line
    }

    fn take(&mut self, name: &str, number: Number) {
        let value = number.value;
        match name {
            "step" => self.step = Some(number),
            "loss" => self.loss = Some(value),
            "tokens" => self.tokens = Some(value),
            "seconds" => self.seconds = Some(value),
            "learning_rate" => self.learning_rate = Some(value),
            "gradient_norm" => self.gradient_norm = Some(value),
            "valid_loss" | "valid.loss" => self.valid_loss = Some(value),
            "valid_accuracy" | "valid.accuracy" => self.valid_accuracy = Some(value),
            _ if is_metric_name(name) && self.metrics.len() < METRICS_OF_A_LINE => {
                self.metrics.push(NamedFigure { name: name.to_owned(), value });
            }
            _ => {}
        }
    }

    /// Turns figures that need a training or validation loss into metrics if the line has no such loss.
    fn move_to_metrics(&mut self) {
        let mut metric = |name: &str, value: Option<f64>| {
            self.metrics.extend(value.map(|value| NamedFigure { name: name.to_owned(), value }));
        };
        if self.loss.is_none() {
            metric("learning_rate", self.learning_rate.take());
            metric("gradient_norm", self.gradient_norm.take());
        }
        if self.valid_loss.is_none() {
            metric("valid.accuracy", self.valid_accuracy.take());
        }
    }

    /// Returns the results that the progress line names, each with its name.
    fn results(&self) -> impl Iterator<Item = (&str, f64)> {
        let loss = self.loss.map(|loss| ("loss", loss));
        let valid = self.valid_loss.map(|loss| ("valid.loss", loss));
        let metrics = self.metrics.iter().map(|figure| (figure.name.as_str(), figure.value));
        loss.into_iter().chain(valid).chain(metrics)
    }
}

/// Kinds of notices about a program's lines; each kind is given once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NoticeKind {
    Fraction,
    BeganAgain,
    Repeated,
    NoStep,
    Tokens,
    Seconds,
}

/// The newest value of one result.
struct LastResult {
    value: f64,
    continued: f64,
    step: u64,
}

/// Progress of a foreign program, according to the lines read so far.
#[derive(Default)]
pub(super) struct StepTracker {
    counters: StepCounters,
    /// The newest value of each result at a named step.
    results: BTreeMap<String, LastResult>,
    /// Number of lines of each kind, as long as no line has named a step.
    counted: BTreeMap<usize, u64>,
    /// For each kind of line, the highest step with a loss and the time at which it was first reported.
    timed: BTreeMap<usize, (u64, Instant)>,
    remarks: BTreeSet<NoticeKind>,
}

impl StepTracker {
    /// Reports the figures of a line as events. Lines of one `kind` share a counter.
    pub(super) fn report(&mut self, mut line: ReportedLine, kind: usize, say: &impl Fn(Event)) {
        line.move_to_metrics();
        let number = self.step(&line, kind, say);
        let step = StepId(number);
        let tokens = self.tokens(&line, say);
        let told = self.reported_seconds(&line, say);
        if let Some(loss) = line.loss {
            let measured = self.seconds(number, kind);
            say(Event::Step(StepFigures {
                step,
                loss,
                gradient_norm: line.gradient_norm,
                learning_rate: line.learning_rate.unwrap_or(f64::NAN),
                elapsed: None,
                noise: None,
                tokens,
                times: PhaseTimes { step: told.unwrap_or(measured), ..PhaseTimes::default() },
                memory_bytes: 0,
                sent_bytes: 0,
                held: ResidentBytes::default(),
            }));
        }
        if let Some(loss) = line.valid_loss {
            say(Event::Validated { step, loss, accuracy: line.valid_accuracy, seconds: None });
        }
        if !line.metrics.is_empty() {
            say(Event::Metrics { step, figures: line.metrics });
        }
    }

    /// Returns the step of a line: the one that it names, else the newest. If no line has named a step,
    /// counts the lines of the same kind.
    fn step(&mut self, line: &ReportedLine, kind: usize, say: &impl Fn(Event)) -> u64 {
        let named = line.step.filter(|number| self.is_step(number.value, say));
        if let Some(number) = named {
            self.count(number, kind, say);
        }
        let Some(position) = self.counters.newest() else {
            let counted = self.counted.entry(kind).or_default();
            *counted += 1;
            return *counted;
        };
        if named.is_some_and(|number| number.has_decimals) && self.repeats(line, position) {
            // Fractions have few digits, so the first ones may all be 0.0.
            self.counters.set_has_fractions(kind);
            let words = format!(
                "`step` is {:?} in several lines: it is counted in thousandths, and each line as a step",
                position.value
            );
            self.remark(NoticeKind::Fraction, words, say);
        }
        let mut step = self.counters.step(position);
        if named.is_some() && self.counters.has_fractions(position.kind) {
            // A repeated result belongs to a later step.
            let known = line.results().filter_map(|(name, _)| self.results.get(name));
            let later =
                known.filter(|known| known.continued <= position.continued).map(|known| known.step + 1);
            step = later.max().map_or(step, |later| step.max(later));
        }
        self.record_results(line, position, step, say);
        step
    }

    /// Returns `true` if a result of the line was already reported at `position`.
    fn repeats(&self, line: &ReportedLine, position: CounterPosition) -> bool {
        line.results().any(|(name, _)| {
            self.results.get(name).is_some_and(|known| known.continued == position.continued)
        })
    }

    /// Stores the results of a line; a notice tells if one replaces another.
    fn record_results(
        &mut self,
        line: &ReportedLine,
        position: CounterPosition,
        step: u64,
        say: &impl Fn(Event),
    ) {
        for (name, value) in line.results() {
            let now = LastResult { value, continued: position.continued, step };
            let Some(known) = self.results.get_mut(name) else {
                self.results.insert(name.to_owned(), now);
                continue;
            };
            let before = std::mem::replace(known, now);
            if before.step == step && before.value.to_bits() != value.to_bits() {
                let words =
                    format!("`{name}` has several values at `step` {}: the last one counts", position.value);
                self.remark(NoticeKind::Repeated, words, say);
            }
        }
    }

    /// Returns `true` if a value can be a step; a notice tells of one that cannot, or that has a fraction.
    fn is_step(&mut self, value: f64, say: &impl Fn(Event)) -> bool {
        if !(0.0..=LARGEST / STEPS_OF_A_UNIT).contains(&value) {
            let words =
                format!("a `step` of {value} is ignored: it is not a number of steps that can be counted");
            self.remark(NoticeKind::NoStep, words, say);
            return false;
        }
        if value.fract() != 0.0 {
            let step = whole(value * STEPS_OF_A_UNIT);
            let words = format!(
                "`step` is {value}, not a whole number: it is counted in thousandths, {value} as step {step}"
            );
            self.remark(NoticeKind::Fraction, words, say);
        }
        true
    }

    /// Records a counter's value; a notice tells if it restarted.
    fn count(&mut self, number: Number, kind: usize, say: &impl Fn(Event)) {
        let (position, before) = self.counters.count(number, kind);
        if let Some(before) = before {
            let CounterPosition { value, continued, .. } = position;
            let words = format!(
                "`step` began again at {value} after {before}: it is continued, {value} as {continued}"
            );
            self.remark(NoticeKind::BeganAgain, words, say);
        }
    }

    /// Returns the number of tokens that a line reports; 0 if it has none.
    fn tokens(&mut self, line: &ReportedLine, say: &impl Fn(Event)) -> u64 {
        let Some(value) = line.tokens else { return 0 };
        if !(0.0..=LARGEST).contains(&value) {
            let words =
                format!("`tokens` of {value} are ignored: it is not a number of tokens that can be counted");
            self.remark(NoticeKind::Tokens, words, say);
            return 0;
        }
        if value.fract() != 0.0 {
            let words = format!("`tokens` is {value}, not a whole number: it is rounded");
            self.remark(NoticeKind::Tokens, words, say);
        }
        whole(value)
    }

    /// Returns the seconds per step that a line reports.
    fn reported_seconds(&mut self, line: &ReportedLine, say: &impl Fn(Event)) -> Option<f64> {
        let value = line.seconds?;
        let is_time = value.is_finite() && value >= 0.0;
        if !is_time {
            self.remark(
                NoticeKind::Seconds,
                format!("`seconds` of {value} are ignored: it is not a time"),
                say,
            );
        }
        is_time.then_some(value)
    }

    /// Returns the seconds per step since an earlier step in lines of this kind. 0 if unknown: for the first
    /// step, a repeated step, and fractional counters, whose number of steps is unknown.
    fn seconds(&mut self, step: u64, kind: usize) -> f64 {
        if self.counters.newest().is_some_and(|position| self.counters.has_fractions(position.kind)) {
            return 0.0;
        }
        let now = Instant::now();
        let before = self.timed.get(&kind).copied();
        if before.is_some_and(|(known, _)| step <= known) {
            return 0.0;
        }
        self.timed.insert(kind, (step, now));
        #[expect(clippy::cast_precision_loss, reason = "steps between two lines are few")]
        let seconds = before
            .map_or(0.0, |(known, then)| now.duration_since(then).as_secs_f64() / (step - known) as f64);
        seconds
    }

    fn remark(&mut self, remark: NoticeKind, words: String, say: &impl Fn(Event)) {
        if self.remarks.insert(remark) {
            say(Event::Notice(words));
        }
    }
}

#[cfg(test)]
mod tests;
