//! Unigram baseline: the loss of a model that knows only how often each token occurs.

use crate::context::Context;
use dtrain_planner::Plan;
use dtrain_worker::data::{Batch, IGNORED, open};
use std::collections::BTreeMap;

/// Maximum number of validation samples whose tokens are counted.
const MOST: u64 = 4096;

/// Returns the unigram entropy of the validation data in nats per token; `None` if they are not text or
/// cannot be read.
pub(crate) fn unigram_entropy(context: &Context, plan: &Plan) -> Option<f64> {
    let data = plan.recipe.data.as_ref()?;
    let cache = context.home.path().join("cache");
    let opened = open(data, &plan.data_root, &plan.recipe.model, &cache).ok()?;
    let indices: Vec<u64> = (0..opened.valid.len().min(MOST)).collect();
    let Batch::Tokens { mut targets, .. } = opened.valid.read(&indices).ok()? else { return None };
    targets.retain(|target| *target != IGNORED);
    Some(entropy_of(&targets))
}

/// Returns the entropy of the frequencies of `tokens`, in nats per token.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn entropy_of(tokens: &[u32]) -> f64 {
    let mut counts = BTreeMap::<u32, u64>::new();
    for token in tokens {
        *counts.entry(*token).or_default() += 1;
    }
    let total = tokens.len() as f64;
    counts.values().map(|count| *count as f64 / total).map(|share| -share * share.ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tokens_equally_often_are_one_bit() {
        assert!((entropy_of(&[1, 2, 2, 1]) - std::f64::consts::LN_2).abs() < 1e-12);
        assert!(entropy_of(&[7, 7, 7]).abs() < 1e-12);
    }
}
