//! Progress of a training run and its ETA (estimated time of arrival): the remaining time by steps or a time
//! limit.

use super::figures::{Figures, PlannedTraining};
use super::number::seconds;

impl Figures {
    /// Returns progress and remaining time: by steps at the current speed or by the time limit, whichever is
    /// further along.
    pub(crate) fn advance(&self, expected: &PlannedTraining) -> TrainingProgress {
        TrainingProgress { validating: self.validating, ..self.advance_of_steps(expected) }
    }

    fn advance_of_steps(&self, expected: &PlannedTraining) -> TrainingProgress {
        #![expect(clippy::cast_precision_loss, reason = "an estimate for display")]
        let Some(newest) = &self.step else {
            let step = self.metrics_step;
            let of = expected.steps_at(step);
            let share = of.map(|of| step as f64 / of as f64);
            return TrainingProgress { step, of, share, ..TrainingProgress::default() };
        };
        let step = newest.step.0.max(self.metrics_step);
        let by_steps = expected.steps_at(step).map(|of| {
            let share = step as f64 / of as f64;
            let eta_seconds = self.pace.map(|(seconds, _)| (of - step) as f64 * seconds);
            TrainingProgress {
                step,
                of: Some(of),
                share: Some(share),
                eta_seconds,
                ..TrainingProgress::default()
            }
        });
        let by_time = expected.limit.zip(newest.elapsed).map(|(limit, elapsed)| {
            let passed = (elapsed * limit + newest.times.step).min(limit);
            TrainingProgress {
                step,
                share: Some(passed / limit),
                eta_seconds: Some(limit - passed),
                ..TrainingProgress::default()
            }
        });
        match (by_steps, by_time) {
            (Some(steps), Some(time)) if steps.share >= time.share => steps,
            (_, Some(time)) => time,
            (Some(steps), None) => steps,
            (None, None) => TrainingProgress { step, ..TrainingProgress::default() },
        }
    }
}

/// Progress of a training run at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainingProgress {
    /// Number of completed steps.
    pub(crate) step: u64,
    /// Total number of steps; `None` if unknown or if a time limit ends the training.
    pub(crate) of: Option<u64>,
    /// Completed share of the training, 0 to 1; `None` if neither steps nor time end it.
    pub(crate) share: Option<f64>,
    /// Estimated remaining time of the training in seconds; `None` if unknown.
    pub(crate) eta_seconds: Option<f64>,
    /// Singular name of the counted unit; `None` for steps.
    pub(crate) noun: Option<&'static str>,
    /// Number of samples in the current validation: those done, and all; `None` outside a validation.
    pub(crate) validating: Option<(u64, u64)>,
}

impl TrainingProgress {
    /// Formats `step 50/100`, or `step 50` without a total; during validation `step 50, validating 40%`.
    pub(crate) fn steps(&self) -> String {
        let noun = self.noun.unwrap_or("step");
        let validating = self.validating.map_or(String::new(), |(done, of)| {
            format!(", validating {}%", done.saturating_mul(100) / of.max(1))
        });
        match self.of {
            Some(of) => format!("{noun} {}/{of}{validating}", self.step),
            None => format!("{noun} {}{validating}", self.step),
        }
    }

    /// Returns the completed share of the training in whole percent; `None` if unknown.
    pub(crate) fn percent(&self) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 100")]
        self.share.map(|share| (share * 100.0 + 1e-9) as u32)
    }

    /// Formats the remaining time: `4 min 52 s left`; `None` if unknown or at the end.
    pub(crate) fn eta_text(&self) -> Option<String> {
        self.eta_seconds.filter(|left| *left > 0.0).map(|left| format!("{} left", seconds(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{expected, said, step};
    use super::*;
    use dtrain_protocol::{Event, StepFigures, StepId};

    #[test]
    fn more_steps_than_expected_are_told_without_them() {
        let mut figures = Figures::default();
        figures.apply(&said(0, step(100, 0.1)));
        assert_eq!(figures.advance(&expected()).of, Some(100));
        figures.apply(&said(0, step(101, 0.1)));
        let advance = figures.advance(&expected());
        assert_eq!((advance.step, advance.of, advance.share), (101, None, None));
        let mut metrics = Figures::default();
        let figure = dtrain_protocol::NamedFigure { name: "f1".into(), value: 0.5 };
        metrics.apply(&said(0, Event::Metrics { step: StepId(250), figures: vec![figure] }));
        assert_eq!(metrics.advance(&expected()).of, None);
    }

    #[test]
    fn a_time_limit_tells_what_is_left_and_no_number_of_steps() {
        let timed = |number, seconds, elapsed| match step(number, seconds) {
            Event::Step(figures) => Event::Step(StepFigures { elapsed: Some(elapsed), ..figures }),
            other => other,
        };
        let mut figures = Figures::default();
        figures.apply(&said(0, timed(14, 0.5, 0.4)));
        let limited = PlannedTraining { steps: 0, limit: Some(10.0), ..expected() };
        let line = figures.line(&limited);
        assert!(line.starts_with("step 14 (45%)   loss 2.5000"), "{line}");
        assert!(line.ends_with("   5.5 s left"), "{line}");
        // The limit that is further along ends training.
        let both = PlannedTraining { steps: 100, ..limited.clone() };
        assert_eq!(figures.advance(&both), figures.advance(&limited));
        let few = PlannedTraining { steps: 20, ..limited };
        let line = figures.line(&few);
        assert!(line.starts_with("step 14/20   loss") && line.ends_with("   3.0 s left"), "{line}");
        figures.apply(&said(0, timed(15, 0.5, 1.0)));
        assert_eq!(figures.advance(&both).percent(), Some(100));
        assert_eq!(figures.advance(&both).eta_text(), None);
    }

    #[test]
    fn a_validation_says_how_far_it_is() {
        let mut figures = Figures::default();
        figures.apply(&said(0, step(50, 0.1)));
        assert!(figures.apply(&said(0, Event::Validating { step: StepId(50), done: 12, of: 40 })));
        assert_eq!(figures.advance(&expected()).steps(), "step 50/100, validating 30%");
        let validated = Event::Validated { step: StepId(50), loss: 2.5, accuracy: None, seconds: Some(2.0) };
        figures.apply(&said(0, validated));
        assert_eq!(figures.advance(&expected()).steps(), "step 50/100");
        figures.apply(&said(0, Event::Validating { step: StepId(50), done: 12, of: 40 }));
        figures.apply(&said(0, step(51, 0.1)));
        assert_eq!(figures.advance(&expected()).steps(), "step 51/100", "a validation that was given up");
    }
}
