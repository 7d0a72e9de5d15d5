//! Learning rate of a training that starts from pretrained weights or trains adapters.

use super::decision::Decision;
use super::quantity::quantity;

/// Weights that a fine-tuning trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunedWeights {
    /// All weights.
    All,
    /// Low-rank adapters (LoRA) alone.
    Adapters,
}

/// Number of parameters in the blocks up to which the learning rate does not depend on the size.
const SAME_UP_TO: f64 = 13e9;

/// Returns the learning rate of AdamW, not rounded, for the fine-tuning of a decoder with `blocks` parameters
/// in its blocks.
///
/// All weights: 2e-5 up to 13 B (Alpaca, Vicuna, Llama 2 chat, Tülu 2, Zephyr, and the defaults of TRL,
/// torchtune and axolotl), and beyond in proportion to `N^(-5/12)`, as a pretraining's: 1e-5 at 70 B (Tülu 2
/// 70B), 5e-6 at 400 B. Adapters: ten times that (LoRA Without Regret), within 1e-4 to 3e-4 (Alpaca-LoRA,
/// Guanaco, Tülu 2, Zephyr, torchtune, axolotl).
pub(super) fn adam(weights: TunedWeights, blocks: f64) -> Decision<f64> {
    let full = 2e-5 * (blocks / SAME_UP_TO).max(1.0).powf(-5.0 / 12.0);
    let size = quantity(blocks);
    match weights {
        TunedWeights::All => Decision {
            value: full,
            low: full / 5.0,
            high: full * 5.0,
            reason: format!(
                "fine-tuning: 2e-5 up to 13 B, 1e-5 at 70 B, as Alpaca, Llama 2 chat and Tülu 2; N {size} in \
                 blocks"
            ),
        },
        TunedWeights::Adapters => {
            let value = (10.0 * full).clamp(1e-4, 3e-4);
            Decision {
                value,
                low: value / 2.0,
                high: 3e-4,
                reason: format!(
                    "10 times the rate of full fine-tuning (LoRA Without Regret), 1e-4 to 3e-4 as QLoRA and \
                     torchtune; N {size} in blocks"
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::training::learning_rate::recommended_peak;
    use dtrain_recipes::{AdaptedLayers, Decoder, Lora, Model, Optimizer, OptimizerKind, Train};

    fn from_weights() -> Train {
        Train { from: Some("model".into()), ..Train::example() }
    }

    #[test]
    fn published_fine_tunings_are_met() {
        // Parameters in the blocks and learning rate of Llama-2-chat 7B, Vicuna 13B and Tülu 2 70B.
        for (blocks, published) in [(6.48e9, 2e-5), (12.7e9, 2e-5), (68.5e9, 1e-5)] {
            let found = adam(TunedWeights::All, blocks);
            assert!((found.value / published - 1.0).abs() < 0.02, "{blocks}: {found:?}");
        }
        // Lower and higher ones: Tülu 3 8B and 70B, DeepSeek-V3 (35 B active), phi-1.
        for (blocks, published) in [(6.98e9, 5e-6), (68.5e9, 2e-6), (35e9, 5e-6), (1.21e9, 1e-4)] {
            let found = adam(TunedWeights::All, blocks);
            let range = found.low * 0.999..=found.high * 1.001;
            assert!(range.contains(&published), "{blocks}: {found:?}");
            assert!(found.low < found.value && found.value < found.high);
        }
        // alpaca-lora 7B, Guanaco 13B, Guanaco 65B, torchtune 70B.
        for (blocks, published) in [(6.48e9, 3e-4), (12.7e9, 2e-4), (64.8e9, 1e-4), (68.5e9, 3e-4)] {
            let found = adam(TunedWeights::Adapters, blocks);
            let range = found.low * 0.999..=found.high * 1.001;
            assert!(range.contains(&published) && range.contains(&found.value), "{blocks}: {found:?}");
            assert!(found.low < found.value && found.value < found.high);
        }
    }

    #[test]
    fn weights_to_start_from_and_adapters_have_a_rate_of_their_own() {
        let Model::Decoder(llama) = fixtures::llama() else { unreachable!("it is a decoder") };
        let rate = |train: &Train, lora| {
            let model = Model::Decoder(Decoder { lora, ..llama.clone() });
            recommended_peak(&model, train, 32, 1e8)
        };
        let lora = Some(Lora { rank: 8, alpha: 16.0, layers: AdaptedLayers::All, base: None });
        let full = rate(&from_weights(), None);
        assert_eq!((full.value, full.low, full.high), (2e-5, 4e-6, 1e-4));
        assert!(full.reason.starts_with("fine-tuning: 2e-5 up to 13 B"), "{}", full.reason);
        let adapters = rate(&from_weights(), lora);
        assert_eq!((adapters.value, adapters.low, adapters.high), (2e-4, 1e-4, 3e-4));
        assert_eq!(rate(&Train::example(), lora), adapters, "weights may come with `run --from`");
        assert!(rate(&Train::example(), None).value > 5e-4);
    }

    #[test]
    fn other_optimizers_keep_their_relation_to_adamw() {
        let model = fixtures::llama();
        let rate = |kind, from: bool| {
            let optimizer = Optimizer { kind, ..fixtures::adamw() };
            let start = if from { from_weights() } else { Train::example() };
            recommended_peak(&model, &Train { optimizer, ..start }, 32, 1e8).value
        };
        let adamw = rate(OptimizerKind::Adamw, true) / rate(OptimizerKind::Adamw, false);
        for kind in [OptimizerKind::Lion, OptimizerKind::Lamb, OptimizerKind::Sgd] {
            let ratio = rate(kind, true) / rate(kind, false);
            assert!((ratio / adamw - 1.0).abs() < 0.1, "{kind:?}: {ratio} and {adamw}");
        }
    }
}
