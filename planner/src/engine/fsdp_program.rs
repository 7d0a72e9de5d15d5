//! dtrain's own program for PyTorch FSDP2, which `dtrain run` starts: the layouts it can run, as `fsdp_model.py`
//! of the Python package checks them.

use super::{Engine, FSDP, TrainingSpec, UnsupportedLayout, fsdp, rules, unsupported};
use crate::engine::SoftwareStyle;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Precision, Recompute};

/// The engine PyTorch FSDP2, through dtrain's own program.
#[derive(Clone, Copy, Debug)]
pub struct FsdpProgram;

impl Engine for FsdpProgram {
    fn name(&self) -> &'static str {
        FSDP.name()
    }

    fn title(&self) -> &'static str {
        FSDP.title()
    }

    fn style(&self) -> SoftwareStyle {
        FSDP.style()
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        FSDP.context_exchanges()
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        FSDP.unsupported_training(training, precision)
    }

    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        self.unsupported_training(training, arrangement.precision)
            .or_else(|| rules::no_pipeline(arrangement))
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| rules::exact(arrangement))
            .or_else(|| rules::whole_heads(model, arrangement))
            .or_else(|| own(arrangement))
            .or_else(|| fsdp::axes(model, arrangement))
    }
}

/// Checks what accelerate has and this program has not. It shards whatever a plan shards, at every stage.
fn own(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.layout.context.get() > 1 {
        return unsupported("context parallelism", "pin layout.context = 1");
    }
    if arrangement.recompute == Recompute::Selective {
        return unsupported("selective recompute", "pin layout.recompute = \"full\" or \"none\"");
    }
    if !matches!(arrangement.precision, Precision::F32 | Precision::Bf16) {
        return unsupported("products in f16 or fp8", "set train.precision = \"bf16\" or \"f32\"");
    }
    None
}
