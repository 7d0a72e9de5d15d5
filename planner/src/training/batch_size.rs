//! Choice of the global batch when the recipe leaves it open, and the resulting number of steps.

use super::decision::Decision;
use super::learning_rate_scaling::block_parameters;
use super::published_pretrainings::differing_batches;
use super::quantity::quantity;
use dtrain_recipes::number_format::count;
use dtrain_recipes::{Model, Samples, StopConditions, Tunable};

/// Returns the critical batch, in tokens, of a training over `tokens` tokens: beyond it, doubling the batch
/// saves far less than half the steps. It is `0.0471·D^0.462` sequences of 2,048 tokens (Bergsma et al. 2025,
/// arXiv 2505.13738; the exponent was checked there, the constant could not be), and depends on the data seen,
/// hardly on the size of the model.
pub fn critical_tokens(tokens: f64) -> f64 {
    2048.0 * 0.0471 * tokens.max(1.0).powf(0.462)
}

/// Returns the batch, in tokens, with the best loss after a training over `tokens` tokens: `0.0306·D^0.383`
/// sequences of 2,048 tokens (Bergsma et al. 2025, arXiv 2505.13738; the exponent was checked there, the
/// constant could not be). Of 108 published batches 51 are within a factor of 1.5.
pub fn optimal_tokens(tokens: f64) -> f64 {
    2048.0 * 0.0306 * tokens.max(1.0).powf(0.383)
}

/// Least number of steps that a training should have: fewer leave too little for warm-up and decay.
const STEPS_LEAST: f64 = 200.0;

/// Largest number of epochs of a decoder, where the recipe sets only the steps and leaves the batch open. Up
/// to 4 epochs of repeated text are almost worth new text, and beyond 16 nearly nothing is gained
/// (Muennighoff et al. 2023, arXiv 2305.16264).
pub const EPOCHS_MOST: f64 = 16.0;

/// Length of a training as far as it is known before the batch is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingBudget {
    /// Number of samples in the whole training; `None` where the recipe does not determine it.
    pub samples: Option<f64>,
    /// Number of steps in the whole training; `None` where the recipe does not determine it.
    pub steps: Option<f64>,
}

/// Returns the length of a training by its stop conditions; `train_samples` is the size of one epoch,
/// `samples_per_second` a rough speed that turns a time into samples.
pub fn budget(
    stop: &StopConditions,
    model: &Model,
    train_samples: Option<u64>,
    samples_per_second: f64,
) -> TrainingBudget {
    #![expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let limits = [
        stop.samples.map(|s| s.0 as f64),
        stop.tokens.map(|t| t.0 as f64 / model.sample_tokens() as f64),
        stop.epochs.zip(train_samples).map(|(epochs, n)| epochs * n as f64),
        stop.time.map(|time| time.0 * samples_per_second),
    ];
    TrainingBudget {
        samples: limits.into_iter().flatten().reduce(f64::min),
        steps: stop.steps.map(|s| s as f64),
    }
}

/// Returns the number of optimizer steps until a stop condition holds, ignoring time; `None` when only time
/// or the target ends the training.
pub fn steps(stop: &StopConditions, model: &Model, batch: u64, train_samples: Option<u64>) -> Option<u64> {
    #![expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts are far below 2^52 and never negative"
    )]
    let step_tokens = batch * model.sample_tokens();
    let epochs = stop.epochs.zip(train_samples);
    [
        stop.steps,
        stop.samples.map(|s| s.0.div_ceil(batch)),
        stop.tokens.map(|t| t.0.div_ceil(step_tokens)),
        epochs.map(|(epochs, n)| (epochs * n as f64 / batch as f64).ceil() as u64),
    ]
    .into_iter()
    .flatten()
    .min()
    .map(|steps| steps.max(1))
}

/// Recommends a batch in samples: a multiple of `unit`, the number of ranks that it should divide over.
pub fn recommended(
    model: &Model,
    budget: TrainingBudget,
    train_samples: Option<u64>,
    unit: u64,
) -> Decision<u64> {
    #![expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let sequence = model.sample_tokens() as f64;
    let (wanted, reason) = match (model.reads_tokens(), budget.samples, budget.steps) {
        (true, Some(samples), _) => {
            let tokens = samples * sequence;
            let steps = budget.steps.unwrap_or(f64::INFINITY);
            let (best, bound) = (optimal_tokens(tokens), tokens / STEPS_LEAST.min(steps));
            let why = if best <= bound {
                format!("{}; D {} tokens", rule(best), quantity(tokens))
            } else {
                format!(
                    "at least {STEPS_LEAST:.0} steps, of {} tokens; D {} tokens",
                    quantity(bound),
                    quantity(tokens)
                )
            };
            (best.min(bound) / sequence, why)
        }
        (true, None, Some(steps)) => {
            // The batch that is optimal for its own budget of steps · batch. Steps alone do not limit the
            // data: a larger batch would be free data at first, and soon repeated samples.
            let best = (2048.0 * 0.0306 * steps.powf(0.383)).powf(1.0 / (1.0 - 0.383)) / sequence;
            match train_samples.map(|samples| EPOCHS_MOST * samples as f64 / steps) {
                Some(bound) if bound < best => (
                    bound,
                    format!("{} steps of it see each sample at most {EPOCHS_MOST:.0} times", count(steps)),
                ),
                _ => {
                    let tokens = best * sequence;
                    (best, format!("{}; D are those of {} steps", rule(tokens), count(steps)))
                }
            }
        }
        (_, Some(samples), _) => {
            let bound = (samples / STEPS_LEAST).clamp(8.0, 128.0);
            let why = "128, or less if that would leave fewer than 200 steps";
            (bound, why.to_string())
        }
        (_, None, _) => (64.0, "64, because the number of samples is unknown".to_string()),
    };
    let most = train_samples.unwrap_or(u64::MAX).max(1);
    // At most the samples that exist, and still a power of two.
    let value = rounded(wanted, unit).min(1 << most.ilog2());
    let reason = match block_parameters(model).zip(budget.samples) {
        Some((blocks, samples)) => {
            let size = value as f64 * sequence;
            match differing_batches(blocks, samples * sequence, size) {
                Some(sentence) => format!("{reason}. {sentence}"),
                None => reason,
            }
        }
        None => reason,
    };
    Decision { value, low: (value / 4).max(1), high: value.saturating_mul(4).min(most), reason }
}

/// Returns the rule of [`optimal_tokens`] with its result and its source, in words.
fn rule(tokens: f64) -> String {
    format!("62.7 D^0.383 = {} tokens a step, for the best loss (Bergsma et al. 2025)", quantity(tokens))
}

/// Returns the batch, in samples, that the recipe allows and that is nearest to the recommended one.
pub fn clamp_to_choice(choice: &Tunable<Samples>, recommended: Decision<u64>) -> Decision<u64> {
    let value = recommended.value;
    match choice {
        Tunable::Auto => recommended,
        Tunable::Pinned(samples) => Decision::pinned(samples.0),
        Tunable::Among(values) => {
            #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
            let far = |v: &u64| (*v as f64 / value as f64).ln().abs();
            let all: Vec<u64> = values.iter().map(|s| s.0).collect();
            let nearest = all.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(value);
            Decision {
                value: nearest,
                low: all.iter().copied().min().unwrap_or(value),
                high: all.iter().copied().max().unwrap_or(value),
                reason: format!("the recipe's choice nearest to {value}: {}", recommended.reason),
            }
        }
        Tunable::Log { low, high } => Decision {
            value: value.clamp(low.0, high.0),
            low: low.0,
            high: high.0,
            reason: format!("within the recipe's bounds; {}", recommended.reason),
        },
    }
}

/// Returns the largest `unit · 2^k` (or, below the unit, power of two) that is at most √2 times `wanted`.
fn rounded(wanted: f64, unit: u64) -> u64 {
    let limit = wanted * std::f64::consts::SQRT_2;
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let fits = |n: u64| n as f64 <= limit;
    let mut value = if fits(unit.max(1)) { unit.max(1) } else { 1 };
    while value < 1 << 40 && fits(value * 2) {
        value *= 2;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::{Seconds, Tokens};
    use proptest::prelude::*;

    #[test]
    fn the_tightest_condition_counts_the_steps() {
        let stop = StopConditions {
            tokens: Some(Tokens(256 * 100)),
            epochs: Some(2.0),
            ..StopConditions::default()
        };
        let count = |batch, samples| steps(&stop, &fixtures::llama(), batch, samples);
        assert_eq!(count(10, None), Some(10));
        assert_eq!(count(10, Some(20)), Some(4));
        assert_eq!(count(16, Some(1000)), Some(7), "the last step is whole");
        let time = StopConditions { time: Some(Seconds(60.0)), ..StopConditions::default() };
        assert_eq!(steps(&time, &fixtures::llama(), 10, Some(20)), None);
    }

    #[test]
    fn the_batch_grows_with_the_tokens_and_leaves_enough_steps() {
        let batch = |tokens: f64| {
            let budget = TrainingBudget { samples: Some(tokens / 256.0), steps: None };
            recommended(&fixtures::llama(), budget, None, 1).value
        };
        assert!(batch(1e5) < batch(2e7) && batch(2e7) < batch(1e10));
        for tokens in [1e5, 1e6, 2e7] {
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let steps = tokens / 256.0 / batch(tokens) as f64;
            assert!(steps > 130.0, "{tokens} tokens: {steps} steps");
        }
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn steps_alone_give_a_batch_that_does_not_repeat_the_data_for_ever() {
        let budget = TrainingBudget { samples: None, steps: Some(200.0) };
        let batch = recommended(&fixtures::llama(), budget, None, 1);
        assert_eq!(batch.value, 64, "{}", batch.reason);
        for samples in [1, 20, 23, 31, 40] {
            let few = recommended(&fixtures::llama(), budget, Some(samples), 1);
            let wanted = EPOCHS_MOST * samples as f64 / 200.0;
            assert!(few.value as f64 <= (1.42 * wanted).max(1.0), "{} of {samples}", few.value);
            assert!(few.reason.contains("at most 16 times"), "{}", few.reason);
        }
        let many = recommended(&fixtures::llama(), budget, Some(1_000_000), 1).value;
        assert_eq!(many, 64, "enough data does not change it");
    }

    proptest! {
        #[test]
        fn a_large_batch_divides_over_the_unit(wanted in 1f64..1e6, unit in 1u64..20) {
            let value = rounded(wanted, unit);
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let (v, u) = (value as f64, unit as f64);
            prop_assert!(v <= wanted * 1.42);
            prop_assert!(wanted < u || value.is_multiple_of(unit));
        }
    }
}
