//! Peak learning rate and warm-up from the model, the batch and the length of training, with the reason in
//! words.
//!
//! Constants come from published runs and are starting points: each decision has a range worth searching.

use super::decision::Decision;
use super::fine_tuning_rate::{self, TunedWeights};
use super::learning_rate_scaling::{adam, block_parameters, sgd};
use dtrain_recipes::{Model, Optimizer, OptimizerKind, Train, Tunable};

/// Version of the rule for learning rates, which changes when recommended rates do: a study's correction holds
/// for the version that it was measured with.
pub const RULE_VERSION: u32 = 2;

/// Recommends a peak learning rate for a batch of `batch` samples when training sees about `tokens` tokens in
/// all.
///
/// A training that starts from the weights of [`Train::from`] or trains adapters has the rate of a
/// fine-tuning, any other that of a pretraining.
pub fn recommended_peak(model: &Model, train: &Train, batch: u64, tokens: f64) -> Decision<f64> {
    let from_random = adam(model, batch, tokens);
    let tuned = tuned_weights(model, train).zip(block_parameters(model));
    let adamw = match tuned {
        Some((weights, blocks)) => fine_tuning_rate::adam(weights, blocks),
        None => from_random.clone(),
    };
    let found = match train.optimizer.kind {
        OptimizerKind::Adamw => adamw,
        OptimizerKind::Lion => times(adamw, 0.2, "a fifth of AdamW's, because Lion's steps are longer"),
        OptimizerKind::Lamb => {
            let five =
                times(adamw, 5.0, "five times AdamW's, because LAMB's steps are relative to the weights");
            let value = five.value.min(1e-2);
            Decision { value, low: five.low.min(value), high: five.high.max(value), ..five }
        }
        OptimizerKind::Sgd => {
            let found = sgd(model, &train.optimizer, batch, tokens);
            match tuned {
                Some(_) => {
                    let share = adamw.value / from_random.value;
                    times(found, share, "smaller than from random weights as AdamW's is")
                }
                None => found,
            }
        }
    };
    let Decision { value, low, high, reason } = found;
    Decision { value: round(value), low: round(low), high: round(high), reason }
}

/// Returns the weights that a fine-tuning trains; `None` if training starts from random weights.
fn tuned_weights(model: &Model, train: &Train) -> Option<TunedWeights> {
    if model.has_frozen_weights() {
        return Some(TunedWeights::Adapters);
    }
    train.from.as_ref().map(|_| TunedWeights::All)
}

/// Multiplies a learning rate by `factor` and puts the reason `why` first.
fn times(decision: Decision<f64>, factor: f64, why: &str) -> Decision<f64> {
    let Decision { value, low, high, reason } = decision;
    let reason = format!("{why}; {reason}");
    Decision { value: value * factor, low: low * factor, high: high * factor, reason }
}

/// Lowers a recommended learning rate for gradients that are `staleness` steps late: that many steps go in
/// one direction before the first takes effect, so together they may be as long as one.
pub fn for_stale_gradients(recommended: Decision<f64>, staleness: u32) -> Decision<f64> {
    if staleness == 0 {
        return recommended;
    }
    let steps = staleness + 1;
    let shorter = |rate: f64| round(rate / f64::from(steps));
    let Decision { value, low, high, reason } = recommended;
    let reason = format!("divided by {steps}, as gradients come up to {staleness} steps late; {reason}");
    Decision { value: shorter(value), low: shorter(low), high: shorter(high), reason }
}

/// Returns the learning rate that the recipe allows and that is nearest to the recommended one.
pub fn clamp_to_choice(choice: &Tunable<f64>, recommended: Decision<f64>) -> Decision<f64> {
    let nearest = |values: &[f64]| {
        let far = |v: &f64| (v / recommended.value).ln().abs();
        values.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(recommended.value)
    };
    match choice {
        Tunable::Auto => recommended,
        Tunable::Pinned(value) => Decision::pinned(*value),
        Tunable::Among(values) => Decision {
            value: nearest(values),
            low: values.iter().copied().fold(f64::INFINITY, f64::min),
            high: values.iter().copied().fold(0.0, f64::max),
            reason: format!("the recipe's choice nearest to {}: {}", recommended.value, recommended.reason),
        },
        Tunable::Log { low, high } => Decision {
            value: recommended.value.clamp(*low, *high),
            low: *low,
            high: *high,
            reason: format!("within the recipe's bounds; {}", recommended.reason),
        },
    }
}

/// Returns the number of steps of linear warm-up in a training of `steps` steps.
///
/// Adam-like optimizers: long enough for the second moment to settle (`2/(1−β₂)`), at least 1 % of the run,
/// but never more than a fifth of it. SGD: a twentieth of the run, at most 500 steps.
pub fn warmup(optimizer: &Optimizer, steps: u64) -> Decision<u64> {
    #![expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "step counts are far below 2^52 and never negative"
    )]
    let fifth = (steps / 5).max(1);
    let (wanted, why) = match optimizer.kind {
        OptimizerKind::Sgd => {
            ((steps / 20).min(500), "a twentieth of the run, at most 500 steps".to_string())
        }
        OptimizerKind::Adamw | OptimizerKind::Lion | OptimizerKind::Lamb => {
            let settle = (2.0 / (1.0 - optimizer.beta2)).ceil() as u64;
            let percent = (steps as f64 * 0.01).ceil() as u64;
            (settle.max(percent), format!("2/(1−β₂) = {settle} steps, or 1 % of the run if that is more"))
        }
    };
    let value = wanted.clamp(1, fifth);
    let reason =
        if wanted > fifth { format!("a fifth of the run, which is shorter than {why}") } else { why };
    Decision { value, low: (value / 2).max(1), high: (value * 2).min(fifth), reason }
}

/// Rounds `value` to two significant digits, through text, so that the result is exactly 0.0012 and not a
/// float beside it.
pub(super) fn round(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn with(kind: OptimizerKind) -> Optimizer {
        Optimizer { kind, ..fixtures::adamw() }
    }

    #[test]
    fn late_gradients_ask_for_shorter_steps() {
        let model = fixtures::gpt2();
        let exact = recommended_peak(&model, &Train::example(), 512, 1e9);
        assert_eq!(for_stale_gradients(exact.clone(), 0), exact);
        let late = for_stale_gradients(exact.clone(), 3);
        assert!((4.0 * late.value / exact.value - 1.0).abs() < 0.05, "{late:?}");
        assert!(late.reason.starts_with("divided by 4") && late.reason.ends_with(&exact.reason));
    }

    #[test]
    fn two_digits_are_the_number_one_writes() {
        assert_eq!(round(0.001_234_5).to_string(), "0.0012");
        assert_eq!(round(0.000_299_99).to_string(), "0.0003");
        assert_eq!(round(0.1).to_string(), "0.1");
    }

    #[test]
    fn warm_up_settles_the_second_moment_but_never_takes_more_than_a_fifth() {
        let warm = |beta2, steps| warmup(&Optimizer { beta2, ..fixtures::adamw() }, steps).value;
        assert_eq!(warm(0.95, 1_000), 40);
        assert_eq!(warm(0.95, 10_000), 100);
        assert_eq!(warm(0.999, 100_000), 2_000);
        assert_eq!(warm(0.999, 100), 20);
        assert_eq!(warm(0.95, 1), 1);
        assert_eq!(warmup(&with(OptimizerKind::Sgd), 400).value, 20);
    }

    #[test]
    fn a_choice_takes_the_nearest_and_bounds_hold() {
        let recommended = || Decision { value: 1e-3, low: 3e-4, high: 3e-3, reason: "x".into() };
        let value = |choice| clamp_to_choice(&choice, recommended()).value;
        assert!((value(Tunable::Auto) - 1e-3).abs() < 1e-12);
        assert!((value(Tunable::Pinned(0.5)) - 0.5).abs() < 1e-12);
        assert!((value(Tunable::Among(vec![1e-5, 2e-3, 0.5])) - 2e-3).abs() < 1e-12);
        assert!((value(Tunable::Log { low: 2e-3, high: 1.0 }) - 2e-3).abs() < 1e-12);
    }
}
