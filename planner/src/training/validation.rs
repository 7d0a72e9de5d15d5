//! Validation interval, number of validation samples, and their cost.
//!
//! By default, validation takes a tenth of the time: about fifteen validations in a run, and fewer in one so
//! short that each would have too few samples. The number of samples depends on the recipe and on the
//! training samples of the run, and on a layout only where time ends the run or sets the interval. Between
//! its limits it is a power of two, so that trials of a study, and runs of similar length, validate on the
//! same samples.

use crate::training::step_count::nearest_steps;
use dtrain_recipes::{Interval, Recipe};
use serde::{Deserialize, Serialize};

/// Number of validations in a training that is long enough for as many.
const MOST: u64 = 15;

/// Largest fraction of the time for validation, where the recipe does not set the interval.
const SHARE: f64 = 0.1;

/// Largest validation, where the recipe does not set its size: in samples for a model without a sequence, in
/// tokens for one with a sequence.
const SAMPLES_MOST: (u64, u64) = (10_000, 1 << 18);

/// Smallest validation, in samples and in tokens like [`SAMPLES_MOST`]: with fewer, its figures are mostly
/// chance.
const SAMPLES_LEAST: (u64, u64) = (32, 1024);

/// Predicted cost of the validations in a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Seconds of one validation.
    pub seconds: f64,
    /// Number of validations in the training, including the one at the end.
    pub count: u64,
    /// Fraction of the time of steps and validations that validations take.
    pub share: f64,
}

/// Validation interval of a training, and the number of samples in each validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValidationInterval {
    /// Steps from one validation to the next, at least 1.
    pub(super) every: u64,
    /// Number of samples in each validation, at least 1.
    pub(super) samples: u64,
}

impl ValidationInterval {
    /// Decides the interval for a training of `steps` steps of `step_seconds`, whose validations use
    /// `affordable` samples in all, where the recipe leaves that open. There are `held_out` validation
    /// samples.
    pub(super) fn of(
        recipe: &Recipe,
        (steps, step_seconds): (u64, f64),
        affordable: u64,
        held_out: Option<u64>,
    ) -> Self {
        let (least, most) = bounds(recipe, held_out);
        let said =
            recipe.validation.samples.map(|samples| samples.0.min(held_out.unwrap_or(u64::MAX)).max(1));
        let every = match recipe.validation.every {
            Interval::Steps(steps) => steps.max(1),
            Interval::Time(time) => nearest_steps(time.0, step_seconds),
            Interval::Auto => {
                let count = (affordable / said.unwrap_or(least)).clamp(1, MOST);
                steps.div_ceil(count).max(1)
            }
        };
        let count = steps.div_ceil(every).max(1);
        let samples = said.unwrap_or_else(|| match affordable / count {
            all if all >= most => most,
            part => power_of_two(part).max(least),
        });
        Self { every, samples }
    }

    /// Returns the cost of all validations in a training of `steps` steps of `step` seconds, when each
    /// validation takes `seconds`.
    pub(super) fn validation(&self, steps: u64, step: f64, seconds: f64) -> Validation {
        let count = self.count(steps);
        let all = whole(count) * seconds;
        Validation { seconds, count, share: all / (all + whole(steps) * step.max(1e-9)) }
    }

    /// Returns the number of validations in a training of `steps` steps, including the one at the end.
    pub(super) fn count(&self, steps: u64) -> u64 {
        steps.div_ceil(self.every).max(1)
    }

    /// Returns the number of whole training steps of `step` seconds that fit into `seconds` together with
    /// their validations of `validation` seconds each, at least 1.
    pub(super) fn steps_within(&self, seconds: f64, step: f64, validation: f64) -> u64 {
        let step = step.max(1e-9);
        let round = whole(self.every) * step + validation;
        let rounds = (seconds / round).floor();
        let rest = ((seconds - rounds * round - validation) / step).floor().max(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of a float saturates"
        )]
        let steps = (rounds * whole(self.every) + rest) as u64;
        steps.max(1)
    }
}

/// Returns the number of validation samples that take a tenth of the time of `steps` steps of `batch`
/// samples. Each costs a third of a training sample, or half of one where weights are frozen and have no
/// gradients.
pub(super) fn affordable_samples(recipe: &Recipe, batch: u64, steps: u64) -> u64 {
    let passes = if recipe.model.has_frozen_weights() { 2 } else { 3 };
    batch.saturating_mul(steps).saturating_mul(passes) / 10
}

/// Returns the number of validation samples that take a tenth of `seconds`, at `sample` seconds each.
pub(super) fn affordable_samples_within(seconds: f64, sample: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates"
    )]
    let samples = (SHARE * seconds / sample) as u64;
    samples
}

/// Returns the least and the largest number of samples of a validation whose size the planner decides.
fn bounds(recipe: &Recipe, held_out: Option<u64>) -> (u64, u64) {
    let tokens = recipe.model.sample_tokens();
    let of = |(rows, all): (u64, u64)| if tokens > 1 { (all / tokens).max(1) } else { rows };
    let most = held_out.unwrap_or(u64::MAX).min(of(SAMPLES_MOST)).max(1);
    (of(SAMPLES_LEAST).min(most), most)
}

/// Returns the largest power of two that is not above `n`; 0 for 0.
fn power_of_two(n: u64) -> u64 {
    n.checked_ilog2().map_or(0, |power| 1 << power)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn whole(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::training::training_schedule::{StepAndValidationTime, TrainingSchedule, training_schedule};
    use dtrain_recipes::{AdaptedLayers, Lora, Model, Samples, Seconds, StopConditions};

    /// Returns the sample recipe, with 256 tokens per sample or with rows, that ends as `stop` says.
    fn recipe(has_rows: bool, stop: StopConditions) -> Recipe {
        let mut recipe = fixtures::recipe();
        recipe.objective.stop = stop;
        if has_rows {
            let [_, mlp, _] = fixtures::models();
            assert!(matches!(mlp, Model::Mlp(_)));
            recipe.model = mlp;
        }
        recipe
    }

    fn steps(steps: u64) -> StopConditions {
        StopConditions { steps: Some(steps), ..StopConditions::default() }
    }

    fn time(seconds: f64) -> StopConditions {
        StopConditions { time: Some(Seconds(seconds)), ..StopConditions::default() }
    }

    /// Returns the schedule when a forward pass is a third of a step, and 5,000 samples are held out.
    fn paced(recipe: &Recipe, batch: u64, step: f64) -> TrainingSchedule {
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let sample = step / 3.0 / batch as f64;
        training_schedule(
            recipe,
            batch,
            None,
            Some(5_000),
            StepAndValidationTime { step, validation_sample: Some(sample) },
        )
    }

    #[test]
    fn validation_takes_a_tenth_of_the_time_at_most() {
        for has_rows in [false, true] {
            for batch in [1, 8, 32, 500] {
                for stop in [100, 1000, 12_345].map(steps).into_iter().chain([20.0, 300.0].map(time)) {
                    let recipe = recipe(has_rows, stop.clone());
                    let pace = paced(&recipe, batch, 0.05);
                    let share = pace.validation.expect("it is priced").share;
                    // There is always one validation, of at least a few samples.
                    let is_one = pace.validate_every >= pace.schedule_steps;
                    assert!(share <= 0.1 || is_one, "{stop:?}, batch {batch}: {share} of the time, {pace:?}");
                    assert!(pace.validate_samples >= if has_rows { 32 } else { 4 }, "{pace:?}");
                }
            }
        }
    }

    #[test]
    fn a_forward_pass_is_half_of_a_step_where_weights_are_frozen() {
        let mut recipe = recipe(false, steps(1000));
        assert_eq!(affordable_samples(&recipe, 8, 1000), 2400);
        let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
        decoder.lora = Some(Lora { rank: 4, alpha: 8.0, layers: AdaptedLayers::All, base: None });
        assert_eq!(affordable_samples(&recipe, 8, 1000), 1600);
    }

    #[test]
    fn a_long_run_is_validated_about_fifteen_times_and_a_short_one_less_often() {
        for (length, counts) in [(3, 1..=1), (100, 13..=15), (1000, 14..=15), (12_345, 14..=15)] {
            let pace = paced(&recipe(false, steps(length)), 8, 0.1);
            let count = pace.validation.expect("it is priced").count;
            assert!(counts.contains(&count), "{length} steps: {count} validations");
        }
    }

    #[test]
    fn what_fits_into_a_time_has_its_validations_and_the_last_checkpoint() {
        for limit in [5.0, 25.0, 600.0] {
            let recipe = recipe(false, time(limit));
            let pace = paced(&recipe, 32, 0.08);
            let Validation { seconds, count, .. } = pace.validation.expect("it is priced");
            #[expect(clippy::cast_precision_loss, reason = "small counts")]
            let took = pace.schedule_steps as f64 * 0.08 + count as f64 * seconds;
            let last = crate::training::checkpoint_interval::final_checkpoint_seconds(&recipe);
            assert!(took + last <= limit && took + last > limit - 0.3, "{took} s of {limit} s");
        }
    }

    #[test]
    fn what_the_recipe_says_is_kept_and_counted() {
        let mut recipe = recipe(false, time(60.0));
        recipe.validation.samples = Some(Samples(3_000));
        let all = paced(&recipe, 32, 0.1);
        assert_eq!((all.validate_samples, all.validation.expect("priced").count), (3_000, 1), "no more fit");
        recipe.validation.every = Interval::Steps(50);
        let often = paced(&recipe, 32, 0.1);
        assert_eq!((often.validate_every, often.validate_samples), (50, 3_000));
        // 5 s of steps and 3.1 s of validation, repeated.
        assert!((300..=370).contains(&often.schedule_steps), "{often:?}");
        assert!(often.validation.expect("priced").share > 0.35, "{often:?}");
        recipe.validation.every = Interval::Time(Seconds(10.0));
        assert_eq!(paced(&recipe, 32, 0.1).validate_every, 100);
        recipe.validation.samples = Some(Samples(1_000_000));
        assert_eq!(paced(&recipe, 32, 0.1).validate_samples, 5_000, "there are no more");
    }

    #[test]
    fn every_layout_and_every_batch_of_a_study_validates_on_the_same_samples() {
        let by_steps = recipe(false, steps(2_000));
        assert_eq!(paced(&by_steps, 32, 0.1).validate_samples, paced(&by_steps, 32, 3.0).validate_samples);
        let by_samples =
            recipe(true, StopConditions { samples: Some(Samples(60_000)), ..StopConditions::default() });
        let used = [7, 8, 30, 64].map(|batch| paced(&by_samples, batch, 0.1).validate_samples);
        assert_eq!(used, [used[0]; 4]);
        // A second measurement of a machine is never exactly equal.
        let by_time = recipe(true, time(60.0));
        assert_eq!(paced(&by_time, 32, 0.1).validate_samples, paced(&by_time, 32, 0.103).validate_samples);
    }
}
