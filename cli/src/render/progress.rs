//! Live display of a training run, as text for people or as JSON Lines. Makes no decisions.

use super::figures::{Figures, PlannedTraining};
use super::number::{counted, loss, remaining, seconds, whole};
use super::progress_bar::TrainingBar;
use crate::limits;
use crate::output::Output;
use dtrain_protocol::{AttemptId, Event, Failure, Rank, StampedEvent, StepId, TrialId};
use dtrain_recipes::number_format;
use dtrain_runner::machine::{Blame, Growth};
use dtrain_runner::strikes::{ExcludedHost, StrikeCause};
use dtrain_runner::{AttemptEnd, ControllerStatus, Fact, Observer, TrialEvent};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Live display of one trial's progress.
pub(crate) struct ProgressDisplay {
    out: Output,
    /// Trial id in the lines of JSON.
    trial: TrialId,
    /// Attempt that was announced last; `None` before the first.
    attempt: Option<AttemptId>,
    expected: PlannedTraining,
    /// Latest figures of the trial.
    pub(crate) figures: Figures,
    /// Progress bar; `None` where no terminal shows it.
    bar: Option<TrainingBar>,
    /// Lines that wait until the caller prints them; `None` if they go to stderr.
    lines: Option<RefCell<Vec<String>>>,
    /// True if lines about steps are shown where there is no progress bar.
    shows_steps: bool,
    /// Due times of the first and the last line about a step, in milliseconds since the Unix epoch; used
    /// without a progress bar.
    steps_shown: Option<(u64, u64)>,
    /// Step of the last checkpoint that a rank could not save, and whether it tries again: each is printed once.
    unsaved: Option<(StepId, bool)>,
    /// Notices printed so far; several ranks may send the same.
    notices: BTreeSet<String>,
    /// True once the reader of the JSON has closed the pipe.
    pub(crate) is_unheard: bool,
}

/// Milliseconds between two lines about steps during the first [`CHATTY`] milliseconds.
const LINE_EVERY: u64 = 2_000;

/// Milliseconds at the beginning during which lines about steps are frequent.
const CHATTY: u64 = 120_000;

/// Milliseconds between two lines about steps after the first [`CHATTY`] milliseconds.
const LINE_EVERY_LATER: u64 = 20_000;

impl ProgressDisplay {
    /// Creates a display on stderr: a progress bar on a terminal, otherwise lines. With `--json`, all events
    /// go to stdout as lines.
    pub(crate) fn new(out: Output, trial: &TrialId, expected: PlannedTraining) -> Self {
        let bar = out.draws().then(|| TrainingBar::new(out));
        Self {
            out,
            trial: trial.clone(),
            attempt: None,
            expected,
            figures: Figures::default(),
            bar,
            lines: None,
            shows_steps: true,
            steps_shown: None,
            unsaved: None,
            notices: BTreeSet::new(),
            is_unheard: false,
        }
    }

    /// Creates a display that collects its lines for the caller to print.
    pub(crate) fn in_lines(out: Output, trial: &TrialId, expected: PlannedTraining) -> Self {
        let out = Output { json: false, quiet: true, ..out };
        Self { lines: Some(RefCell::default()), ..Self::new(out, trial, expected) }
    }

    /// Creates a display of what happens to a trial, without its steps.
    pub(crate) fn without_steps(out: Output, trial: &TrialId, expected: PlannedTraining) -> Self {
        Self { shows_steps: false, ..Self::new(out, trial, expected) }
    }

    /// Returns the lines that were added since the last call.
    pub(crate) fn take_lines(&self) -> Vec<String> {
        self.lines.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Prints a message without garbling the progress bar.
    pub(crate) fn say(&self, text: &str) {
        let text = limits::explain_line(text);
        match (&self.lines, &self.bar) {
            (Some(lines), _) => lines.borrow_mut().push(text.into_owned()),
            (None, Some(bar)) => bar.suspend(|| self.out.say(&text)),
            (None, None) => self.out.say(&text),
        }
    }

    /// Removes the progress bar, so that the next message takes its place.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }

    fn event(&mut self, said: &StampedEvent) {
        let has_news = self.figures.apply(said);
        match &said.event {
            Event::Ready { parameters, device, train_samples, valid_samples, step, notice, .. }
                if said.rank == Rank(0) =>
            {
                let from = if step.0 == 0 { String::new() } else { format!(", from step {step}") };
                self.say(&format!(
                    "training {} parameters on {device}; {} samples, {} held out for validation{from}",
                    number_format::parameters(*parameters),
                    whole(*train_samples),
                    whole(*valid_samples)
                ));
                if let Some(notice) = notice {
                    self.say(&format!("{}: {notice}", self.warning()));
                }
            }
            Event::Notice(words) if self.notices.insert(words.clone()) => {
                self.say(&format!("{}: {words}", self.warning()));
            }
            Event::SaveFailed { step, reason, retries } => {
                if self.unsaved.replace((*step, *retries)) == Some((*step, *retries)) {
                    return;
                }
                let words = if *retries {
                    format!(
                        "the last checkpoint, at step {step}, cannot be saved yet: {reason}; \
                         the weights stay in memory until it can be; stopping the trial drops them"
                    )
                } else {
                    format!("the checkpoint at step {step} was not saved: {reason}")
                };
                self.say(&format!("{}: {words}", self.warning()));
            }
            Event::Failed(Failure::Command { code, signal, last }) => {
                let how = Failure::Command { code: *code, signal: *signal, last: Vec::new() };
                let printed: String = last.iter().map(|line| format!("\n  | {line}")).collect();
                self.say(&format!("{}: rank {}: {how}{printed}", self.warning(), said.rank));
            }
            // What the leader says of a rank that it killed names no other rank.
            Event::Failed(Failure::PeerLost { peer: Some(peer), detail }) if *peer == said.rank => {
                self.say(&format!("{}: rank {peer}: {detail}", self.warning()));
            }
            Event::Failed(failure) => {
                self.say(&format!("{}: rank {}: {failure}", self.warning(), said.rank));
            }
            Event::Step(_) | Event::Validated { .. } | Event::Validating { .. } | Event::Metrics { .. }
                if has_news =>
            {
                self.draw(said.at_ms);
            }
            Event::Step(_)
            | Event::Validated { .. }
            | Event::Validating { .. }
            | Event::Metrics { .. }
            | Event::Ready { .. }
            | Event::Notice(_)
            | Event::Listening(_)
            | Event::Saved { .. }
            | Event::Finished { .. } => {}
        }
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::CheckpointCommitted { step, .. } => {
                self.figures.saved = Some(*step);
                if self.lines.is_some() {
                    self.say(&format!("checkpoint at step {step} saved"));
                }
            }
            Fact::CheckpointRefused { step, reason, .. } => {
                self.say(&format!(
                    "{}: the checkpoint at step {step} cannot be used: {reason}",
                    self.warning()
                ));
            }
            Fact::AttemptEnded { ended: AttemptEnd::Lost(left @ Failure::HostLeft { .. }), .. } => {
                self.say(&format!("{}: {left}; the other hosts continue", self.warning()));
            }
            Fact::AttemptStarted { .. }
            | Fact::AttemptEnded { .. }
            | Fact::TrialEnded { .. }
            | Fact::Resumed => {}
        }
    }

    fn status(&self, status: &ControllerStatus) {
        match status {
            ControllerStatus::Launching { attempt, ranks, from } => {
                let again = if attempt.0 > 1 { format!(" (attempt {attempt})") } else { String::new() };
                let from = from.map_or(String::new(), |step| format!(" from step {step}"));
                self.say(&format!("starting {}{from}{again}", counted(u64::from(*ranks), "rank")));
            }
            ControllerStatus::Attached { .. } => {}
            ControllerStatus::HostsUnreachable { hosts, unreachable } => {
                for host in unreachable {
                    self.say(&format!("{}: {host}", self.warning()));
                }
                self.say(&format!("continuing {}", counted(u64::from(*hosts), "host")));
            }
            ControllerStatus::HostsExcluded { hosts } => {
                let now_ms = self.out.style().now_ms;
                for ExcludedHost { host, cause, until_ms, detail } in hosts {
                    if *cause == StrikeCause::Left {
                        let time = remaining(*until_ms, now_ms);
                        self.say(&format!("{host} is left out for {time}, as it may be shutting down"));
                        continue;
                    }
                    self.say(&format!(
                        "{}: {host} is left out for {}: {}: {detail}; `dtrain hosts forgive {host}` uses it again",
                        self.warning(),
                        remaining(*until_ms, now_ms),
                        cause.words()
                    ));
                }
            }
            ControllerStatus::Unreachable { reason, is_at_work, .. } => {
                let ranks = if *is_at_work { "the ranks keep training" } else { "no host says that its ranks train" };
                self.say(&format!("{}: {reason}; {ranks}", self.warning()));
            }
            ControllerStatus::HostLost { reason, seconds: passed, .. } => self.say(&format!(
                "{}: given up after {}: {reason}; continuing without it",
                self.warning(),
                seconds(*passed)
            )),
            ControllerStatus::Fenced { host, attempt } => {
                self.say(&format!("{host} is back; attempt {attempt}, which still ran there, was ended"));
            }
            ControllerStatus::Unfenced { host } => self.say(&format!(
                "{}: {host} does not answer, and may still run an attempt that was given up; once it is back, `dtrain fence {} {host}` \
                 ends that",
                self.warning(),
                self.trial
            )),
            ControllerStatus::Growing { added, hosts, growth } => self.say(&format!(
                "{} can take part: going on with {} after a checkpoint; {}",
                added.join(", "),
                counted(u64::from(hosts.1), "host"),
                growth_reason(*hosts, growth)
            )),
            ControllerStatus::NotGrowing { idle, hosts, growth } => self.say(&format!(
                "{} can take part, and {} idle; {}",
                idle.join(", "),
                if idle.len() == 1 { "stays" } else { "stay" },
                growth_reason(*hosts, growth)
            )),
            ControllerStatus::Draining { hosts } => {
                let is = if hosts.len() == 1 { "is" } else { "are" };
                self.say(&format!("{} {is} drained: going on without after a checkpoint", hosts.join(", ")));
            }
            ControllerStatus::AllDrained { hosts } => self.say(&format!(
                "{}: all hosts of the run are drained ({}), and it goes on there until another one can take part",
                self.warning(),
                hosts.join(", ")
            )),
            ControllerStatus::Interrupted => self.say("interrupted; ending what is under way"),
            ControllerStatus::SpoolUnavailable { attempt, reason, seconds: left } => self.say(&format!(
                "{}: the record of attempt {attempt} cannot be read now: {reason}; trying for {}",
                self.warning(),
                seconds(*left)
            )),
            ControllerStatus::SpoolLost { attempt, reason } => self.say(&format!(
                "{}: the rest of the record of attempt {attempt} is lost: {reason}",
                self.warning()
            )),
            ControllerStatus::Backoff { seconds: pause, failures: (failures, most), blame, failure, .. } => {
                let budget = match blame {
                    Blame::Machines => {
                        format!("failure {failures} of machines; given up after a day without progress")
                    }
                    Blame::Training => format!("failure {failures} of {most} of the training"),
                };
                self.say(&format!(
                    "{}: {failure}; retrying in {} ({budget})",
                    self.warning(),
                    seconds(*pause)
                ));
            }
            ControllerStatus::Stopping { killed_after_seconds: None, .. } => {
                self.say("stopping after this step and a checkpoint; press Ctrl-C again to stop now");
            }
            ControllerStatus::Stopping { killed_after_seconds: Some(limit), .. } => self.say(&format!(
                "stopping: waiting up to {limit:.0} s for the ranks to stop after SIGTERM, then they are killed; \
                 press Ctrl-C again to kill them now"
            )),
            ControllerStatus::TargetReached { killed_after_seconds: limit, .. } => self.say(&format!(
                "target reached: the ranks have {limit:.0} s to stop, then they are killed"
            )),
            ControllerStatus::Killing { .. } => self.say("stopping now"),
            ControllerStatus::CommitFailed { step, .. } if self.unsaved.is_some_and(|(of, _)| of == *step) => {}
            ControllerStatus::CommitFailed { step, reason } => {
                self.say(&format!(
                    "{}: the checkpoint at step {step} was not kept: {reason}",
                    self.warning()
                ));
            }
            ControllerStatus::LossSpike { step, loss: now, median: usual } => {
                let (now, usual) = (loss(*now), loss(*usual));
                self.say(&format!("{}: loss spike at step {step}: from {usual} to {now}", self.warning()));
            }
            ControllerStatus::Straggler { rank, seconds: own, median: usual } => self.say(&format!(
                "{}: rank {rank} is a straggler: {} of compute per step, {} on ranks with the same work",
                self.warning(),
                seconds(*own),
                seconds(*usual)
            )),
            ControllerStatus::SpoolRecordSkipped { offset: at, reason } => self.say(&format!(
                "{}: a record of the ranks at byte {at} cannot be read and is skipped: {reason}",
                self.warning()
            )),
            ControllerStatus::SpoolDamaged { spool, offset, reason } => self.say(&format!(
                "{}: {} is damaged at byte {offset} ({reason}); the rest is not read",
                self.warning(),
                spool.display()
            )),
        }
    }

    fn warning(&self) -> String {
        self.out.paint.yellow("warning")
    }

    fn draw(&mut self, at_ms: u64) {
        let Some(bar) = &self.bar else { return self.draw_line(at_ms) };
        let figures = self.figures.results_and_speed(&self.expected);
        bar.set(&self.figures.advance(&self.expected), &figures);
    }

    fn draw_line(&mut self, at_ms: u64) {
        let (first, last) = self.steps_shown.unwrap_or((at_ms, 0));
        let pause = if at_ms.saturating_sub(first) < CHATTY { LINE_EVERY } else { LINE_EVERY_LATER };
        // A clock that was set back does not suppress lines.
        let is_due = at_ms.checked_sub(last).is_none_or(|passed| passed >= pause);
        if is_due && self.shows_steps && !self.out.json {
            self.steps_shown = Some((first, at_ms));
            self.say(&self.figures.line(&self.expected));
        }
    }
}

impl Observer for ProgressDisplay {
    fn observe(&mut self, seen: &TrialEvent) {
        if self.out.json && !self.is_unheard {
            let named = seen.attempt().filter(|attempt| *attempt != AttemptId(0));
            self.attempt = named.or(self.attempt);
            let attempt = if seen.is_of_the_same_attempt() { self.attempt } else { named };
            let line = SeenLine { trial: &self.trial, attempt, seen };
            self.is_unheard = self.out.json_line("trial_event", &line).is_err();
        }
        match seen {
            TrialEvent::Record(fact) => self.fact(fact),
            TrialEvent::Event(said) => self.event(said),
            TrialEvent::Status(status) => self.status(status),
        }
    }
}

/// One line of `--json`: `{"format": "dtrain.trial_event/2", "trial": …, "attempt": …, "event": …}`, or with
/// `record` or `status` in place of `event`.
#[derive(serde::Serialize)]
struct SeenLine<'a> {
    trial: &'a TrialId,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<AttemptId>,
    #[serde(flatten)]
    seen: &'a TrialEvent,
}

/// Says what a change of the number of hosts brings.
fn growth_reason((now, then): (u32, u32), growth: &Growth) -> String {
    let (before, after) = growth.step_seconds;
    let gained = match growth.gained_seconds() {
        0.0 => "nothing".to_owned(),
        gained if gained.is_finite() => seconds(gained),
        _ => "time until the training is stopped".to_owned(),
    };
    format!(
        "a step takes {} on {}, {} on {now} (predicted), which gains {gained}; a restart takes about {}",
        seconds(after),
        counted(u64::from(then), "host"),
        seconds(before),
        seconds(growth.restart_seconds)
    )
}
