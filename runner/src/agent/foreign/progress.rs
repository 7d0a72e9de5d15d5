//! Reads what foreign programs print and report: lines that templates fit, lines of JSON, and their last words.

use super::report::{Clock, Line};
use crate::files;
use dtrain_protocol::Event;
use dtrain_recipes::model;
use dtrain_recipes::progress::{LineSplitter, Template, plain};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Lines that are kept of a program that failed …
const LAST_LINES: usize = 40;

/// … and where in its log they are looked for, in bytes from the end.
const LAST_BYTES: u64 = 16 << 10;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

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

    /// Writes all that is printed to the log as it comes, and tells what its lines report.
    pub(super) fn read_output(&self, from: impl Read, log: &Path, say: &impl Fn(Event)) -> io::Result<()> {
        // Neither a missing log nor a full disk may keep the program from going on.
        let mut log = files::append(log).ok();
        let mut clock = Clock::default();
        let keep = |bytes: &[u8]| drop(log.as_mut().map(|log| log.write_all(bytes)));
        each_line(from, keep, |line| {
            for line in plain(line).lines() {
                let read = |(index, template): (usize, &Template)| {
                    template.read(line).map(|found| (index, Line::of(found)))
                };
                if let Some((index, line)) = self.0.iter().enumerate().find_map(read) {
                    clock.report(line, index, say);
                }
            }
        })
    }
}

/// Hands over bytes as they come and lines as they end, until there is no more; bytes need not be UTF-8.
fn each_line(
    mut from: impl Read,
    mut bytes: impl FnMut(&[u8]),
    mut line: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut lines = LineSplitter::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                bytes(&chunk[..length]);
                lines.feed(&chunk[..length], |_, found| line(found));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    lines.finish(|_, found| line(found));
    Ok(())
}

/// Reads lines of JSON until the program ends. A line that is not understood is skipped: it is the program's own business.
pub(super) fn read_events(from: impl Read, say: &impl Fn(Event)) -> io::Result<()> {
    let mut clock = Clock::default();
    each_line(
        from,
        |_| {},
        |line| {
            if let Ok(line) = serde_json::from_slice(line).or_else(|_| with_names(line)) {
                clock.report(of_json(&line), 0, say);
            }
        },
    )
}

/// What a line of JSON reports. What is no number is skipped.
fn of_json(line: &BTreeMap<String, Value>) -> Line {
    Line::of(line.iter().filter_map(|(name, value)| Some((name.as_str(), number(value)?))))
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
    let tail = || -> io::Result<Vec<u8>> {
        let mut file = files::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let mut lines = Vec::new();
    let mut take = |_, line: &[u8]| {
        let plain = plain(line).replace('\t', " ");
        lines.extend(plain.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned));
    };
    let mut splitter = LineSplitter::default();
    splitter.feed(&tail().unwrap_or_default(), &mut take);
    splitter.finish(&mut take);
    lines.split_off(lines.len().saturating_sub(LAST_LINES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{NamedFigure, PhaseTimes, StepFigures, StepId};
    use std::cell::RefCell;

    #[test]
    fn lines_become_events_and_others_are_skipped() {
        // What is not understood may be of any bytes and of any length.
        let strange = [b"hello \xff\n".as_slice(), &vec![b'x'; 3 * CHUNK]].concat();
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
    fn a_bar_that_overwrites_its_line_is_read_and_logged_while_it_moves() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "").expect("room on disk");
        let template = Template::parse("step {step}/* loss={loss}").expect("a template");
        let (output, mut printed) = io::pipe().expect("a pipe");
        let (sender, events) = std::sync::mpsc::channel();
        let path = log.clone();
        let reader = std::thread::spawn(move || {
            Progress(vec![template]).read_output(output, &path, &|event| drop(sender.send(event)))
        });
        let mut text = String::new();
        for step in 1..=3 {
            let piece = format!("\rtrain: step \x1b[1m{step}\x1b[0m/60 loss=0.5 \r");
            printed.write_all(piece.as_bytes()).expect("somebody reads");
            let Ok(Event::Step(figures)) = events.recv() else { panic!("the line has ended") };
            assert_eq!(figures.step, StepId(step));
            text += &piece;
            assert_eq!(std::fs::read_to_string(&log).expect("a log"), text, "as it was printed");
        }
        drop(printed);
        reader.join().expect("it does not panic").expect("a pipe can be read");
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
