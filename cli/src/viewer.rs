//! Viewer of a trial that another process controls: shows its progress.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::plan::planned_training;
use crate::render::progress::ProgressDisplay;
use crate::run_mode::TrialRun;
use crate::signals;
use crate::trials::history_failure;
use dtrain_protocol::{
    AttemptId, Event, PhaseTimes, Rank, ResidentBytes, StampedEvent, StepFigures, StepId, TrialId,
};
use dtrain_runner::driver::{self, DriveOutcome, Viewer};
use dtrain_runner::ledger::{History, summary_of};
use dtrain_runner::{LedgerError, Observer, TrialEvent, files};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between two looks at the trial's spool and history.
const PAUSE: Duration = Duration::from_millis(200);

/// Time that the controller of a trial has to release it after the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a viewer of a trial stopped.
pub(crate) enum ViewerExit {
    /// The trial ended, with this outcome.
    Ended(DriveOutcome),
    /// The user detached from the trial.
    Left,
    /// The process that controlled the trial ended, and the trial did not.
    Unled,
}

/// Shows the progress of a trial that `process` controls, until the trial or that process ends or the user
/// detaches. Changes nothing.
pub(crate) fn watch_until_exit(
    context: &Context,
    history: &History,
    task: &TrialRun<'_>,
    process: u32,
) -> Result<ViewerExit, CommandError> {
    let interrupts = signals::listen()?;
    let (home, trial, label) = (&context.home, task.trial, task.label);
    let mut progress = ProgressDisplay::new(context.out, trial, planned_training(task.plan));
    progress.say(&format!("showing {label}, which process {process} controls; Ctrl-C leaves it running"));
    let mut viewer = Viewer::after(home, trial, AttemptId(0));
    let mut recorded = RecordedProgress::default();
    let is_elsewhere = home.trial(trial).remote_hosts_file().exists();
    let mut log = ControllerLog::at_end(context, trial);
    let viewed = loop {
        // Liveness is checked before the last events are read, so that none are missed.
        let is_led = viewer.controller().is_some();
        let ended = driver::outcome_of(history, trial).map_err(|error| history_failure(&error))?;
        if is_elsewhere {
            recorded.show_news(history, trial, &mut progress).map_err(|error| history_failure(&error))?;
            log.take_lines().iter().for_each(|line| progress.say(line));
        } else {
            viewer.show_new_records(&mut progress).map_err(|error| unreadable(label, &error))?;
        }
        if let Some(ending) = ended {
            break ViewerExit::Ended(ending);
        }
        if interrupts.count() > 0 {
            break ViewerExit::Left;
        }
        if !is_led {
            break ViewerExit::Unled;
        }
        std::thread::sleep(PAUSE);
    };
    if matches!(viewed, ViewerExit::Ended(_)) {
        // The next command finds the trial without a controller.
        let until = Instant::now() + RELEASE_TIMEOUT;
        while viewer.controller().is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    progress.finish();
    if matches!(viewed, ViewerExit::Left) {
        context.out.say(&format!("{label} continues"));
    }
    Ok(viewed)
}

/// What the controller in the background writes to its log while a viewer is there.
struct ControllerLog {
    path: PathBuf,
    offset: u64,
}

impl ControllerLog {
    fn at_end(context: &Context, trial: &TrialId) -> Self {
        let path = context.home.trial(trial).controller_log();
        let offset = path.metadata().map_or(0, |log| log.len());
        Self { path, offset }
    }

    /// Returns the complete lines since the last call; none if the log cannot be read.
    fn take_lines(&mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        let read = files::open(&self.path).and_then(|mut log| {
            log.seek(SeekFrom::Start(self.offset))?;
            log.read_to_end(&mut bytes)
        });
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if read.is_err() {
            return Vec::new();
        }
        self.offset += end as u64;
        String::from_utf8_lossy(&bytes[..end]).lines().map(str::to_owned).collect()
    }
}

pub(crate) fn unreadable(label: &str, error: &std::io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, format!("cannot read what the ranks of {label} report"))
        .cause(error.to_string())
}

/// Progress that was shown from the history, for a trial whose agent runs on another host.
#[derive(Default)]
pub(crate) struct RecordedProgress {
    step: u64,
    validated: u64,
}

impl RecordedProgress {
    pub(crate) fn show_news(
        &mut self,
        history: &History,
        trial: &TrialId,
        observer: &mut dyn Observer,
    ) -> Result<(), LedgerError> {
        let summaries = history.summaries(trial)?;
        let newest = |key: &str| {
            summary_of(&summaries, key).map(|summary| (summary.last_step, summary.last.unwrap_or(f64::NAN)))
        };
        let mut show = |event| {
            let at_ms = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
            let at_ms = u64::try_from(at_ms).unwrap_or(u64::MAX);
            let (attempt, rank) = (AttemptId(0), Rank(0));
            observer.observe(&TrialEvent::Event(StampedEvent { attempt, rank, sequence: 0, at_ms, event }));
        };
        if let Some((step, loss)) = newest("valid.loss").filter(|(step, _)| *step > self.validated) {
            self.validated = step;
            let accuracy = newest("valid.accuracy").map(|(_, accuracy)| accuracy);
            show(Event::Validated { step: StepId(step), loss, accuracy, seconds: None });
        }
        if let Some((step, loss)) = newest("loss").filter(|(step, _)| *step > self.step) {
            self.step = step;
            let value = |key: &str| newest(key).map_or(0.0, |(_, value)| value);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count for display"
            )]
            show(Event::Step(StepFigures {
                step: StepId(step),
                loss,
                gradient_norm: None,
                learning_rate: value("learning_rate"),
                elapsed: newest("elapsed").map(|(_, share)| share),
                noise: None,
                tokens: (value("tokens_per_second") * value("step_seconds")).round() as u64,
                times: PhaseTimes { step: value("step_seconds"), ..PhaseTimes::default() },
                memory_bytes: value("memory_bytes") as u64,
                sent_bytes: 0,
                held: ResidentBytes::default(),
            }));
        }
        Ok(())
    }
}
