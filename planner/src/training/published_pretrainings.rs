//! Published pretrainings of decoders, to compare recommendations with.

use super::quantity::quantity;
use serde::Deserialize;
use std::sync::LazyLock;

/// A published pretraining of a decoder with an Adam-like optimizer.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PublishedPretraining {
    /// Name of the model.
    pub name: String,
    /// Parameters in the blocks; of experts, those that are active for a token.
    pub block_parameters: f64,
    /// Tokens of a step.
    pub batch_tokens: f64,
    /// Tokens of the whole training.
    pub tokens: f64,
    /// Peak learning rate.
    pub peak_learning_rate: f64,
    /// False if the batch is inferred from that of a sibling.
    pub batch_is_published: bool,
    /// Report or configuration file with the values.
    #[cfg(test)]
    pub source: String,
}

static PRETRAININGS: LazyLock<Vec<PublishedPretraining>> = LazyLock::new(|| {
    let table = include_bytes!("data/published_pretrainings.csv");
    let rows = csv::Reader::from_reader(table.as_slice()).into_deserialize();
    rows.collect::<Result<_, _>>().expect("a test reads the file")
});

/// Factor up to which two sizes, rates or batches count as about the same.
pub(super) const ABOUT: f64 = 1.5;

/// Factor up to which two lengths of training count as about the same.
const ABOUT_AS_LONG: f64 = 2.0;

/// Returns all published pretrainings of the table.
pub(super) fn published_pretrainings() -> &'static [PublishedPretraining] {
    &PRETRAININGS
}

/// Returns a sentence with the published pretrainings of about this size whose peak learning rate differs
/// from `rate` by more than [`ABOUT`]; `None` if there are none. Where all their batches differ from
/// `batch_tokens` by more than a factor of two, it names their batches.
pub(super) fn differing_rates(block_parameters: f64, batch_tokens: f64, rate: f64) -> Option<String> {
    let (near, mut far): (Vec<_>, Vec<_>) =
        of_size(block_parameters).partition(|one| is_within(one.peak_learning_rate / rate, ABOUT));
    if far.is_empty() {
        return None;
    }
    far.sort_by(|a, b| a.peak_learning_rate.total_cmp(&b.peak_learning_rate));
    let same_rate = far.chunk_by(|a, b| is_within(a.peak_learning_rate / b.peak_learning_rate, 1.001));
    let groups = same_rate.enumerate().map(|(place, group)| {
        let verb = if place == 0 { " used" } else { "" };
        format!("{}{verb} {:e}", joined(&names(group)), group[0].peak_learning_rate)
    });
    let mut sentence = format!("At this size {}", joined(&groups.collect::<Vec<_>>()));
    let batches = || far.iter().map(|one| one.batch_tokens);
    let (least, most) = (batches().fold(f64::INFINITY, f64::min), batches().fold(0.0, f64::max));
    if least > 2.0 * batch_tokens || 2.0 * most < batch_tokens {
        let range = if is_within(most / least, 1.1) {
            quantity(most)
        } else {
            format!("{} to {}", quantity(least), quantity(most))
        };
        sentence += &format!(" with {range} tokens a step");
    }
    if !near.is_empty() {
        sentence += &format!("; {} within a factor of {ABOUT}", names_are(&near));
    }
    Some(sentence)
}

/// Returns a sentence with the published pretrainings of about this size and length whose batch differs from
/// `batch_tokens` by more than [`ABOUT`]; `None` if there are none.
pub(super) fn differing_batches(block_parameters: f64, length: f64, batch_tokens: f64) -> Option<String> {
    let mut far: Vec<_> = of_size(block_parameters)
        .filter(|one| one.batch_is_published && is_within(one.tokens / length, ABOUT_AS_LONG))
        .filter(|one| !is_within(one.batch_tokens / batch_tokens, ABOUT))
        .collect();
    far.sort_by(|a, b| a.batch_tokens.total_cmp(&b.batch_tokens));
    let same_batch = far.chunk_by(|a, b| quantity(a.batch_tokens) == quantity(b.batch_tokens));
    let groups = same_batch.enumerate().map(|(place, group)| {
        let verb = if place == 0 { " used" } else { "" };
        format!("{}{verb} {}", joined(&names(group)), quantity(group[0].batch_tokens))
    });
    let groups: Vec<_> = groups.collect();
    (!groups.is_empty()).then(|| format!("At this size and length {} tokens a step", joined(&groups)))
}

/// Returns the published pretrainings whose size is within [`ABOUT`] of `block_parameters`.
fn of_size(block_parameters: f64) -> impl Iterator<Item = &'static PublishedPretraining> {
    published_pretrainings()
        .iter()
        .filter(move |one| is_within(one.block_parameters / block_parameters, ABOUT))
}

/// Returns `true` if `ratio` is at most `factor` and at least its inverse.
pub(super) fn is_within(ratio: f64, factor: f64) -> bool {
    ratio.ln().abs() <= factor.ln() + 1e-9
}

fn names(all: &[&PublishedPretraining]) -> Vec<String> {
    all.iter().map(|one| one.name.clone()).collect()
}

/// Returns the names of at most three trainings, or the first two and the number of others, with `is` or
/// `are`.
fn names_are(near: &[&PublishedPretraining]) -> String {
    match near {
        [one] => format!("{} is", one.name),
        [_, _] | [_, _, _] => format!("{} are", joined(&names(near))),
        [one, two, others @ ..] => format!("{}, {} and {} more are", one.name, two.name, others.len()),
        [] => String::new(),
    }
}

/// Joins words as a sentence does: `a, b and c`.
fn joined(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::training::batch_size::{TrainingBudget, recommended};
    use crate::training::learning_rate::recommended_peak;
    use crate::training::learning_rate_scaling::of_decoder;
    use dtrain_recipes::{Decoder, Experts, Model, Train};

    /// Trainings whose rate is met within [`ABOUT`].
    const MET: [&str; 15] = [
        "GPT-3 175B",
        "BLOOM 176B",
        "Llama 33B",
        "Llama 2 7B",
        "Llama 2 70B",
        "Llama 3 8B",
        "Llama 3 70B",
        "Llama 3 405B",
        "OLMo 7B",
        "OLMo 2 7B",
        "Qwen 7B",
        "Yi 34B",
        "DeepSeek 7B",
        "TinyLlama 1.1B",
        "nanoGPT characters",
    ];

    fn published(name: &str) -> &'static PublishedPretraining {
        let found = published_pretrainings().iter().find(|one| one.name == name);
        found.unwrap_or_else(|| panic!("{name} is in the table"))
    }

    /// Returns a decoder of the Llama family with the shape of a published one.
    fn llama([layers, hidden, heads, kv_heads, ffn, vocab, context]: [u32; 7]) -> Decoder {
        let Model::Decoder(small) = fixtures::llama() else { unreachable!("it is a decoder") };
        Decoder { layers, hidden, heads, kv_heads, ffn, vocab, context, ..small }
    }

    #[test]
    fn every_published_rate_is_met_or_the_text_names_it() {
        let mut outside = 0;
        for one in published_pretrainings() {
            let found = of_decoder(one.block_parameters, one.batch_tokens, one.tokens);
            let ratio = found.value / one.peak_learning_rate;
            let (name, rate) = (&one.name, format!("{:e}", one.peak_learning_rate));
            if is_within(ratio, ABOUT) {
                assert!(!found.reason.contains(&format!("{name} used")), "{name}: {}", found.reason);
            } else {
                outside += 1;
                assert!(!MET.contains(&name.as_str()), "{name}: {ratio}");
                let sentence = found.reason.split(". At this size ").nth(1).unwrap_or_default();
                assert!(sentence.contains(name) && sentence.contains(&rate), "{name}: {}", found.reason);
            }
            assert!(one.source.contains("arXiv") || one.source.contains('/'), "{name} has no source");
        }
        assert!((20..34).contains(&outside), "{outside} of 53 are outside");
    }

    #[test]
    fn every_published_batch_is_met_or_the_text_names_it() {
        let mut met = 0;
        for one in published_pretrainings().iter().filter(|one| one.batch_is_published) {
            // One block with the size of all, and samples of 2,048 tokens.
            let hidden = 2048_u32;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are counts")]
            let ffn =
                ((one.block_parameters / 3.0 / f64::from(hidden)) as u32).saturating_sub(3 * hidden / 3);
            let model = Model::Decoder(llama([1, hidden, 16, 8, ffn.max(1), 32_000, 2048]));
            let budget = TrainingBudget { samples: Some(one.tokens / 2048.0), steps: None };
            let found = recommended(&model, budget, None, 64);
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let ratio = found.value as f64 * 2048.0 / one.batch_tokens;
            if is_within(ratio, ABOUT) {
                met += 1;
            } else if one.block_parameters > 2e7 {
                let (name, batch) = (&one.name, quantity(one.batch_tokens));
                let sentence = found.reason.split(". At this size and length ").nth(1).unwrap_or_default();
                assert!(sentence.contains(name) && sentence.contains(&batch), "{name}: {}", found.reason);
            }
        }
        assert!(met > 20, "{met}");
    }

    #[test]
    fn the_shapes_of_published_models_have_their_rates() {
        let [l7, l70, l405] = [
            [32, 4096, 32, 32, 11_008, 32_000, 4096],
            [80, 8192, 64, 8, 28_672, 32_000, 4096],
            [126, 16_384, 128, 8, 53_248, 128_256, 8192],
        ];
        let mut tried =
            vec![("Llama 2 7B", llama(l7)), ("Llama 2 70B", llama(l70)), ("Llama 3 405B", llama(l405))];
        tried.push(("Llama 3 8B", llama([32, 4096, 32, 8, 14_336, 128_256, 8192])));
        tried.push(("Qwen 7B", llama([32, 4096, 32, 32, 11_008, 151_936, 2048])));
        tried.push(("TinyLlama 1.1B", llama([22, 2048, 32, 4, 5632, 32_000, 2048])));
        for (name, model) in tried {
            let one = published(name);
            let blocks = model.parameters() - model.outer_parameters();
            let (context, model) = (f64::from(model.context), Model::Decoder(model));
            #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
            let difference = blocks as f64 / one.block_parameters - 1.0;
            assert!(difference.abs() < 0.01, "{name}: {blocks} parameters in blocks");
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of samples"
            )]
            let batch = (one.batch_tokens / context) as u64;
            let found = recommended_peak(&model, &Train::example(), batch, one.tokens);
            assert!(is_within(found.value / one.peak_learning_rate, ABOUT), "{name}: {found:?}");
            let is_in_range = (found.low..found.high).contains(&one.peak_learning_rate);
            assert!(is_in_range, "{name}: {found:?}");
        }
    }

    #[test]
    fn a_plan_tells_which_published_trainings_chose_otherwise() {
        let text = of_decoder(6.98e9, 4.19e6, 2e12).reason;
        assert_eq!(
            text,
            "fit to 108 published pretrainings and Step Law; 0.0235 N^(-5/12) B^(1/3), N 6.98 B in blocks, \
             B 4.19 M tokens. At this size GPT-3 6.7B, Pythia 6.9B and BLOOM 7.1B used 1.2e-4 and Falcon 7B 6e-4; \
             Llama 2 7B, Llama 3 8B and 5 more are within a factor of 1.5"
        );
        let small_batch = of_decoder(6.98e9, 65_536.0, 2e9).reason;
        assert!(small_batch.contains(" with 1.05 M to 9.44 M tokens a step"), "{small_batch}");
        assert_eq!(differing_rates(1e6, 1e4, 1e-3), None, "none is as small");
        let text = differing_batches(1.7e11, 3e11, 2.1e6).unwrap_or_default();
        assert_eq!(
            text,
            "At this size and length GPT-3 175B used 3.20 M and BLOOM 176B 4.19 M tokens a step"
        );
        assert_eq!(differing_batches(1.7e11, 1e10, 2.1e6), None, "none is as short");
    }

    #[test]
    fn experts_are_compared_by_what_is_active() {
        let base = llama([61, 7168, 128, 128, 2048, 129_280, 4096]);
        let experts = Experts { shared_ffn: Some(2048), ..Experts::new(256, 8) };
        let model = Model::Decoder(Decoder { experts: Some(experts), ..base });
        let found = recommended_peak(&model, &Train::example(), 15_360, 14.8e12);
        assert!(found.reason.contains("N 36.8 B in blocks"), "{}", found.reason);
    }
}
