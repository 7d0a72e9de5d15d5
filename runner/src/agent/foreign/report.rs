//! What a line of a foreign program reports, and at which step.

use dtrain_protocol::{Event, HeldBytes, NamedFigure, PhaseTimes, StepFigures, StepId};
use dtrain_recipes::progress::is_metric_name;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Metrics that one line may carry; the rest of a longer one is skipped.
const METRICS_OF_A_LINE: usize = 1000;

/// Largest count, 2^53: every whole number up to it is one of floating point.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Steps that a counter with fractions counts from one whole number to the next.
const STEPS_OF_A_UNIT: f64 = 1000.0;

/// What one line reports, as it stands there.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Line {
    step: Option<f64>,
    loss: Option<f64>,
    learning_rate: Option<f64>,
    gradient_norm: Option<f64>,
    tokens: Option<f64>,
    seconds: Option<f64>,
    valid_loss: Option<f64>,
    valid_accuracy: Option<f64>,
    metrics: Vec<NamedFigure>,
}

impl Line {
    /// Of numbers with their names. What has a name that no metric can have is skipped.
    pub(super) fn of<'n>(found: impl IntoIterator<Item = (&'n str, f64)>) -> Self {
        let mut line = Self::default();
        for (name, value) in found {
            line.take(name, value);
        }
        line
    }

    fn take(&mut self, name: &str, value: f64) {
        match name {
            "step" => self.step = Some(value),
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

    /// Figures that belong to a step with a loss, or to a validation with one, and stand here without.
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

    /// Names of the results.
    fn names(&self) -> impl Iterator<Item = &str> {
        let loss = self.loss.map(|_| "loss");
        let valid = self.valid_loss.map(|_| "valid.loss");
        loss.into_iter().chain(valid).chain(self.metrics.iter().map(|figure| figure.name.as_str()))
    }
}

/// Something that is said once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Remark {
    Fraction,
    BeganAgain,
    NoStep,
    Tokens,
    Seconds,
}

/// A counter as lines of one kind show it, in its own units.
struct Counter {
    /// What it began with, and began again with.
    first: f64,
    newest: f64,
    /// How far it went on from one line to the next.
    stride: f64,
    /// What is added to it, since it began again.
    offset: f64,
}

/// Where the program is, by the lines so far.
#[derive(Default)]
pub(super) struct Clock {
    /// The counter of each kind of line, such as the lines of one template.
    counters: BTreeMap<usize, Counter>,
    /// The newest step that a line named: as it stands there, and continued.
    newest: Option<(f64, f64)>,
    /// Whether the counter has fractions, such as those of an epoch.
    has_fractions: bool,
    /// Of each result the newest step as it stands in the line, and the one that it counts as.
    results: BTreeMap<String, (f64, u64)>,
    /// Lines without a step while none named one.
    counted: u64,
    /// The newest step with a loss, and when it was reported.
    timed: Option<(u64, Instant)>,
    remarks: BTreeSet<Remark>,
}

impl Clock {
    /// Tells what a line reports. `kind` is that of lines that have a counter in common.
    pub(super) fn report(&mut self, mut line: Line, kind: usize, say: &impl Fn(Event)) {
        line.move_to_metrics();
        let number = self.step(&line, kind, say);
        let step = StepId(number);
        let tokens = self.tokens(&line, say);
        let told = self.told_seconds(&line, say);
        if let Some(loss) = line.loss {
            let measured = self.seconds(number);
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
                held: HeldBytes::default(),
            }));
        }
        if let Some(loss) = line.valid_loss {
            say(Event::Validated { step, loss, accuracy: line.valid_accuracy });
        }
        if !line.metrics.is_empty() {
            say(Event::Metrics { step, figures: line.metrics });
        }
    }

    /// The step of a line: the one that it names, otherwise the newest. Where no line ever named one, lines are counted.
    fn step(&mut self, line: &Line, kind: usize, say: &impl Fn(Event)) -> u64 {
        let named = line.step.filter(|value| self.is_step(*value, say));
        if let Some(value) = named {
            self.newest = Some((value, self.continued(value, kind, say)));
        }
        let Some((value, continued)) = self.newest else {
            self.counted += 1;
            return self.counted;
        };
        let mut step = whole(continued * if self.has_fractions { STEPS_OF_A_UNIT } else { 1.0 });
        if self.has_fractions && named.is_some() {
            // Fractions are printed with few digits: what comes a second time is a later step.
            let known = line.names().filter_map(|name| self.results.get(name));
            let later = known.filter(|(known, _)| *known <= value).map(|(_, step)| step + 1);
            step = later.max().map_or(step, |later| step.max(later));
            for name in line.names() {
                self.results.insert(name.to_owned(), (value, step));
            }
        }
        step
    }

    /// Whether a value can be a step.
    fn is_step(&mut self, value: f64, say: &impl Fn(Event)) -> bool {
        if !(0.0..=LARGEST / STEPS_OF_A_UNIT).contains(&value) {
            let words =
                format!("a `step` of {value} is ignored: it is not a number of steps that can be counted");
            self.remark(Remark::NoStep, words, say);
            return false;
        }
        if value.fract() != 0.0 {
            self.has_fractions = true;
            let step = whole(value * STEPS_OF_A_UNIT);
            let words = format!(
                "`step` is {value}, not a whole number: it is counted in thousandths, {value} as step {step}"
            );
            self.remark(Remark::Fraction, words, say);
        }
        true
    }

    /// The value of a counter, continued where it began again.
    fn continued(&mut self, value: f64, kind: usize, say: &impl Fn(Event)) -> f64 {
        let furthest = self.counters.values().map(|counter| counter.offset).fold(0.0, f64::max);
        let fresh = Counter { first: value, newest: value, stride: 0.0, offset: 0.0 };
        let counter = self.counters.entry(kind).or_insert(fresh);
        // Lines of several kinds tell of the same step.
        if let Some((_, continued)) = self.newest.filter(|(newest, _)| *newest == value) {
            counter.first = if value < counter.newest { value } else { counter.first };
            (counter.newest, counter.offset) = (value, continued - value);
            return continued;
        }
        let begins_again = value < counter.newest && value <= counter.first.max(counter.newest / 2.0);
        if begins_again {
            let reached = counter.newest + counter.offset;
            // After 99 of a counter from 0 comes 100.
            let gap = if value == 0.0 { counter.stride } else { 0.0 };
            let is_known = furthest > counter.offset && furthest + value > reached;
            counter.offset = if is_known { furthest } else { reached + gap };
            counter.first = value;
        } else if value > counter.newest {
            counter.stride = value - counter.newest;
        }
        let before = std::mem::replace(&mut counter.newest, value);
        let continued = value + counter.offset;
        if begins_again {
            let words = format!(
                "`step` began again at {value} after {before}: it is continued, {value} as {continued}"
            );
            self.remark(Remark::BeganAgain, words, say);
        }
        continued
    }

    /// Tokens of a line; 0 where it does not tell.
    fn tokens(&mut self, line: &Line, say: &impl Fn(Event)) -> u64 {
        let Some(value) = line.tokens else { return 0 };
        if !(0.0..=LARGEST).contains(&value) {
            let words =
                format!("`tokens` of {value} are ignored: it is not a number of tokens that can be counted");
            self.remark(Remark::Tokens, words, say);
            return 0;
        }
        if value.fract() != 0.0 {
            let words = format!("`tokens` is {value}, not a whole number: it is rounded");
            self.remark(Remark::Tokens, words, say);
        }
        whole(value)
    }

    /// Seconds as a line tells them.
    fn told_seconds(&mut self, line: &Line, say: &impl Fn(Event)) -> Option<f64> {
        let value = line.seconds?;
        let is_time = value.is_finite() && value >= 0.0;
        if !is_time {
            self.remark(Remark::Seconds, format!("`seconds` of {value} are ignored: it is not a time"), say);
        }
        is_time.then_some(value)
    }

    /// Seconds of a step, by the time since an earlier one was reported; 0 for the first.
    fn seconds(&mut self, step: u64) -> f64 {
        let now = Instant::now();
        let before = self.timed.replace((step, now));
        #[expect(clippy::cast_precision_loss, reason = "steps between two lines are few")]
        let seconds = before
            .filter(|(known, _)| *known < step)
            .map_or(0.0, |(known, then)| now.duration_since(then).as_secs_f64() / (step - known) as f64);
        seconds
    }

    fn remark(&mut self, remark: Remark, words: String, say: &impl Fn(Event)) {
        if self.remarks.insert(remark) {
            say(Event::Notice(words));
        }
    }
}

/// The whole number that is nearest to a value from 0 on.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "callers check the range")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The steps at which losses are reported by lines of a kind, and what is remarked.
    fn steps(lines: &[(usize, f64)]) -> (Vec<u64>, Vec<String>) {
        let events = RefCell::new(Vec::new());
        let mut clock = Clock::default();
        for (kind, step) in lines {
            clock.report(Line::of([("step", *step), ("loss", 0.5)]), *kind, &|event| {
                events.borrow_mut().push(event);
            });
        }
        let (mut steps, mut remarks) = (Vec::new(), Vec::new());
        for event in events.into_inner() {
            match event {
                Event::Step(figures) => steps.push(figures.step.0),
                Event::Notice(words) => remarks.push(words),
                other => panic!("{other:?}"),
            }
        }
        (steps, remarks)
    }

    fn of_one_kind(values: &[f64]) -> (Vec<u64>, Vec<String>) {
        steps(&values.iter().map(|value| (0, *value)).collect::<Vec<_>>())
    }

    #[test]
    fn fractions_of_an_epoch_are_steps_of_their_own() {
        let (steps, remarks) = of_one_kind(&[0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]);
        assert_eq!(steps, [250, 500, 750, 1000, 1250, 1500, 1750, 2000]);
        assert_eq!(
            remarks,
            ["`step` is 0.25, not a whole number: it is counted in thousandths, 0.25 as step 250"]
        );
        assert_eq!(of_one_kind(&[0.01, 0.01, 0.01, 0.02]).0, [10, 11, 12, 20], "none is lost to rounding");
        assert_eq!(of_one_kind(&[0.001, 0.001, 0.001, 0.002]).0, [1, 2, 3, 4]);
        assert_eq!(of_one_kind(&[1.0, 2.0]).0, [1, 2]);
    }

    #[test]
    fn a_counter_that_begins_again_is_continued_and_said_once() {
        let (steps, remarks) = of_one_kind(&[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]);
        assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(remarks, ["`step` began again at 1 after 3: it is continued, 1 as 4"]);
        assert_eq!(of_one_kind(&[0.0, 1.0, 2.0, 0.0, 1.0]).0, [0, 1, 2, 3, 4]);
        assert_eq!(of_one_kind(&[50.0, 100.0, 50.0, 100.0]).0, [50, 100, 150, 200]);
        assert_eq!(of_one_kind(&[0.5, 1.0, 0.5, 1.0]).0, [500, 1000, 1500, 2000]);
        let (steps, remarks) = of_one_kind(&[98.0, 100.0, 99.0, 101.0]);
        assert_eq!((steps, remarks), (vec![98, 100, 99, 101], Vec::new()), "lines that overtake each other");
    }

    #[test]
    fn counters_of_several_templates_do_not_mix() {
        // Steps, and epochs that are counted by themselves.
        let (of_epochs, remarks) =
            steps(&[(0, 50.0), (0, 100.0), (1, 1.0), (0, 150.0), (0, 200.0), (1, 2.0)]);
        assert_eq!((of_epochs, remarks), (vec![50, 100, 1, 150, 200, 2], Vec::new()));
        // A validation at the end of each epoch tells of its last step.
        let of_steps = steps(&[(0, 1.0), (0, 9.0), (1, 9.0), (0, 1.0), (0, 9.0), (1, 9.0)]).0;
        assert_eq!(of_steps, [1, 9, 9, 10, 18, 18]);
    }

    #[test]
    fn what_is_no_step_is_ignored_and_said_once() {
        for absurd in [-1.0, f64::NAN, f64::INFINITY, 1.844e19] {
            let (steps, remarks) = of_one_kind(&[7.0, absurd, absurd, 8.0]);
            assert_eq!(steps, [7, 7, 7, 8], "{absurd}");
            assert!(remarks.len() == 1 && remarks[0].contains("is ignored"), "{absurd}: {remarks:?}");
        }
        assert_eq!(of_one_kind(&[-1.0, -1.0]).0, [1, 2], "lines are counted");
    }

    #[test]
    fn tokens_and_seconds_that_are_none_are_not_believed() {
        let told = |name: &str, value: f64| {
            let events = RefCell::new(Vec::new());
            Clock::default().report(Line::of([("loss", 1.0), (name, value)]), 0, &|event| {
                events.borrow_mut().push(event);
            });
            let events = events.into_inner();
            let Some(Event::Step(figures)) = events.last() else { panic!("{events:?}") };
            (figures.tokens, figures.times.step, events.len() - 1)
        };
        assert_eq!(told("tokens", 1003.7), (1004, 0.0, 1));
        assert_eq!(told("tokens", -3.0), (0, 0.0, 1));
        assert_eq!(told("tokens", 512.0), (512, 0.0, 0));
        assert_eq!(told("seconds", -3.0), (0, 0.0, 1));
        assert_eq!(told("seconds", 0.5), (0, 0.5, 0));
    }
}
