//! What foreign programs tell: figures, and their last words.

use crate::files;
use dtrain_protocol::{Event, HeldBytes, NamedFigure, PhaseTimes, StepFigures, StepId};
use dtrain_recipes::model;
use dtrain_recipes::progress::{Template, is_metric_name};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

/// Lines that are kept of a program that failed …
const LAST_LINES: usize = 40;

/// … and where in its log they are looked for, in bytes from the end.
const LAST_BYTES: u64 = 16 << 10;

/// Longest line that is looked at whole, in bytes; a longer one is looked at in parts.
const LINE: u64 = 64 << 10;

/// How a program's output is read.
pub(super) struct Progress(Vec<Template>);

impl Progress {
    /// By the recipe's templates; `Err` quotes one that is none.
    pub(super) fn of(foreign: &model::Command) -> Result<Self, String> {
        let parse = |text: &String| Template::parse(text).map_err(|error| format!("`{text}`: {error}"));
        foreign.progress.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn reads_output(&self) -> bool {
        !self.0.is_empty()
    }

    /// Writes all that is printed to the log, and says what lines tell.
    pub(super) fn read_output(&self, from: impl Read, log: &Path, say: &impl Fn(Event)) -> io::Result<()> {
        // Neither a missing log nor a full disk may keep the program from going on.
        let mut log = files::append(log).ok();
        let mut clock = Clock::default();
        each_line(from, |bytes| {
            drop(log.as_mut().map(|log| log.write_all(bytes)));
            let line = String::from_utf8_lossy(bytes);
            // Progress bars overwrite their line.
            for line in line.split(['\r', '\n']) {
                if let Some(found) = self.0.iter().find_map(|template| template.read(line)) {
                    said(Line::of(found), &mut clock, say);
                }
            }
        })
    }
}

/// Hands over line by line, each with its end, until there is no more; bytes need not be UTF-8.
fn each_line(from: impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.by_ref().take(LINE).read_until(b'\n', &mut bytes)? > 0 {
        take(&bytes);
        bytes.clear();
    }
    Ok(())
}

/// Reads lines of JSON until the program ends. A line that is not understood is skipped: it is the program's own business.
pub(super) fn read_events(from: impl Read, say: &impl Fn(Event)) -> io::Result<()> {
    let mut clock = Clock::default();
    each_line(from, |line| {
        if let Ok(line) = serde_json::from_slice(line).or_else(|_| with_names(line)) {
            said(Line::of_json(line), &mut clock, say);
        }
    })
}

/// A line with `NaN`, `Infinity` or `-Infinity`, which Python writes and JSON does not have.
fn with_names(line: &[u8]) -> serde_json::Result<BTreeMap<String, Value>> {
    let text = String::from_utf8_lossy(line);
    let named =
        text.replace("-Infinity", "\"-inf\"").replace("Infinity", "\"inf\"").replace("NaN", "\"NaN\"");
    serde_json::from_str(&named)
}

/// The number that a value of a line is, if it is one.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        // What `with_names` made of numbers that JSON does not have.
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "inf" => Some(f64::INFINITY),
            "-inf" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The last lines of a log.
pub(super) fn last_lines(log: &Path) -> Vec<String> {
    let tail = || -> io::Result<String> {
        let mut file = files::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = tail().unwrap_or_default();
    // A terminal must not obey what a program printed.
    let plain = |line: &str| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let lines: Vec<String> =
        text.lines().map(|line| plain(line).trim_end().to_owned()).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].to_vec()
}

/// Metrics that one line may carry; the rest of a longer one is skipped.
const METRICS_OF_A_LINE: usize = 1000;

/// What one line reports.
#[derive(Debug, Default, PartialEq)]
struct Line {
    /// The step that it names.
    step: Option<u64>,
    loss: Option<f64>,
    learning_rate: Option<f64>,
    gradient_norm: Option<f64>,
    tokens: u64,
    seconds: Option<f64>,
    valid_loss: Option<f64>,
    valid_accuracy: Option<f64>,
    metrics: Vec<NamedFigure>,
}

impl Line {
    fn of<'n>(found: impl IntoIterator<Item = (&'n str, f64)>) -> Self {
        let mut line = Self::default();
        for (name, value) in found {
            line.take(name, value);
        }
        line
    }

    /// Of a line of JSON. What is no number, or has a name that no metric can have, is skipped.
    fn of_json(line: BTreeMap<String, Value>) -> Self {
        Self::of(line.iter().filter_map(|(name, value)| Some((name.as_str(), number(value)?))))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates"
    )]
    fn take(&mut self, name: &str, value: f64) {
        match name {
            "step" => self.step = Some(value as u64),
            "loss" => self.loss = Some(value),
            "tokens" => self.tokens = value as u64,
            "seconds" => self.seconds = value.is_finite().then_some(value),
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
}

/// Where the program is, by the lines so far.
#[derive(Default)]
struct Clock {
    /// The newest step that a line named.
    newest: Option<u64>,
    /// Lines without a step while none named one.
    counted: u64,
    /// The newest step with a loss, and when it was reported.
    timed: Option<(u64, Instant)>,
}

impl Clock {
    /// The step of a line: the one that it names, otherwise the newest. Where no line ever named one, lines are counted.
    fn step(&mut self, line: &Line) -> u64 {
        self.newest = line.step.or(self.newest);
        self.counted += u64::from(self.newest.is_none());
        self.newest.unwrap_or(self.counted)
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
}

fn said(mut line: Line, clock: &mut Clock, say: &impl Fn(Event)) {
    line.move_to_metrics();
    let number = clock.step(&line);
    let step = StepId(number);
    if let Some(loss) = line.loss {
        let measured = clock.seconds(number);
        say(Event::Step(StepFigures {
            step,
            loss,
            gradient_norm: line.gradient_norm,
            learning_rate: line.learning_rate.unwrap_or(f64::NAN),
            elapsed: None,
            noise: None,
            tokens: line.tokens,
            times: PhaseTimes { step: line.seconds.unwrap_or(measured), ..PhaseTimes::default() },
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn lines_become_events_and_others_are_skipped() {
        // What is not understood may be of any bytes and of any length.
        let strange = [b"hello \xff\n".as_slice(), &vec![b'x'; 3 * LINE as usize]].concat();
        let told = b"\n{\"step\": 3, \"loss\": 0.5, \"tokens\": 8}\n{\"step\": 4, \"valid_loss\": 0.25}\n\
            {\"step\": 5, \"loss\": NaN}\n{\"step\": 6, \"loss\": -Infinity}\n";
        let text = [strange.as_slice(), told].concat();
        let said = RefCell::new(Vec::new());
        read_events(text.as_slice(), &|event| said.borrow_mut().push(event)).expect("text can be read");
        let said = said.into_inner();
        assert!(matches!(&said[0], Event::Step(f) if f.step == StepId(3) && f.tokens == 8));
        assert!(matches!(said[1], Event::Validated { step: StepId(4), loss, .. } if loss == 0.25));
        assert!(matches!(&said[2], Event::Step(f) if f.step == StepId(5) && f.loss.is_nan()));
        assert!(matches!(&said[3], Event::Step(f) if f.loss == f64::NEG_INFINITY));
        assert_eq!(said.len(), 4);
    }

    fn events(text: &str) -> Vec<Event> {
        let said = RefCell::new(Vec::new());
        read_events(text.as_bytes(), &|event| said.borrow_mut().push(event)).expect("text can be read");
        said.into_inner()
    }

    #[test]
    fn any_named_number_is_a_metric_of_the_newest_step() {
        let metrics = |step, all: &[(&str, f64)]| {
            let figures = all.iter().map(|(name, value)| NamedFigure { name: (*name).into(), value: *value });
            Event::Metrics { step: StepId(step), figures: figures.collect() }
        };
        let said = events(
            "{\"step\": 7, \"val/f1\": 0.5, \"note\": \"x\", \"bad name\": 1, \"learning_rate\": 0.1}\n\
             {\"val/f1\": 0.75}\n{\"step\": 8, \"valid_accuracy\": 0.9}\n",
        );
        let expected = [
            metrics(7, &[("val/f1", 0.5), ("learning_rate", 0.1)]),
            metrics(7, &[("val/f1", 0.75)]),
            metrics(8, &[("valid.accuracy", 0.9)]),
        ];
        assert_eq!(said, expected);
        assert_eq!(
            events("{\"auc\": 1}\n{\"auc\": 2}\n"),
            [metrics(1, &[("auc", 1.0)]), metrics(2, &[("auc", 2.0)])],
            "lines are counted where no line names a step"
        );
    }

    #[test]
    fn printed_lines_are_logged_and_those_of_a_template_become_events() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "").expect("room on disk");
        let templates = ["step {step} loss {loss}", "step {step} valid {valid_loss}"];
        let progress = Progress(templates.map(|text| Template::parse(text).expect("a template")).into());
        let text = "loading \u{fffd}\nstep 1 loss 4\r\nstep 2 loss 3.5\nstep 2 valid 3.75\nbye";
        let said = RefCell::new(Vec::new());
        progress
            .read_output(text.as_bytes(), &log, &|event| said.borrow_mut().push(event))
            .expect("text can be read");
        let said = said.into_inner();
        assert!(matches!(&said[..], [
            Event::Step(StepFigures { step: StepId(1), .. }),
            Event::Step(StepFigures { step: StepId(2), times: PhaseTimes { step: seconds, .. }, .. }),
            Event::Validated { step: StepId(2), loss: 3.75, .. },
        ] if *seconds > 0.0));
        assert_eq!(std::fs::read_to_string(&log).expect("a log"), text);
        assert_eq!(last_lines(&log)[3..], ["step 2 valid 3.75", "bye"]);
    }

    #[test]
    fn only_the_end_of_a_long_log_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let text: String = (0..1000).map(|line| format!("line {line}\n\n")).collect();
        std::fs::write(&log, text).expect("room on disk");
        let last = last_lines(&log);
        assert_eq!((last.len(), last[0].as_str(), last[39].as_str()), (40, "line 960", "line 999"));
        assert!(last_lines(&folder.path().join("none")).is_empty());
    }
}
