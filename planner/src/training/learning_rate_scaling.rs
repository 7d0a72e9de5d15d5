//! Scaling of the learning rate with the batch: by the square root for Adam-like optimizers, in proportion for
//! SGD, up to the critical batch.

use crate::training::batch_size;
use dtrain_recipes::number_format::{count, thousands};
use dtrain_recipes::{Model, Optimizer, PartOutline};

/// Returns the learning rate of Adam-like optimizers, with the reason: a base rate scaled by the square root
/// of the batch, flattening towards the critical batch.
pub(super) fn adam(model: &Model, batch: u64, tokens: f64) -> (f64, String) {
    let (base, base_batch, critical, from) = base(model, tokens);
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let (whole, size) = (batch * model.sample_tokens(), (batch * model.sample_tokens()) as f64);
    let rooted = base * (size / base_batch).sqrt();
    // The surge form through (base_batch, base): rises to its peak at the critical batch, then falls.
    let surge = |b: f64| 1.0 / (0.5 * ((critical / b).sqrt() + (b / critical).sqrt()));
    let value = rooted.min(base * surge(size) / surge(base_batch));
    let unit = unit(model);
    let reason = if size > critical {
        format!(
            "{from} at {} {unit}; {} is past the critical batch of {}, where it no longer grows",
            count(base_batch),
            thousands(whole),
            count(critical)
        )
    } else {
        format!(
            "{from} at {} {unit}, scaled by the square root of the batch to {}",
            count(base_batch),
            thousands(whole)
        )
    };
    (value, reason)
}

/// Returns the learning rate of SGD, with the reason: in proportion to the batch, flat at the critical batch.
pub(super) fn sgd(model: &Model, optimizer: &Optimizer, batch: u64, tokens: f64) -> (f64, String) {
    let (_, _, critical, _) = base(model, tokens);
    #[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
    let size = (batch * model.sample_tokens()) as f64;
    let momentum = 1.0 - optimizer.beta1;
    let base_batch = if model.reads_tokens() { batch_size::optimal_tokens(tokens) } else { 256.0 };
    let base = 0.1;
    let limited = size / (1.0 + size / critical);
    let value = base * (momentum / 0.1) * limited / base_batch;
    let reason = format!(
        "{base} at {} {} and momentum 0.9, in proportion to the batch up to the critical batch of {}",
        count(base_batch),
        unit(model),
        count(critical)
    );
    (value, reason)
}

/// Returns the starting point for scaling: AdamW's base rate, the batch it is for, the critical batch, and
/// the source in words.
fn base(model: &Model, tokens: f64) -> (f64, f64, f64, String) {
    match model {
        Model::Decoder(d) => of_tokens(d.parameters().saturating_sub(d.outer_parameters()), tokens),
        Model::Custom(own) if own.reads.context().is_some() => {
            of_tokens(own.outline.blocks.iter().map(PartOutline::values).sum(), tokens)
        }
        Model::Custom(_) => (1e-3, 128.0, 4096.0, "1e-3 for a network over rows".into()),
        Model::Cnn(_) => (1e-3, 128.0, 4096.0, "1e-3 for a residual network".into()),
        Model::Mlp(_) | Model::Command(_) => (1e-3, 128.0, 4096.0, "1e-3 for a perceptron".into()),
    }
}

/// Returns the starting point for scaling ([`base`]) of a language model with `blocks` parameters in its
/// blocks.
fn of_tokens(blocks: u64, tokens: f64) -> (f64, f64, f64, String) {
    #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
    let blocks = blocks as f64;
    // Kaplan et al. 2020, equation D.1, on parameters outside the embeddings.
    let rate = (0.003_239 - 0.000_139_5 * blocks.ln()).clamp(5e-5, 3e-3);
    let from = format!("{:.1e} for {} parameters in the blocks", rate, count(blocks));
    (rate, batch_size::optimal_tokens(tokens), batch_size::critical_tokens(tokens), from)
}

fn unit(model: &Model) -> &'static str {
    if model.reads_tokens() { "tokens a step" } else { "samples a step" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::training::learning_rate::recommended_peak;
    use dtrain_recipes::OptimizerKind;
    use proptest::prelude::*;

    fn with(kind: OptimizerKind) -> Optimizer {
        Optimizer { kind, ..fixtures::adamw() }
    }

    #[test]
    fn every_rule_scales_as_it_says() {
        let model = fixtures::llama();
        let rate = |kind, batch| recommended_peak(&model, &with(kind), batch, 1e9).value;
        use OptimizerKind::*;
        assert!((rate(Adamw, 64) / rate(Adamw, 16) - 2.0).abs() < 0.1, "root of four");
        assert!((rate(Sgd, 64) / rate(Sgd, 16) - 4.0).abs() < 0.3, "four");
        assert!((rate(Adamw, 64) / rate(Lion, 64) - 5.0).abs() < 0.2);
        assert!(rate(Lamb, 64) > rate(Adamw, 64));
    }

    proptest! {
        #[test]
        fn the_rate_never_grows_past_the_critical_batch(batch in 1u64..100_000) {
            let (model, adamw) = (fixtures::llama(), fixtures::adamw());
            let at = |b| recommended_peak(&model, &adamw, b, 1e8).value;
            let critical = batch_size::critical_tokens(1e8) / 256.0;
            #[expect(clippy::cast_precision_loss, reason = "small")]
            if batch as f64 > critical {
                prop_assert!(at(2 * batch) <= at(batch));
            } else {
                prop_assert!(at(batch + 1) >= at(batch) * 0.95);
            }
            prop_assert!(at(batch).is_finite() && at(batch) > 0.0);
        }
    }
}
