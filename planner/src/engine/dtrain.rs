//! dtrain's own worker: `dtrain_protocol::ability` says what it can run.

use super::{Cannot, Engine, Training, cannot, rules};
use crate::analytic::Style;
use crate::engine::emit::{Emitted, Source, own};
use dtrain_protocol::{Arrangement, ContextExchange, ability};
use dtrain_recipes::{Model, Precision};

/// dtrain's own worker.
#[derive(Clone, Copy, Debug)]
pub struct Dtrain;

impl Engine for Dtrain {
    fn name(&self) -> &'static str {
        "dtrain"
    }

    fn title(&self) -> &'static str {
        "dtrain"
    }

    fn style(&self) -> Style {
        Style::Dtrain
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring]
    }

    fn cannot_train(&self, training: &Training, precision: Precision) -> Option<Cannot> {
        untrained(&Model::Decoder(training.model.clone()), precision)
    }

    fn cannot(&self, training: &Training, arrangement: &Arrangement, micro_batches: u32) -> Option<Cannot> {
        let model = Model::Decoder(training.model.clone());
        if let Some(missing) = untrained(&model, arrangement.precision) {
            return Some(missing);
        }
        if let Some(refusal) = ability::refusal(arrangement, &model) {
            return cannot(refusal.reason, "docs/layouts.md says what the worker runs");
        }
        rules::of_all(&training.model, arrangement, micro_batches)
            .or_else(|| rules::whole_heads(&training.model, arrangement))
    }

    fn emit(&self, source: &Source) -> Emitted {
        own::emit(source)
    }
}

/// What of a model the worker does not train.
fn untrained(model: &Model, precision: Precision) -> Option<Cannot> {
    let missing = ability::cannot_train(model, precision)?;
    cannot(missing.what, "megatron, torchtitan or jax may have it: `dtrain plan --on … --engine NAME`")
}
