//! Training schedule: number of steps, warm-up, checkpoint and validation intervals.

use crate::training::batch_size;
use crate::training::checkpoint_interval::{
    CheckpointInterval, checkpoint_interval, final_checkpoint_seconds,
};
use crate::training::decision::Decision;
use crate::training::learning_rate;
use crate::training::step_count::steps_in;
use crate::training::validation::{
    Validation, ValidationInterval, affordable_samples, affordable_samples_within,
};
use dtrain_recipes::{Recipe, Tunable, Warmup};
use serde::{Deserialize, Serialize};

/// Schedule of a training with one candidate: steps, warm-up, checkpoints and validations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSchedule {
    /// Steps after which training is complete; `None` when only time or the target ends it.
    pub steps: Option<u64>,
    /// Number of steps over which the learning rate decays: fewer than `steps` where the time limit comes
    /// first.
    pub schedule_steps: u64,
    /// Steps of linear warm-up, with their reason.
    pub warmup: Decision<u64>,
    /// Number of steps between two checkpoints; there is one after the last step, too.
    pub save_every: u64,
    /// Checkpoint interval with its reason; `None` in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpointing: Option<CheckpointInterval>,
    /// Number of steps between two validations; there is one after the last step, too.
    pub validate_every: u64,
    /// Largest number of samples in one validation.
    pub validate_samples: u64,
    /// Cost of the validations; `None` without an estimate, and in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
}

/// Predicted time of a training step and of a validation sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepAndValidationTime {
    /// Seconds of one training step.
    pub step: f64,
    /// Seconds of one validation sample; `None` without an estimate.
    pub validation_sample: Option<f64>,
}

/// Returns the schedule of a training whose steps and validations take the time `cost`.
pub fn training_schedule(
    recipe: &Recipe,
    batch: u64,
    train_samples: Option<u64>,
    valid_samples: Option<u64>,
    cost: StepAndValidationTime,
) -> TrainingSchedule {
    let stop = &recipe.objective.stop;
    let steps = batch_size::steps(stop, &recipe.model, batch, train_samples);
    // The final checkpoint counts towards the time, too.
    let seconds = stop
        .time
        .map(|time| time.0 - cost.validation_sample.map_or(0.0, |_| final_checkpoint_seconds(recipe)));
    let most =
        seconds.map(|seconds| steps_in(seconds, cost.step)).into_iter().chain(steps).min().unwrap_or(1);
    let affordable = match (seconds, cost.validation_sample) {
        (Some(seconds), Some(sample)) => {
            affordable_samples(recipe, batch, most).min(affordable_samples_within(seconds, sample))
        }
        (Some(_), None) | (None, _) => affordable_samples(recipe, batch, most),
    };
    let rhythm = ValidationInterval::of(recipe, (most, cost.step), affordable, valid_samples);
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let each = cost.validation_sample.filter(|_| recipe.data.is_some()).map(|s| s * rhythm.samples as f64);
    let by_time = seconds.map(|seconds| rhythm.steps_within(seconds, cost.step, each.unwrap_or(0.0)));
    let schedule_steps = steps.into_iter().chain(by_time).min().unwrap_or(1);
    let warmup = match recipe.train.warmup {
        Tunable::Pinned(warmup) => Decision::pinned(warmup_steps(warmup, batch, recipe)),
        Tunable::Auto => learning_rate::warmup(&recipe.train.optimizer, schedule_steps),
        Tunable::Among(ref all) => nearest(all, batch, recipe, schedule_steps),
        Tunable::Log { low, high } => bounded(low, high, batch, recipe, schedule_steps),
    };
    let saving = checkpoint_interval(recipe, schedule_steps, cost.step);
    TrainingSchedule {
        steps,
        schedule_steps,
        warmup,
        save_every: saving.every,
        checkpointing: Some(saving),
        validate_every: rhythm.every,
        validate_samples: rhythm.samples,
        validation: each.map(|each| rhythm.validation(schedule_steps, cost.step, each)),
    }
}

fn warmup_steps(warmup: Warmup, batch: u64, recipe: &Recipe) -> u64 {
    match warmup {
        Warmup::Steps(steps) => steps,
        Warmup::Tokens(tokens) => tokens.0.div_ceil(batch * recipe.model.sample_tokens()),
    }
}

fn nearest(all: &[Warmup], batch: u64, recipe: &Recipe, steps: u64) -> Decision<u64> {
    let wanted = learning_rate::warmup(&recipe.train.optimizer, steps);
    let choices = all.iter().map(|warmup| warmup_steps(*warmup, batch, recipe));
    let value = choices.min_by_key(|steps| (steps.abs_diff(wanted.value), *steps)).unwrap_or(wanted.value);
    Decision {
        value,
        reason: format!("the recipe's choice nearest to {}: {}", wanted.value, wanted.reason),
        ..wanted
    }
}

fn bounded(low: Warmup, high: Warmup, batch: u64, recipe: &Recipe, steps: u64) -> Decision<u64> {
    let wanted = learning_rate::warmup(&recipe.train.optimizer, steps);
    let (low, high) = (warmup_steps(low, batch, recipe), warmup_steps(high, batch, recipe));
    let value = wanted.value.max(low).min(high.max(low));
    Decision { value, low, high, reason: format!("within the recipe's bounds; {}", wanted.reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::{Seconds, StopConditions, Tokens};

    fn of_steps(recipe: &Recipe, batch: u64, seconds: f64) -> TrainingSchedule {
        training_schedule(
            recipe,
            batch,
            None,
            None,
            StepAndValidationTime { step: seconds, validation_sample: None },
        )
    }

    #[test]
    fn the_schedule_ends_with_whatever_ends_first() {
        let mut recipe = fixtures::recipe();
        recipe.objective.stop =
            StopConditions { steps: Some(1000), time: Some(Seconds(60.0)), ..StopConditions::default() };
        let at = |recipe: &Recipe, seconds| of_steps(recipe, 8, seconds);
        assert_eq!((at(&recipe, 0.01).steps, at(&recipe, 0.01).schedule_steps), (Some(1000), 1000));
        assert_eq!((at(&recipe, 0.2).steps, at(&recipe, 0.2).schedule_steps), (Some(1000), 300));
        recipe.objective.stop.steps = None;
        assert_eq!((at(&recipe, 0.2).steps, at(&recipe, 0.2).schedule_steps), (None, 300));
    }

    #[test]
    fn a_pinned_warm_up_is_kept_and_tokens_become_steps() {
        let mut recipe = fixtures::recipe();
        recipe.train.warmup = Tunable::Pinned(Warmup::Tokens(Tokens(256 * 100)));
        assert_eq!(of_steps(&recipe, 32, 0.1).warmup.value, 4);
        recipe.train.warmup = Tunable::Among(vec![Warmup::Steps(1), Warmup::Steps(50)]);
        assert_eq!(of_steps(&recipe, 32, 0.1).warmup.value, 50);
        recipe.train.warmup = Tunable::Log { low: Warmup::Steps(100), high: Warmup::Steps(200) };
        assert_eq!(of_steps(&recipe, 32, 0.1).warmup.value, 100);
    }
}
