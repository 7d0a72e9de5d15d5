//! Layouts that an engine has, and that it cannot train when `dtrain run` starts it.

use super::{UnsupportedLayout, unsupported};
use dtrain_protocol::{Arrangement, DeviceKind};
use dtrain_recipes::{Decoder, TrainingEngine};

/// Tokens of a block of FlexAttention: torchtitan's context parallelism divides sequences into whole blocks.
const FLEX_BLOCK: u32 = 128;

/// Returns the reason why `engine`, started by `dtrain run`, cannot train `model` in a layout; `None` if it
/// can.
pub fn unsupported_in_run(
    engine: TrainingEngine,
    model: &Decoder,
    arrangement: &Arrangement,
) -> Option<UnsupportedLayout> {
    if engine.is_foreign() && arrangement.device == DeviceKind::Wgpu {
        return unsupported("GPUs through wgpu", "set cluster.devices = \"cuda\" or \"cpu\"");
    }
    match engine {
        TrainingEngine::Dtrain | TrainingEngine::Auto | TrainingEngine::Fsdp => None,
        TrainingEngine::Torchtitan => torchtitan(model, arrangement),
    }
}

fn torchtitan(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let ranks = arrangement.layout.context.get();
    if ranks > 1 && !model.context.is_multiple_of(FLEX_BLOCK * ranks) {
        return unsupported(
            "sequences that are no multiple of 128 tokens per context rank",
            "pin layout.context = 1",
        );
    }
    None
}
