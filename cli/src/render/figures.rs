//! Live figures of a trial, folded from its events; they do not depend on the terminal.

use super::number::{count, loss, plain, seconds};
use dtrain_protocol::{Event, StampedEvent, StepFigures, StepId};
use dtrain_runner::reporters::Reporters;
use std::collections::BTreeMap;

/// Figures that the plan predicts for a training run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlannedTraining {
    /// Total number of optimizer steps; 0 if unknown, or if only a time limit ends the training.
    pub(crate) steps: u64,
    /// Time limit of the training in seconds; `None` without one.
    pub(crate) limit: Option<f64>,
    /// Predicted seconds per step; `None` without a prediction.
    pub(crate) step_seconds: Option<f64>,
    /// Unit in which throughput is counted: `tokens` for a model with sequences, otherwise `samples`.
    pub(crate) unit: &'static str,
    /// Name of the objective's metric.
    pub(crate) metric: String,
}

impl PlannedTraining {
    /// Returns the total number of steps; `None` if unknown or if `step` exceeds it: a script may count
    /// something else.
    pub(crate) fn steps_at(&self, step: u64) -> Option<u64> {
        Some(self.steps).filter(|steps| *steps > 0 && *steps >= step)
    }
}

/// Maximum number of named metrics on one line.
const METRICS_SHOWN: usize = 3;

/// Latest figures of a trial, updated by its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Figures of the latest step; `None` before the first.
    pub(crate) step: Option<StepFigures>,
    /// Latest validation: step, loss, and accuracy if measured.
    pub(crate) valid: Option<(StepId, f64, Option<f64>)>,
    /// Number of samples in the current validation: those done, and all; `None` outside a validation.
    pub(super) validating: Option<(u64, u64)>,
    /// Step and value of the best validation loss.
    pub(crate) best: Option<(StepId, f64)>,
    /// Latest value of each metric that a program names itself.
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Latest step for which a program reported a named metric.
    pub(super) metrics_step: u64,
    /// Selects the ranks whose figures are shown.
    reporters: Reporters,
    /// Step of the latest durable checkpoint.
    pub(crate) saved: Option<StepId>,
    /// Seconds per step and tokens per second, as moving averages over about twenty steps.
    pub(crate) pace: Option<(f64, f64)>,
    /// Largest memory used by any rank so far, in bytes.
    pub(crate) memory_bytes: u64,
}

impl Figures {
    /// Updates the figures by an event. Returns `true` if a displayed figure changed; each figure comes from
    /// the lowest rank that reports it.
    pub(crate) fn apply(&mut self, said: &StampedEvent) -> bool {
        match &said.event {
            Event::Step(figures) => {
                self.memory_bytes = self.memory_bytes.max(figures.memory_bytes);
                let counts = self.reporters.counts_step(said.rank, figures);
                if counts {
                    self.validating = None;
                    self.pace(figures);
                    self.step = Some(figures.clone());
                }
                counts
            }
            Event::Validated { step, loss, accuracy, .. } => {
                let counts = self.reporters.counts("valid.loss", said.rank);
                if counts {
                    self.validating = None;
                    self.valid = Some((*step, *loss, *accuracy));
                }
                if counts && self.best.is_none_or(|(_, best)| *loss < best) {
                    self.best = Some((*step, *loss));
                }
                counts
            }
            Event::Validating { done, of, .. } => {
                self.validating = Some((*done, *of));
                true
            }
            Event::Metrics { step, .. } => {
                let results = self.reporters.results(said);
                if !results.is_empty() {
                    self.metrics_step = self.metrics_step.max(step.0);
                }
                let has_any = !results.is_empty();
                self.metrics.extend(results.into_iter().map(|(name, value)| (name.into_owned(), value)));
                has_any
            }
            Event::Notice(_)
            | Event::Listening(_)
            | Event::Ready { .. }
            | Event::Saved { .. }
            | Event::SaveFailed { .. }
            | Event::Finished { .. }
            | Event::Failed(_) => false,
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
            // The first step is slower because of caches and page faults.
            Some(_) if self.step.as_ref().is_some_and(|last| figures.step.0 <= last.step.0) => (step, rate),
            Some((old_step, old_rate)) => {
                (old_step + (step - old_step) * 0.1, old_rate + (rate - old_rate) * 0.1)
            }
            None => (step, rate),
        });
    }

    /// Formats loss, validation loss, named metrics and throughput, without unknown parts:
    /// `loss 2.3140   valid 2.4021   12.3 k tokens/s`.
    pub(crate) fn results(&self, expected: &PlannedTraining) -> String {
        let mut parts = Vec::new();
        parts.extend(self.step.as_ref().map(|step| format!("loss {}", loss(step.loss))));
        parts.extend(self.valid.map(|(_, value, _)| format!("valid {}", loss(value))));
        parts.extend(self.shown(expected).map(|(name, value)| format!("{name} {}", plain(*value))));
        // A program may report steps without tokens.
        let rate = self.pace.map(|(_, rate)| rate).filter(|rate| *rate > 0.0);
        parts.extend(rate.map(|rate| format!("{} {}/s", count(rate), expected.unit)));
        parts.join("   ")
    }

    /// Returns the named metrics to show: the objective first, and few enough for one line.
    fn shown<'a>(&'a self, expected: &PlannedTraining) -> impl Iterator<Item = (&'a String, &'a f64)> {
        let objective = expected.metric.clone();
        let first = self.metrics.get_key_value(&objective);
        let others = self.metrics.iter().filter(move |(name, _)| **name != objective);
        first.into_iter().chain(others).take(METRICS_SHOWN)
    }

    /// Formats measured and predicted step time: `81.0 ms/step, predicted 79.0 ms`. Leaves out unknown parts.
    pub(crate) fn speed(&self, expected: &PlannedTraining) -> String {
        match (self.pace, expected.step_seconds) {
            (Some((step, _)), Some(predicted)) => {
                format!("{}/step, predicted {}", seconds(step), seconds(predicted))
            }
            (Some((step, _)), None) => format!("{}/step", seconds(step)),
            (None, _) => String::new(),
        }
    }

    /// Formats progress, results, speed and remaining time as one log line.
    pub(crate) fn line(&self, expected: &PlannedTraining) -> String {
        let advance = self.advance(expected);
        let progress = match (advance.of, advance.percent()) {
            (None, Some(percent)) => format!("{} ({percent}%)", advance.steps()),
            (Some(_), _) | (None, None) => advance.steps(),
        };
        let parts = [Some(progress), Some(self.results_and_speed(expected)), advance.eta_text()];
        let told = parts.into_iter().flatten().filter(|part| !part.is_empty());
        told.collect::<Vec<_>>().join("   ")
    }

    /// Formats results and speed on one line. Leaves out unknown parts.
    pub(crate) fn results_and_speed(&self, expected: &PlannedTraining) -> String {
        let mut parts = vec![self.results(expected), self.speed(expected)];
        parts.retain(|part| !part.is_empty());
        parts.join("   ")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use dtrain_protocol::{AttemptId, PhaseTimes, Rank};

    pub(in crate::render) fn expected() -> PlannedTraining {
        PlannedTraining {
            steps: 100,
            limit: None,
            step_seconds: Some(0.1),
            unit: "tokens",
            metric: "valid.loss".into(),
        }
    }

    pub(in crate::render) fn said(rank: u32, event: Event) -> StampedEvent {
        StampedEvent { attempt: AttemptId(1), rank: Rank(rank), sequence: 0, at_ms: 0, event }
    }

    pub(in crate::render) fn step(number: u64, seconds: f64) -> Event {
        Event::Step(StepFigures {
            step: StepId(number),
            loss: 2.5,
            gradient_norm: Some(1.0),
            learning_rate: 1e-3,
            elapsed: None,
            noise: None,
            tokens: 1000,
            times: PhaseTimes { step: seconds, ..PhaseTimes::default() },
            memory_bytes: 1 << 20,
            sent_bytes: 0,
            held: dtrain_protocol::ResidentBytes::default(),
        })
    }

    #[test]
    fn a_line_tells_step_loss_speed_prediction_and_time_left() {
        let mut figures = Figures::default();
        figures.apply(&said(0, step(50, 0.11)));
        figures.apply(&said(
            0,
            Event::Validated { step: StepId(50), loss: 2.75, accuracy: Some(0.3), seconds: None },
        ));
        assert_eq!(
            figures.line(&expected()),
            "step 50/100   loss 2.5000   valid 2.7500   9.09 k tokens/s   110.0 ms/step, predicted 100.0 ms   5.5 s left"
        );
    }

    #[test]
    fn a_program_that_reports_no_tokens_has_no_speed_in_tokens() {
        let mut figures = Figures::default();
        let Event::Step(told) = step(50, 0.11) else { panic!("a step") };
        figures.apply(&said(0, Event::Step(StepFigures { tokens: 0, ..told })));
        let line = figures.line(&expected());
        assert!(line.contains("110.0 ms/step") && !line.contains("tokens/s"), "{line}");
    }

    #[test]
    fn other_ranks_count_for_memory_only() {
        let mut figures = Figures::default();
        figures.apply(&said(1, step(50, 0.11)));
        assert_eq!((figures.step, figures.memory_bytes), (None, 1 << 20));
    }

    #[test]
    fn figures_of_a_script_are_those_of_the_lowest_rank_that_reports_them() {
        let printed = |number| match step(number, 0.1) {
            Event::Step(figures) => Event::Step(StepFigures { memory_bytes: 0, ..figures }),
            other => other,
        };
        let mut figures = Figures::default();
        let mut shown = |rank, number| {
            let has_news = figures.apply(&said(rank, printed(number)));
            (has_news, figures.step.as_ref().map(|step| step.step.0))
        };
        assert_eq!(shown(3, 1), (true, Some(1)), "no other rank reports");
        assert_eq!(shown(1, 2), (true, Some(2)));
        assert_eq!(shown(3, 9), (false, Some(2)));
    }

    #[test]
    fn the_best_validation_is_remembered() {
        let mut figures = Figures::default();
        for (number, loss) in [(10, 3.0), (20, 2.0), (30, 2.5)] {
            figures.apply(&said(
                0,
                Event::Validated { step: StepId(number), loss, accuracy: None, seconds: None },
            ));
        }
        assert_eq!(figures.best, Some((StepId(20), 2.0)));
        assert_eq!(figures.valid, Some((StepId(30), 2.5, None)));
    }
}
