//! What was seen of a trial so far, as figures. It knows no terminal.

use super::number::{count, loss, seconds};
use dtrain_protocol::{Event, Rank, Stamped, StepFigures, StepId};

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
    pub(crate) fn left(&self, expected: &Expected) -> Option<String> {
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
