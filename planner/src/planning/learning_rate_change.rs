//! Change of the learning rate when a training is continued with other settings.

use crate::planning::lower::training;
use crate::planning::plan::Plan;
use dtrain_protocol::Rank;
use dtrain_protocol::learning_rate_warmup_and_decay::{LearningRateSchedule, SchedulePosition};
use dtrain_recipes::Model;
use std::fmt;

/// Relative difference below which two learning rates count as equal.
const SAME: f64 = 0.01;

/// The learning rate of a plan as a function of the step.
#[derive(Clone, Copy, Debug)]
struct LearningRateCurve {
    curve: LearningRateSchedule,
    steps: Option<u64>,
    has_time_limit: bool,
}

/// A jump of the learning rate at the point where a training is continued.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRateChange {
    /// Learning rate of the last step before the jump.
    pub before: f64,
    /// Learning rate of the first step after the jump.
    pub after: f64,
    /// Number of the first step after the jump.
    pub step: u64,
    /// Changed settings that cause the jump, each as a clause.
    pub reasons: Vec<String>,
}

impl LearningRateCurve {
    /// Returns the learning-rate curve of a plan; `None` for a foreign command, which has its own.
    fn of(plan: &Plan) -> Option<Self> {
        if matches!(plan.recipe.model, Model::Command(_)) {
            return None;
        }
        let best = plan.best();
        let curve = LearningRateSchedule::of(&training(plan, best, Rank(0)));
        let has_time_limit = plan.recipe.objective.stop.time.is_some();
        Some(Self { curve, steps: best.run_length.steps, has_time_limit })
    }

    /// Returns the learning rate of the step after `done` steps. A time limit restarts with the trial that
    /// continues.
    fn at(&self, done: u64) -> f64 {
        let elapsed = self.has_time_limit.then_some(0.0);
        self.curve.at(SchedulePosition { step: done, steps: self.steps, elapsed })
    }

    fn change(&self, now: &Self, done: u64, applied: Option<f64>) -> Option<LearningRateChange> {
        let before = applied.unwrap_or_else(|| self.at(done.saturating_sub(1)));
        let expected = if self.has_time_limit { before } else { self.at(done) };
        let after = now.at(done);
        let is_same = (after - expected).abs() <= SAME * expected.abs().max(after.abs());
        (!is_same).then(|| LearningRateChange { before, after, step: done + 1, reasons: self.reasons(now) })
    }

    fn reasons(&self, now: &Self) -> Vec<String> {
        let (old, new) = (&self.curve, &now.curve);
        let mut reasons = Vec::new();
        if now.has_time_limit {
            reasons.push("the time limit of the new trial begins anew, and the schedule with it".to_owned());
        } else if old.total != new.total || self.has_time_limit {
            reasons.push(format!("the schedule now ends at step {}", new.total));
        }
        if old.peak != new.peak {
            reasons.push(format!("the peak is now {:.2e}", new.peak));
        }
        if old.warmup != new.warmup {
            reasons.push(format!("the warm-up now takes {} steps", new.warmup));
        }
        if old.schedule != new.schedule || old.final_fraction != new.final_fraction {
            reasons.push("the schedule has another shape".to_owned());
        }
        reasons
    }
}

/// Returns the jump of the learning rate when the training of plan `then` is continued with plan `now` after
/// `done` steps.
///
/// `applied` is the rate of the last step, where it is known. `None` if the rate continues as before.
pub fn learning_rate_change(
    then: &Plan,
    now: &Plan,
    done: u64,
    applied: Option<f64>,
) -> Option<LearningRateChange> {
    LearningRateCurve::of(then)?.change(&LearningRateCurve::of(now)?, done, applied)
}

/// Formats the change like
/// `learning rate rises from 1.00e-4 to 7.06e-4 at step 21, because the schedule now ends at step 40`.
impl fmt::Display for LearningRateChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after, step, reasons } = self;
        let verb = if after > before { "rises" } else { "falls" };
        write!(f, "learning rate {verb} from {before:.2e} to {after:.2e} at step {step}")?;
        match reasons.as_slice() {
            [] => Ok(()),
            reasons => write!(f, ", because {}", reasons.join(", and ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::Schedule;

    const TWENTY: LearningRateCurve = LearningRateCurve {
        curve: LearningRateSchedule {
            schedule: Schedule::Cosine,
            peak: 1e-3,
            final_fraction: 0.1,
            warmup: 2,
            total: 20,
        },
        steps: Some(20),
        has_time_limit: false,
    };

    fn to(curve: LearningRateSchedule) -> LearningRateCurve {
        LearningRateCurve { curve, steps: Some(curve.total), ..TWENTY }
    }

    #[test]
    fn more_steps_stretch_the_schedule_and_the_rate_rises() {
        let forty = to(LearningRateSchedule { total: 40, ..TWENTY.curve });
        let change = TWENTY.change(&forty, 20, None).expect("it rises");
        assert!(change.before < 1.1e-4 && change.after > 5e-4, "{change:?}");
        let words = change.to_string();
        assert!(words.starts_with("learning rate rises from 1.00e-4 to "), "{words}");
        assert!(words.ends_with(" at step 21, because the schedule now ends at step 40"), "{words}");
    }

    #[test]
    fn every_setting_that_moves_the_rate_is_told() {
        let words =
            |curve: LearningRateSchedule, done| TWENTY.change(&to(curve), done, None).map(|c| c.to_string());
        let fewer = words(LearningRateSchedule { total: 12, ..TWENTY.curve }, 10).expect("it falls");
        assert!(fewer.contains("falls") && fewer.contains("ends at step 12"), "{fewer}");
        let peak = words(LearningRateSchedule { peak: 2e-3, ..TWENTY.curve }, 10).expect("it rises");
        assert!(peak.contains("rises") && peak.contains("the peak is now 2.00e-3"), "{peak}");
        let warm = words(LearningRateSchedule { warmup: 15, ..TWENTY.curve }, 10).expect("it changes");
        assert!(warm.contains("the warm-up now takes 15 steps"), "{warm}");
        let shape = words(LearningRateSchedule { schedule: Schedule::Constant, ..TWENTY.curve }, 10)
            .expect("it rises");
        assert!(shape.contains("another shape"), "{shape}");
    }

    #[test]
    fn a_rate_that_goes_on_as_it_would_have_is_not_told() {
        for done in 1..20 {
            assert_eq!(TWENTY.change(&TWENTY, done, None), None);
        }
        // More steps of a constant rate.
        let constant = to(LearningRateSchedule { schedule: Schedule::Constant, ..TWENTY.curve });
        let longer = to(LearningRateSchedule { total: 40, ..constant.curve });
        assert_eq!(constant.change(&longer, 20, None), None);
    }

    #[test]
    fn a_time_limit_begins_anew() {
        let timed = LearningRateCurve { steps: None, has_time_limit: true, ..TWENTY };
        let change = timed.change(&timed, 50, Some(1e-4)).expect("it rises");
        assert_eq!((change.before, change.after), (1e-4, 1e-3));
        assert!(change.to_string().contains("time limit"), "{change}");
    }
}
