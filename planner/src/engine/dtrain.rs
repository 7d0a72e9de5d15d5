//! dtrain's own worker: the layouts it can run, from `dtrain_protocol::supported`.

use super::{Engine, StateSupport, TrainingSpec, UnsupportedLayout, rules, state_support, unsupported};
use crate::engine::SoftwareStyle;
use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange, supported};
use dtrain_recipes::{FrozenPrecision, Model, Precision};

/// The engine of dtrain: its own worker.
#[derive(Clone, Copy, Debug)]
pub struct Dtrain;

/// State of the worker: all in f32, with adapters.
static STATE: StateSupport = StateSupport { frozen: &[FrozenPrecision::F32], ..StateSupport::PLAIN };

impl Engine for Dtrain {
    fn name(&self) -> &'static str {
        "dtrain"
    }

    fn title(&self) -> &'static str {
        "dtrain"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::Dtrain
    }

    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia]
    }

    fn state_support(&self) -> &'static StateSupport {
        &STATE
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring]
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        rules::training_settings(self, training)
            .or_else(|| untrained(&Model::Decoder(training.model.clone()), precision))
    }

    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout> {
        if let Some(missing) = self.unsupported_training(training, arrangement.precision) {
            return Some(missing);
        }
        let model = Model::Decoder(training.model.clone());
        if let Some(refusal) = supported::unsupported_reason(arrangement, &model) {
            return unsupported(refusal.reason, "docs/layouts.md says what the worker runs");
        }
        rules::of_all(&training.model, arrangement, micro_batches)
            .or_else(|| state_support::of_layout(self, arrangement))
            .or_else(|| rules::whole_heads(&training.model, arrangement))
    }
}

/// Returns the feature of `model` that the worker cannot train; `None` if it can train all.
fn untrained(model: &Model, precision: Precision) -> Option<UnsupportedLayout> {
    let missing = supported::cannot_train(model, precision)?;
    unsupported(missing.what, "megatron, torchtitan or jax may have it: `dtrain plan --on … --engine NAME`")
}
