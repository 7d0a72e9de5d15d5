//! The pace of a run: how many steps, and when to warm up, save and validate.

use crate::planning::saving::{Saving, saving};
use crate::training::batch_size;
use crate::training::learning_rate::{self, Decision};
use dtrain_recipes::{Choice, Recipe, Warmup};
use serde::{Deserialize, Serialize};

/// The pace of a run with one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Steps after which training is complete; `None` when only time or the target ends it.
    pub steps: Option<u64>,
    /// Steps the learning-rate schedule is stretched over: fewer than `steps` where the time will end first.
    pub schedule_steps: u64,
    /// Warm-up in steps.
    pub warmup: Decision<u64>,
    /// Save after every this many steps, and after the last.
    pub save_every: u64,
    /// Why then; nothing in a plan of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving: Option<Saving>,
    /// Validate after every this many steps, and after the last.
    pub validate_every: u64,
    /// At most this many validation samples are used.
    pub validate_samples: u64,
}

/// Validations in a run.
pub const VALIDATIONS: u64 = 15;

/// Most validation samples used by itself, in samples of a model without a sequence and in tokens of one with.
const VALIDATE_MOST: (u64, u64) = (10_000, 1 << 18);

/// The pace of a run whose steps take `step_seconds`.
pub fn pace(
    recipe: &Recipe,
    batch: u64,
    train_samples: Option<u64>,
    valid_samples: Option<u64>,
    step_seconds: f64,
) -> Pace {
    let stop = &recipe.objective.stop;
    let steps = batch_size::steps(stop, &recipe.model, batch, train_samples);
    let by_time = stop.time.map(|time| steps_in(time.0, step_seconds));
    let schedule_steps = steps.into_iter().chain(by_time).min().unwrap_or(1);
    let warmup = match recipe.train.warmup {
        Choice::Pinned(warmup) => Decision::pinned(in_steps(warmup, batch, recipe)),
        Choice::Auto => learning_rate::warmup(&recipe.train.optimizer, schedule_steps),
        Choice::Among(ref all) => nearest(all, batch, recipe, schedule_steps),
        Choice::Log { low, high } => bounded(low, high, batch, recipe, schedule_steps),
    };
    let saving = saving(recipe, schedule_steps, step_seconds);
    Pace {
        steps,
        schedule_steps,
        warmup,
        save_every: saving.every,
        saving: Some(saving),
        validate_every: schedule_steps.div_ceil(VALIDATIONS).max(1),
        validate_samples: validate_samples(recipe, batch, schedule_steps, valid_samples),
    }
}

/// Samples of one validation: all of them, but no more than would cost about a tenth of the training, and
/// never more than a fixed number. Depends on the recipe and the batch, never on a speed, so that every
/// layout validates on the same samples.
fn validate_samples(recipe: &Recipe, batch: u64, steps: u64, valid_samples: Option<u64>) -> u64 {
    let tokens = recipe.model.sample_tokens();
    let most = if tokens > 1 { (VALIDATE_MOST.1 / tokens).max(1) } else { VALIDATE_MOST.0 };
    let counted = recipe.objective.stop.time.is_none();
    // A validation sample costs a third of a training sample: 0.3 · training samples over all validations.
    let affordable =
        if counted { (batch.saturating_mul(steps) / 10 * 3 / VALIDATIONS).max(batch.max(32)) } else { most };
    valid_samples.unwrap_or(most).min(most).min(affordable).max(1)
}

fn in_steps(warmup: Warmup, batch: u64, recipe: &Recipe) -> u64 {
    match warmup {
        Warmup::Steps(steps) => steps,
        Warmup::Tokens(tokens) => tokens.0.div_ceil(batch * recipe.model.sample_tokens()),
    }
}

fn nearest(all: &[Warmup], batch: u64, recipe: &Recipe, steps: u64) -> Decision<u64> {
    let wanted = learning_rate::warmup(&recipe.train.optimizer, steps);
    let choices = all.iter().map(|warmup| in_steps(*warmup, batch, recipe));
    let value = choices.min_by_key(|steps| (steps.abs_diff(wanted.value), *steps)).unwrap_or(wanted.value);
    Decision {
        value,
        reason: format!("the recipe's choice nearest to {}: {}", wanted.value, wanted.reason),
        ..wanted
    }
}

fn bounded(low: Warmup, high: Warmup, batch: u64, recipe: &Recipe, steps: u64) -> Decision<u64> {
    let wanted = learning_rate::warmup(&recipe.train.optimizer, steps);
    let (low, high) = (in_steps(low, batch, recipe), in_steps(high, batch, recipe));
    let value = wanted.value.max(low).min(high.max(low));
    Decision { value, low, high, reason: format!("within the recipe's bounds; {}", wanted.reason) }
}

/// Whole steps that end within `seconds`, at least one.
fn steps_in(seconds: f64, step_seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates"
    )]
    let steps = (seconds / step_seconds.max(1e-9)).floor() as u64;
    steps.max(1)
}

/// The number of steps nearest to `seconds`, at least one.
pub(crate) fn nearest_steps(seconds: f64, step_seconds: f64) -> u64 {
    steps_in(seconds + 0.5 * step_seconds, step_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use dtrain_recipes::{Seconds, Stop, Tokens};

    #[test]
    fn the_schedule_ends_with_whatever_ends_first() {
        let mut recipe = sample::recipe();
        recipe.objective.stop = Stop { steps: Some(1000), time: Some(Seconds(60.0)), ..Stop::default() };
        let at = |recipe: &Recipe, seconds| pace(recipe, 8, None, None, seconds);
        assert_eq!((at(&recipe, 0.01).steps, at(&recipe, 0.01).schedule_steps), (Some(1000), 1000));
        assert_eq!((at(&recipe, 0.2).steps, at(&recipe, 0.2).schedule_steps), (Some(1000), 300));
        recipe.objective.stop.steps = None;
        assert_eq!((at(&recipe, 0.2).steps, at(&recipe, 0.2).schedule_steps), (None, 300));
    }

    #[test]
    fn a_run_is_validated_about_fifteen_times() {
        for steps in [10, 100, 1000, 12_345] {
            let mut recipe = sample::recipe();
            recipe.objective.stop = Stop { steps: Some(steps), ..Stop::default() };
            let times = steps.div_ceil(pace(&recipe, 8, None, None, 0.1).validate_every);
            assert!((10..=15).contains(&times), "{steps} steps: {times} validations");
        }
    }

    #[test]
    fn every_layout_validates_on_the_same_samples() {
        let recipe = sample::recipe();
        let used = |seconds, valid| pace(&recipe, 32, None, valid, seconds).validate_samples;
        assert_eq!(used(0.1, Some(5_000)), used(3.0, Some(5_000)));
        assert_eq!(used(0.1, Some(100)), 100);
        assert_eq!(used(0.1, None), 1024, "2^18 tokens of 256");
    }

    #[test]
    fn a_pinned_warm_up_is_kept_and_tokens_become_steps() {
        let mut recipe = sample::recipe();
        recipe.train.warmup = Choice::Pinned(Warmup::Tokens(Tokens(256 * 100)));
        assert_eq!(pace(&recipe, 32, None, None, 0.1).warmup.value, 4);
        recipe.train.warmup = Choice::Among(vec![Warmup::Steps(1), Warmup::Steps(50)]);
        assert_eq!(pace(&recipe, 32, None, None, 0.1).warmup.value, 50);
        recipe.train.warmup = Choice::Log { low: Warmup::Steps(100), high: Warmup::Steps(200) };
        assert_eq!(pace(&recipe, 32, None, None, 0.1).warmup.value, 100);
    }
}
