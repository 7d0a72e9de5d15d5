//! dtrain's own worker: `dtrain_protocol::ability` says what it can run.

use super::{Cannot, Engine, cannot};
use crate::analytic::Style;
use crate::emit::{EmitError, Emitted, Source, own};
use crate::schedule::{Shape, is_possible};
use dtrain_protocol::{Arrangement, ContextExchange, ability};
use dtrain_recipes::{Decoder, Model, Precision};

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
        Style::Fsdp
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring]
    }

    fn cannot_train(&self, _: &Decoder, _: Precision) -> Option<Cannot> {
        None
    }

    fn cannot(&self, model: &Decoder, arrangement: &Arrangement, micro_batches: u32) -> Option<Cannot> {
        if let Some(what) = ability::refusal(arrangement, &Model::Decoder(model.clone())) {
            return cannot(what.reason, "docs/layouts.md says what the worker runs");
        }
        let shape = Shape {
            stages: arrangement.layout.pipeline.get(),
            chunks: arrangement.chunks,
            micros: micro_batches,
        };
        if is_possible(arrangement.schedule, shape) {
            return None;
        }
        cannot(
            "micro-batches of an interleaved pipeline that are no multiple of its stages",
            "pin a layout.micro_batch that makes a multiple of layout.pipeline",
        )
    }

    fn emit(&self, source: &Source) -> Result<Emitted, EmitError> {
        own::emit(source)
    }
}
