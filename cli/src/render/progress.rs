//! What a person, or a program, sees of a trial while it trains.
//!
//! [`Figures`] gathers what was seen and knows no terminal; [`Progress`] draws it. It decides nothing.

use super::number::{count, counted, loss, seconds, whole};
use crate::output::Output;
use dtrain_protocol::{Event, Failure, Rank, Stamped, StepFigures, StepId};
use dtrain_runner::{Fact, Observer, Seen, Status};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// What the plan promised.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    /// Optimizer steps of the whole training; 0 when nobody said.
    pub(crate) steps: u64,
    /// Seconds of one step.
    pub(crate) step_seconds: Option<f64>,
    /// What is counted in a step: `tokens` for a model with sequences, otherwise `samples`.
    pub(crate) unit: &'static str,
}

/// What was seen so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// The newest step.
    pub(crate) step: Option<StepFigures>,
    /// The newest validation: step, loss, accuracy.
    pub(crate) valid: Option<(StepId, f64, Option<f64>)>,
    /// The best validation loss and its step.
    pub(crate) best: Option<(StepId, f64)>,
    /// The newest durable checkpoint.
    pub(crate) saved: Option<StepId>,
    /// Seconds of a step and tokens per second, each a moving average of about twenty steps.
    pub(crate) pace: Option<(f64, f64)>,
    /// Largest memory of any rank in bytes.
    pub(crate) memory_bytes: u64,
}

impl Figures {
    /// Takes note of an event; the steps of rank 0 speak for all.
    pub(crate) fn take(&mut self, said: &Stamped) {
        match &said.event {
            Event::Step(figures) => {
                self.memory_bytes = self.memory_bytes.max(figures.memory_bytes);
                if said.rank == Rank(0) {
                    self.pace(figures);
                    self.step = Some(figures.clone());
                }
            }
            Event::Validated { step, loss, accuracy } if said.rank == Rank(0) => {
                self.valid = Some((*step, *loss, *accuracy));
                if self.best.is_none_or(|(_, best)| *loss < best) {
                    self.best = Some((*step, *loss));
                }
            }
            Event::Validated { .. }
            | Event::Listening(_)
            | Event::Ready { .. }
            | Event::Saved { .. }
            | Event::SaveFailed { .. }
            | Event::Finished { .. }
            | Event::Failed(_) => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an average for display")]
    fn pace(&mut self, figures: &StepFigures) {
        if figures.times.step == 0.0 {
            return; // the first word of a foreign program, which tells no times
        }
        let step = figures.times.step.max(1e-9);
        let rate = figures.tokens as f64 / step;
        self.pace = Some(match self.pace {
            // The first step pays for caches and page faults.
            Some(_) if self.step.as_ref().is_some_and(|last| figures.step.0 <= last.step.0) => (step, rate),
            Some((old_step, old_rate)) => {
                (old_step + (step - old_step) * 0.1, old_rate + (rate - old_rate) * 0.1)
            }
            None => (step, rate),
        });
    }

    /// Seconds left at the present pace.
    #[expect(clippy::cast_precision_loss, reason = "an estimate for display")]
    pub(crate) fn seconds_left(&self, expected: &Expected) -> Option<f64> {
        let done = self.step.as_ref()?.step.0;
        let left = expected.steps.checked_sub(done).filter(|_| expected.steps > 0)?;
        Some(left as f64 * self.pace?.0)
    }

    /// `loss 2.3140   valid 2.4021   12.3 k tokens/s`, as far as known.
    pub(crate) fn results(&self, expected: &Expected) -> String {
        let mut parts = Vec::new();
        parts.extend(self.step.as_ref().map(|step| format!("loss {}", loss(step.loss))));
        parts.extend(self.valid.map(|(_, value, _)| format!("valid {}", loss(value))));
        parts.extend(self.pace.map(|(_, rate)| format!("{} {}/s", count(rate), expected.unit)));
        parts.join("   ")
    }

    /// `81.0 ms/step, predicted 79.0 ms`, as far as known.
    pub(crate) fn speed(&self, expected: &Expected) -> String {
        match (self.pace, expected.step_seconds) {
            (Some((step, _)), Some(predicted)) => {
                format!("{}/step, predicted {}", seconds(step), seconds(predicted))
            }
            (Some((step, _)), None) => format!("{}/step", seconds(step)),
            (None, _) => String::new(),
        }
    }

    /// `1 min 52 s left`, as far as known.
    fn left(&self, expected: &Expected) -> Option<String> {
        self.seconds_left(expected).map(|left| format!("{} left", seconds(left)))
    }

    /// One line for a log.
    pub(crate) fn line(&self, expected: &Expected) -> String {
        let done = self.step.as_ref().map_or(0, |step| step.step.0);
        let progress = match expected.steps {
            0 => format!("step {done}"),
            steps => format!("step {done}/{steps}"),
        };
        let parts =
            [Some(progress), Some(self.results(expected)), Some(self.speed(expected)), self.left(expected)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("   ")
    }
}

/// Shows a trial.
pub(crate) struct Progress {
    out: Output,
    expected: Expected,
    /// What was seen.
    pub(crate) figures: Figures,
    /// On a terminal.
    bar: Option<ProgressBar>,
    /// When the last line was written, where there is no terminal.
    last_line: Option<Instant>,
    begun: Instant,
    /// Whoever read our JSON is gone.
    pub(crate) is_unheard: bool,
}

/// Between two lines of a log, while somebody may be looking …
const LINE_EVERY: Duration = Duration::from_secs(2);

/// … which is for so long …
const CHATTY: Duration = Duration::from_secs(120);

/// … and after that.
const LINE_EVERY_LATER: Duration = Duration::from_secs(20);

impl Progress {
    pub(crate) fn new(out: Output, expected: Expected) -> Self {
        let bar = out.draws().then(|| bar(expected.steps));
        Self {
            out,
            expected,
            figures: Figures::default(),
            bar,
            last_line: None,
            begun: Instant::now(),
            is_unheard: false,
        }
    }

    /// Says something without tearing the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.out.say(text)),
            None => self.out.say(text),
        }
    }

    /// Takes the bar away; what is said next stands in its place.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn event(&mut self, said: &Stamped) {
        self.figures.take(said);
        match &said.event {
            Event::Ready { parameters, device, train_samples, valid_samples, step, notice, .. }
                if said.rank == Rank(0) =>
            {
                let from = if step.0 == 0 { String::new() } else { format!(", from step {step}") };
                self.say(&format!(
                    "training {} parameters on {device}; {} samples, {} held out for validation{from}",
                    whole(*parameters),
                    whole(*train_samples),
                    whole(*valid_samples)
                ));
                if let Some(notice) = notice {
                    self.say(&format!("{}: {notice}", self.warning()));
                }
            }
            Event::SaveFailed { step, reason, retries } => {
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
            Event::Failed(failure) => {
                self.say(&format!("{}: rank {}: {failure}", self.warning(), said.rank));
            }
            Event::Step(_) | Event::Validated { .. } if said.rank == Rank(0) => self.draw(),
            Event::Step(_)
            | Event::Validated { .. }
            | Event::Ready { .. }
            | Event::Listening(_)
            | Event::Saved { .. }
            | Event::Finished { .. } => {}
        }
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::CheckpointDurable { step, .. } => self.figures.saved = Some(*step),
            Fact::CheckpointRefused { step, reason, .. } => {
                self.say(&format!(
                    "{}: the checkpoint at step {step} cannot be used: {reason}",
                    self.warning()
                ));
            }
            Fact::AttemptStarted { .. }
            | Fact::AttemptEnded { .. }
            | Fact::TrialEnded { .. }
            | Fact::Resumed => {}
        }
    }

    fn status(&self, status: &Status) {
        match status {
            Status::Launching { attempt, ranks, from } => {
                let again = if attempt.0 > 1 { format!(" (attempt {attempt})") } else { String::new() };
                let from = from.map_or(String::new(), |step| format!(" from step {step}"));
                self.say(&format!("starting {}{from}{again}", counted(u64::from(*ranks), "rank")));
            }
            Status::Attached { .. } => {}
            Status::HostsAway { hosts, away } => {
                for host in away {
                    self.say(&format!("{}: {host}", self.warning()));
                }
                self.say(&format!("continuing {}", counted(u64::from(*hosts), "host")));
            }
            Status::Away { reason, .. } => {
                self.say(&format!("{}: {reason}; the ranks keep training", self.warning()));
            }
            Status::Waiting { seconds: pause, failures: (failures, most), failure, .. } => {
                self.say(&format!(
                    "{}: {failure}; retrying in {} (failure {failures} of {most})",
                    self.warning(),
                    seconds(*pause)
                ));
            }
            Status::Stopping { .. } => {
                self.say("stopping after this step and a checkpoint; press Ctrl-C again to stop now");
            }
            Status::Killing { .. } => self.say("stopping now"),
            Status::CommitFailed { step, reason } => {
                self.say(&format!(
                    "{}: the checkpoint at step {step} was not kept: {reason}",
                    self.warning()
                ));
            }
            Status::LossLeapt { step, loss: now, usual } => {
                let (now, usual) = (loss(*now), loss(*usual));
                self.say(&format!("{}: loss spike at step {step}: from {usual} to {now}", self.warning()));
            }
            Status::Slow { rank, seconds: own, usual } => self.say(&format!(
                "{}: rank {rank} is a straggler: {} of compute per step, {} on ranks with the same work",
                self.warning(),
                seconds(*own),
                seconds(*usual)
            )),
            Status::RecordSkipped { at, reason } => self.say(&format!(
                "{}: a record of the ranks at byte {at} cannot be read and is skipped: {reason}",
                self.warning()
            )),
            Status::SpoolDamaged { spool, offset, reason } => self.say(&format!(
                "{}: {} is damaged at byte {offset} ({reason}); the rest is not read",
                self.warning(),
                spool.display()
            )),
        }
    }

    fn warning(&self) -> String {
        self.out.paint.yellow("warning")
    }

    fn draw(&mut self) {
        let Some(bar) = &self.bar else { return self.draw_line() };
        let done = self.figures.step.as_ref().map_or(0, |step| step.step.0);
        bar.set_position(done);
        bar.set_prefix(self.figures.left(&self.expected).unwrap_or_default());
        bar.set_message(format!(
            "{}   {}",
            self.figures.results(&self.expected),
            self.figures.speed(&self.expected)
        ));
    }

    fn draw_line(&mut self) {
        let pause = if self.begun.elapsed() < CHATTY { LINE_EVERY } else { LINE_EVERY_LATER };
        let is_due = self.last_line.is_none_or(|last| last.elapsed() >= pause);
        if is_due && !self.out.json {
            self.last_line = Some(Instant::now());
            self.out.say(&self.figures.line(&self.expected));
        }
    }
}

impl Observer for Progress {
    fn observe(&mut self, seen: &Seen) {
        if self.out.json && !self.is_unheard {
            self.is_unheard = self.out.json_line("seen", &SeenLine { seen }).is_err();
        }
        match seen {
            Seen::Fact(fact) => self.fact(fact),
            Seen::Event(said) => self.event(said),
            Seen::Status(status) => self.status(status),
        }
    }
}

/// One line of `--json`: `{"format": "dtrain.seen/1", "seen": {"event": …}}`.
#[derive(serde::Serialize)]
struct SeenLine<'a> {
    seen: &'a Seen,
}

fn bar(steps: u64) -> ProgressBar {
    let template = "{bar:30.cyan/dim} {percent:>3}%   step {pos}/{len}   {prefix}\n{wide_msg}";
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━━╌");
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(8));
    bar.with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{AttemptId, PhaseTimes};

    fn expected() -> Expected {
        Expected { steps: 100, step_seconds: Some(0.1), unit: "tokens" }
    }

    fn said(rank: u32, event: Event) -> Stamped {
        Stamped { attempt: AttemptId(1), rank: Rank(rank), sequence: 0, at_ms: 0, event }
    }

    fn step(number: u64, seconds: f64) -> Event {
        Event::Step(StepFigures {
            step: StepId(number),
            loss: 2.5,
            gradient_norm: Some(1.0),
            learning_rate: 1e-3,
            noise: None,
            tokens: 1000,
            times: PhaseTimes { step: seconds, ..PhaseTimes::default() },
            memory_bytes: 1 << 20,
            sent_bytes: 0,
            held: dtrain_protocol::HeldBytes::default(),
        })
    }

    #[test]
    fn a_line_tells_step_loss_speed_prediction_and_time_left() {
        let mut figures = Figures::default();
        figures.take(&said(0, step(50, 0.11)));
        figures.take(&said(0, Event::Validated { step: StepId(50), loss: 2.75, accuracy: Some(0.3) }));
        assert_eq!(
            figures.line(&expected()),
            "step 50/100   loss 2.5000   valid 2.7500   9.09 k tokens/s   110.0 ms/step, predicted 100.0 ms   5.5 s left"
        );
    }

    #[test]
    fn other_ranks_count_for_memory_only() {
        let mut figures = Figures::default();
        figures.take(&said(1, step(50, 0.11)));
        assert_eq!((figures.step, figures.memory_bytes), (None, 1 << 20));
    }

    #[test]
    fn the_best_validation_is_remembered() {
        let mut figures = Figures::default();
        for (number, loss) in [(10, 3.0), (20, 2.0), (30, 2.5)] {
            figures.take(&said(0, Event::Validated { step: StepId(number), loss, accuracy: None }));
        }
        assert_eq!(figures.best, Some((StepId(20), 2.0)));
        assert_eq!(figures.valid, Some((StepId(30), 2.5, None)));
    }
}
