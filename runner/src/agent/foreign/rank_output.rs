//! Capture of the output (stdout and stderr) of a rank that runs a foreign program: a copy in its log, the
//! figures in lines that match templates, and the last lines.

use super::super::InboxMessage;
use super::json_lines;
use super::step_tracker::{ReportedLine, StepTracker};
use crate::files;
use dtrain_protocol::{Event, Rank};
use dtrain_recipes::line_template::{LineSplitter, LineTemplate, plain};
use dtrain_recipes::model;
use std::io::{self, PipeReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;

/// Number of last lines of a failed program's log that its failure quotes.
const LAST_LINES: usize = 40;

/// Number of bytes at the end of a failed program's log in which its last lines are searched.
const LAST_BYTES: u64 = 16 << 10;

/// Number of bytes of output read at once.
const CHUNK: usize = 64 << 10;

/// The streams from which a foreign rank's reports are read.
pub(in crate::agent) struct RankOutput {
    /// Pipe on which the program writes JSON lines.
    pub(super) events: PipeReader,
    /// Pipe with the program's output, which is also copied to the log; `None` if no templates apply to it.
    pub(super) output: Option<PipeReader>,
    pub(super) log: PathBuf,
    pub(super) progress: OutputTemplates,
}

/// The recipe's templates for the lines of a program's output.
pub(super) struct OutputTemplates(Vec<LineTemplate>);

impl OutputTemplates {
    /// Parses the recipe's templates; `Err` quotes an invalid one.
    pub(super) fn of(foreign: &model::ForeignCommand) -> Result<Self, String> {
        let parse = |text: &String| LineTemplate::parse(text).map_err(|error| format!("`{text}`: {error}"));
        foreign.progress.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn reads_output(&self) -> bool {
        !self.0.is_empty()
    }

    /// Copies the output to the log as it arrives, and reports the figures of its lines.
    pub(super) fn read_output(&self, from: impl Read, log: &Path, say: &impl Fn(Event)) -> io::Result<()> {
        let mut tracker = StepTracker::default();
        let mut file = files::append(log);
        let mut is_whole = true;
        // A missing log or a full disk must not stop the program.
        let keep = |bytes: &[u8]| {
            let written = match &mut file {
                Ok(file) => file.write_all(bytes).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = written
                && std::mem::replace(&mut is_whole, false)
            {
                let words = format!("output is missing from {}: {error}", log.display());
                say(Event::Notice(words));
            }
        };
        each_line(from, keep, |line| {
            for line in plain(line).lines() {
                let read = |(index, template): (usize, &LineTemplate)| {
                    template.read(line).map(|found| (index, ReportedLine::of(found)))
                };
                if let Some((index, line)) = self.0.iter().enumerate().find_map(read) {
                    tracker.report(line, index, say);
                }
            }
        })
    }
}

/// Reads a rank's reports in threads until the program and its child processes have closed their files.
pub(in crate::agent) fn spawn_readers(rank_output: RankOutput, rank: Rank, inbox: &Sender<InboxMessage>) {
    let inbox = inbox.clone();
    thread::spawn(move || {
        let RankOutput { events: reports, output, log, progress } = rank_output;
        let say = |event| drop(inbox.send(InboxMessage::Event(rank, event)));
        // An error of a pipe or a log is not the rank's fault.
        thread::scope(|scope| {
            if let Some(output) = output {
                scope.spawn(|| drop(progress.read_output(output, &log, &say)));
            }
            drop(json_lines::read_events(reports, &say));
        });
        let last = last_lines(&log);
        drop(inbox.send(InboxMessage::OutputClosed { rank, garbled: None, last }));
    });
}

/// Passes on bytes as they arrive and lines as they end, until end of file; bytes need not be UTF-8.
pub(super) fn each_line(
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

/// Returns the last lines of a program's log.
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
    use dtrain_protocol::{PhaseTimes, StepFigures, StepId};
    use std::cell::RefCell;

    #[test]
    fn output_that_cannot_be_kept_is_said_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = RefCell::new(Vec::new());
        // A folder cannot be written, even by root.
        OutputTemplates(vec![LineTemplate::parse("loss {loss}").expect("a template")])
            .read_output("loss 1\nloss 2\n".as_bytes(), folder.path(), &|event| said.borrow_mut().push(event))
            .expect("text can be read");
        let said = said.into_inner();
        let is_notice =
            |event: &&Event| matches!(event, Event::Notice(words) if words.contains("is missing"));
        assert_eq!((said.iter().filter(is_notice).count(), said.len()), (1, 3), "{said:?}");
    }

    #[test]
    fn printed_lines_are_logged_and_those_of_a_template_become_events() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "").expect("room on disk");
        let templates = ["step {step} loss {loss}", "step {step} valid {valid_loss}"];
        let progress =
            OutputTemplates(templates.map(|text| LineTemplate::parse(text).expect("a template")).into());
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
        let template = LineTemplate::parse("step {step}/* loss={loss}").expect("a template");
        let (output, mut printed) = io::pipe().expect("a pipe");
        let (sender, events) = std::sync::mpsc::channel();
        let path = log.clone();
        let reader = std::thread::spawn(move || {
            OutputTemplates(vec![template]).read_output(output, &path, &|event| drop(sender.send(event)))
        });
        let mut text = String::new();
        for step in 1..=3 {
            let piece = format!("\rtrain: step \x1b[1m{step}\x1b[0m/60 loss=0.5 \r");
            printed.write_all(piece.as_bytes()).expect("a thread reads");
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
