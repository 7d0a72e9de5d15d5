//! Learning rate of a training that starts from random weights, by the size of the model and the batch.
//!
//! For decoders the rule is the geometric mean of two power laws, which docs/planning.md compares with
//! published values: `P = 0.0025·(B/N)^(1/3)`, the fit to 108 published pretrainings, and
//! `M = 0.22·N^(-1/2)·B^(1/3)`, which follows those of them that were tuned anew, and the sweeps of Step Law
//! (arXiv 2503.04715). `N` is the number of parameters in the blocks, `B` the number of tokens of a step.

use super::batch_size;
use super::decision::Decision;
use super::published_pretrainings::differing_rates;
use super::quantity::quantity;
use dtrain_recipes::number_format::{count, thousands};
use dtrain_recipes::{Model, Optimizer, PartOutline};

/// Highest learning rate of the 108 published pretrainings.
const HIGHEST_PUBLISHED: f64 = 3e-3;

/// Factor by which the range worth searching is wider than the two power laws.
const MARGIN: f64 = 1.5;

/// The rule for decoders with its sources, in words.
const RULE: &str = "fit to 108 published pretrainings and Step Law";

/// Returns the learning rate of Adam-like optimizers, not rounded.
pub(super) fn adam(model: &Model, batch: u64, tokens: f64) -> Decision<f64> {
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let size = (batch * model.sample_tokens()) as f64;
    match block_parameters(model) {
        Some(blocks) => of_decoder(blocks, size, tokens),
        None => of_samples(model, batch),
    }
}

/// Returns the learning rate of AdamW for a decoder with `blocks` parameters in its blocks, a batch of `size`
/// tokens and a training over `tokens` tokens.
pub(super) fn of_decoder(blocks: f64, size: f64, tokens: f64) -> Decision<f64> {
    let critical = batch_size::critical_tokens(tokens);
    let fall = if size > critical { surge(size / critical) } else { 1.0 };
    let rising = size.min(critical).cbrt();
    let rule = 0.0235 * blocks.powf(-5.0 / 12.0) * rising;
    let published = 0.0025 * blocks.powf(-1.0 / 3.0) * rising;
    let measured = 0.22 * blocks.powf(-1.0 / 2.0) * rising;
    let at_most = |rate: f64| rate.min(HIGHEST_PUBLISHED) * fall;
    let value = at_most(rule);
    let is_capped = rule > HIGHEST_PUBLISHED;
    let cap = if is_capped { format!("at most {HIGHEST_PUBLISHED:e}, ") } else { String::new() };
    let mut reason = format!(
        "{RULE}; 0.0235 N^(-5/12) B^(1/3), {cap}N {} in blocks, B {} tokens",
        quantity(blocks),
        quantity(size)
    );
    if size > critical {
        let critical = quantity(critical);
        reason += &format!(", past the critical batch of {critical}, where the rate falls");
    }
    if let Some(sentence) = differing_rates(blocks, size, value) {
        reason = format!("{reason}. {sentence}");
    }
    Decision {
        value,
        low: at_most(published.min(measured)) / MARGIN,
        high: at_most(published.max(measured)) * MARGIN,
        reason,
    }
}

/// Returns the learning rate of AdamW for a model that does not read tokens: a base rate for a batch of 128
/// samples, scaled by the square root of the batch, flattening towards the critical batch.
fn of_samples(model: &Model, batch: u64) -> Decision<f64> {
    const BASE: f64 = 1e-3;
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let size = batch as f64;
    let rooted = BASE * (size / SAMPLES).sqrt();
    let value = rooted.min(BASE * surge(size / CRITICAL_SAMPLES) / surge(SAMPLES / CRITICAL_SAMPLES));
    let what = match model {
        Model::Decoder(_) | Model::Custom(_) => "a network over rows",
        Model::Cnn(_) => "a residual network",
        Model::Mlp(_) | Model::Command(_) => "a perceptron",
    };
    let from = format!("1e-3 for {what} at {SAMPLES} samples a step");
    let reason = if size > CRITICAL_SAMPLES {
        let critical = count(CRITICAL_SAMPLES);
        let batch = thousands(batch);
        format!("{from}; {batch} is past the critical batch of {critical}, where it no longer grows")
    } else {
        format!("{from}, scaled by the square root of the batch to {}", thousands(batch))
    };
    Decision { value, low: value / 3.0, high: value * 3.0, reason }
}

/// Batch, in samples, of the base rate of a model that does not read tokens.
const SAMPLES: f64 = 128.0;

/// Critical batch, in samples, of a model that does not read tokens.
const CRITICAL_SAMPLES: f64 = 4096.0;

/// Returns the learning rate at `ratio` times the critical batch, relative to that at the critical batch: it
/// rises like the square root at first, and falls beyond (Li et al. 2024, arXiv 2405.14578).
fn surge(ratio: f64) -> f64 {
    2.0 / (ratio.sqrt() + ratio.sqrt().recip())
}

/// Returns the learning rate of SGD, not rounded: in proportion to the batch, flat at the critical batch.
pub(super) fn sgd(model: &Model, optimizer: &Optimizer, batch: u64, tokens: f64) -> Decision<f64> {
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let size = (batch * model.sample_tokens()) as f64;
    let momentum = 1.0 - optimizer.beta1;
    let (base_batch, critical, unit) = if model.reads_tokens() {
        (batch_size::optimal_tokens(tokens), batch_size::critical_tokens(tokens), "tokens a step")
    } else {
        (256.0, CRITICAL_SAMPLES, "samples a step")
    };
    let base = 0.1;
    let limited = size / (1.0 + size / critical);
    let value = base * (momentum / 0.1) * limited / base_batch;
    let reason = format!(
        "{base} at {} {unit} and momentum 0.9, in proportion to the batch up to the critical batch of {}",
        count(base_batch),
        count(critical)
    );
    Decision { value, low: value / 3.0, high: value * 3.0, reason }
}

/// Returns the number of parameters in the blocks of a model over tokens; of experts, those that are active
/// for a token. `None` if the model does not read tokens.
pub(super) fn block_parameters(model: &Model) -> Option<f64> {
    let blocks = match model {
        Model::Decoder(d) => d.active_parameters().saturating_sub(d.outer_parameters()),
        Model::Custom(own) if model.reads_tokens() => {
            own.outline.blocks.iter().map(PartOutline::values).sum()
        }
        Model::Custom(_) | Model::Cnn(_) | Model::Mlp(_) | Model::Command(_) => return None,
    };
    #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
    Some(blocks.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::training::learning_rate::recommended_peak;
    use crate::training::published_pretrainings::published_pretrainings;
    use dtrain_recipes::{OptimizerKind, Train};
    use proptest::prelude::*;

    fn with(kind: OptimizerKind) -> Train {
        Train { optimizer: Optimizer { kind, ..fixtures::adamw() }, ..Train::example() }
    }

    #[test]
    fn every_rule_scales_as_it_says() {
        let model = fixtures::llama();
        let rate = |kind, batch| recommended_peak(&model, &with(kind), batch, 1e9).value;
        use OptimizerKind::*;
        assert!((rate(Adamw, 128) / rate(Adamw, 16) - 2.0).abs() < 0.1, "cube root of eight");
        assert!((rate(Sgd, 64) / rate(Sgd, 16) - 4.0).abs() < 0.3, "four");
        assert!((rate(Adamw, 64) / rate(Lion, 64) - 5.0).abs() < 0.3);
        assert!((rate(Lamb, 64) / rate(Adamw, 64) - 5.0).abs() < 0.2);
    }

    #[test]
    fn a_model_over_rows_keeps_its_base_rate() {
        let [_, mlp, cnn] = fixtures::models();
        let found = recommended_peak(&mlp, &with(OptimizerKind::Adamw), 128, 1e6);
        assert_eq!((found.value, found.low, found.high), (1e-3, 3.3e-4, 3e-3));
        let found = recommended_peak(&cnn, &with(OptimizerKind::Adamw), 8192, 1e6);
        assert!(found.reason.contains("8,192 is past the critical batch of 4.10 k"), "{}", found.reason);
    }

    #[test]
    fn the_rate_is_at_most_the_highest_published() {
        let found = of_decoder(1e4, 16_384.0, 1e9);
        assert!((found.value - 3e-3).abs() < 1e-9, "{found:?}");
        assert!(found.reason.contains(", at most 3e-3, N 10.0 k"), "{}", found.reason);
        let largest = published_pretrainings().iter().map(|one| one.peak_learning_rate).fold(0.0, f64::max);
        assert!((largest - HIGHEST_PUBLISHED).abs() < 1e-12, "{largest}");
    }

    #[test]
    fn experts_count_as_far_as_they_are_active() {
        let (Some(experts), Some(dense)) =
            (block_parameters(&fixtures::experts()), block_parameters(&fixtures::llama()))
        else {
            unreachable!("both are decoders")
        };
        assert!(experts > dense && experts < 2.5 * dense, "two of eight experts: {experts} and {dense}");
    }

    proptest! {
        #[test]
        fn the_rate_falls_with_the_size_and_grows_with_the_batch(
            blocks in 4.0f64..12.5, batch in 3.0f64..8.0, tokens in 5.0f64..14.0,
        ) {
            let [blocks, batch, tokens] = [blocks, batch, tokens].map(|power| 10f64.powf(power));
            let at = |blocks: f64, batch: f64| of_decoder(blocks, batch, tokens);
            let found = at(blocks, batch);
            prop_assert!(found.low < found.value && found.value < found.high, "{found:?}");
            prop_assert!(found.low > 0.0 && found.value <= HIGHEST_PUBLISHED);
            let (larger, doubled) = (at(2.0 * blocks, batch).value, at(blocks, 2.0 * batch).value);
            let is_capped = found.reason.contains(", at most ");
            prop_assert!(larger < found.value || is_capped);
            let critical = batch_size::critical_tokens(tokens);
            if 2.0 * batch <= critical {
                prop_assert!(doubled > found.value || is_capped, "{doubled} of {}", found.value);
            } else if batch >= critical {
                prop_assert!(doubled < found.value);
            }
        }
    }
}
