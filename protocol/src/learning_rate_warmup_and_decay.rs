//! The learning rate, its warm-up and decay, as a pure function of the position in a training, shared by all
//! ranks.

use crate::assignment::Hyperparameters;
use dtrain_recipes::Schedule;

/// The schedule of the learning rate over a training: a linear warm-up, then a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    /// Kind of decay after the warm-up.
    pub schedule: Schedule,
    /// Peak learning rate.
    pub peak: f64,
    /// Final learning rate as a fraction of the peak.
    pub final_fraction: f64,
    /// Length of the linear warm-up in steps.
    pub warmup: u64,
    /// Length of the schedule in steps; with a time limit, the steps that the planner expects within it.
    pub total: u64,
}

/// The position in a training when a step begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SchedulePosition {
    /// Number of steps completed.
    pub step: u64,
    /// Step after which training is complete; `None` if steps do not end it.
    pub steps: Option<u64>,
    /// Share of the time limit that has passed, 0 to 1; `None` without a time limit. The same on all ranks.
    pub elapsed: Option<f64>,
}

impl LearningRateSchedule {
    /// Returns the learning-rate schedule of a training with these hyperparameters.
    pub fn of(training: &Hyperparameters) -> Self {
        Self {
            schedule: training.schedule,
            peak: training.learning_rate,
            final_fraction: training.final_fraction,
            warmup: training.warmup_steps,
            total: training.schedule_steps,
        }
    }

    /// Returns the learning rate of the step that begins at `progress`.
    ///
    /// Rises from `peak / warmup` at step 0 to `peak` at step `warmup - 1`, then falls to `peak ·
    /// final_fraction` at the last step. With a time limit, warm-up and decay take the same shares of the
    /// limit as of `total`, at any speed; if steps advance further than time, they count instead. A warm-up
    /// ends after `warmup` steps or its share of the time, whichever comes first. After the limit, it is the
    /// final value.
    pub fn at(&self, progress: SchedulePosition) -> f64 {
        #![expect(clippy::cast_precision_loss, reason = "step counts are far below 2^52")]
        let Self { schedule, peak, final_fraction, warmup, total } = *self;
        let step = progress.step as f64;
        let (place, is_over) = match progress.elapsed {
            None => (step, false),
            Some(elapsed) => {
                let last = total.saturating_sub(1) as f64;
                let place = match progress.steps {
                    Some(steps) if (step + 1.0) / steps as f64 >= elapsed => {
                        step * (last / steps.saturating_sub(1).max(1) as f64)
                    }
                    Some(_) | None => elapsed * last,
                };
                (place, elapsed >= 1.0)
            }
        };
        let rise = step.max(place) + 1.0;
        if rise <= warmup as f64 && !is_over {
            return peak * rise / warmup as f64;
        }
        let span = total.saturating_sub(warmup + 1).max(1) as f64;
        let fallen = if is_over { 1.0 } else { ((place - warmup as f64).max(0.0) / span).min(1.0) };
        let shape = match schedule {
            Schedule::Constant => return peak,
            Schedule::Linear => 1.0 - fallen,
            Schedule::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * fallen).cos()),
        };
        peak * (final_fraction + (1.0 - final_fraction) * shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURVE: LearningRateSchedule = LearningRateSchedule {
        schedule: Schedule::Cosine,
        peak: 1.0,
        final_fraction: 0.1,
        warmup: 10,
        total: 100,
    };

    /// Returns a position in a training that ends by steps.
    fn by_steps(step: u64) -> SchedulePosition {
        SchedulePosition { step, steps: Some(100), elapsed: None }
    }

    /// Returns a position in a training that ends by time.
    fn by_time(step: u64, elapsed: f64) -> SchedulePosition {
        SchedulePosition { step, steps: None, elapsed: Some(elapsed) }
    }

    #[test]
    fn the_rate_rises_to_the_peak_and_falls_to_the_final_fraction() {
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let rate = |step| LearningRateSchedule { schedule, ..CURVE }.at(by_steps(step));
            assert!((rate(0) - 0.1).abs() < 1e-12);
            assert!((rate(9) - 1.0).abs() < 1e-12);
            assert!((rate(10) - 1.0).abs() < 1e-12);
            assert!((rate(99) - 0.1).abs() < 1e-12);
            assert!((rate(500) - 0.1).abs() < 1e-12);
            assert!((10..99).all(|s| rate(s) > rate(s + 1)));
        }
    }

    #[test]
    fn with_a_time_limit_the_rate_ends_with_it_however_fast_steps_are() {
        for schedule in [Schedule::Cosine, Schedule::Linear] {
            let curve = LearningRateSchedule { schedule, ..CURVE };
            // Half as fast as planned, as planned, and three times as fast.
            for steps in [50_u32, 100, 300] {
                let rate = |step: u32| curve.at(by_time(step.into(), f64::from(step) / f64::from(steps - 1)));
                let higher = |a: &u32, b: &u32| rate(*a).total_cmp(&rate(*b));
                let warm = (0..steps).max_by(higher).expect("there are steps");
                assert!(rate(warm) > 0.99, "{steps} steps: {}", rate(warm));
                assert!(f64::from(warm) <= f64::from(steps) * 0.11, "{steps} steps: warm after {warm}");
                assert!(rate(0) > 0.0);
                assert!((rate(steps - 1) - 0.1).abs() < 1e-12, "{steps} steps");
                let half = rate(steps / 2);
                assert!((0.45..0.75).contains(&half), "{steps} steps: {half} after half the time");
                assert!((warm..steps - 1).all(|s| rate(s) >= rate(s + 1)));
            }
        }
        // The planned step time exceeds the limit.
        let short = LearningRateSchedule { warmup: 1, total: 1, ..CURVE };
        assert!((short.at(by_time(0, 0.0)) - 1.0).abs() < 1e-12);
        assert!((short.at(by_time(7, 1.0)) - 0.1).abs() < 1e-12);
    }

    #[test]
    fn the_rate_does_not_depend_on_the_step_after_warm_up_but_on_the_time() {
        assert_eq!(CURVE.at(by_time(20, 0.5)), CURVE.at(by_time(4000, 0.5)));
    }

    #[test]
    fn whichever_ends_first_leads_the_rate() {
        let both = |step, elapsed| CURVE.at(SchedulePosition { elapsed: Some(elapsed), ..by_steps(step) });
        for step in 0..100 {
            assert_eq!(both(step, 1e-9), CURVE.at(by_steps(step)), "ample time changes no bit");
        }
        assert_eq!(both(20, 0.5), CURVE.at(by_time(20, 0.5)));
        assert!((both(20, 1.0) - 0.1).abs() < 1e-12);
        // Ends after 1,000 steps. The planner expects 100 within the time, but steps are ten times as fast.
        let quick = |step| CURVE.at(SchedulePosition { step, steps: Some(1000), elapsed: Some(0.0) });
        assert!((quick(9) - 1.0).abs() < 1e-12, "warm after as many steps as planned");
        assert!((quick(999) - 0.1).abs() < 1e-12);
    }
}
