//! DeepSpeed: rules read from its sources, version 0.19.8.

use super::{Cannot, Engine, Training, cannot, rules};
use crate::analytic::{PartKind, Style};
use crate::engine::emit::{Emitted, Source, deepspeed};
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Compression, OptimizerKind, Precision, ZeroStage};

/// DeepSpeed.
#[derive(Clone, Copy, Debug)]
pub struct DeepSpeed;

impl Engine for DeepSpeed {
    fn name(&self) -> &'static str {
        "deepspeed"
    }

    fn title(&self) -> &'static str {
        "DeepSpeed"
    }

    fn style(&self) -> Style {
        Style::Fsdp
    }

    fn kinds(&self) -> &'static [PartKind] {
        &[PartKind::Gpu, PartKind::Gaudi]
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring]
    }

    fn cannot_train(&self, training: &Training, precision: Precision) -> Option<Cannot> {
        optimizer(training).or_else(|| rules::hugging_face(&training.model, precision))
    }

    fn cannot(&self, training: &Training, arrangement: &Arrangement, micro_batches: u32) -> Option<Cannot> {
        let model = &training.model;
        self.cannot_train(training, arrangement.precision)
            .or_else(|| no_pipeline(arrangement))
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| sums(arrangement))
            .or_else(|| rules::whole_heads(model, arrangement))
            .or_else(|| rules::whole_blocks(arrangement))
            .or_else(|| axes(arrangement))
            .or_else(|| state(arrangement))
    }

    fn emit(&self, source: &Source) -> Emitted {
        deepspeed::emit(source)
    }
}

/// `DEEPSPEED_OPTIMIZERS` of `runtime/config.py`, and by their names those of `torch.optim`. `FusedLamb` keeps the trust ratio
/// between `min_coeff` and `max_coeff`.
fn optimizer(training: &Training) -> Option<Cannot> {
    let known = [OptimizerKind::Adamw, OptimizerKind::Lion, OptimizerKind::Sgd];
    let instead = "its Lamb bounds the trust ratio, which trains something else; use adamw, lion or sgd";
    rules::optimizer(training, &known, instead)
}

fn no_pipeline(arrangement: &Arrangement) -> Option<Cannot> {
    let instead = "it cuts pipelines in the program (PipelineModule), not in its configuration; pin layout.pipeline = 1";
    rules::no_pipeline(arrangement).map(|reason| Cannot { instead, ..reason })
}

/// Sums may be rounded on the wire (`communication_data_type`).
fn sums(arrangement: &Arrangement) -> Option<Cannot> {
    let sync = &arrangement.sync;
    match sync.compress {
        Compression::F16 | Compression::Bf16 if sync.local.is_none() && sync.staleness == 0 => None,
        _ => rules::exact(arrangement),
    }
}

fn axes(arrangement: &Arrangement) -> Option<Cannot> {
    let layout = &arrangement.layout;
    if layout.context.get() > 1 {
        return cannot(
            "context parallelism",
            "its sequence parallelism (Ulysses) is set up in the program; pin layout.context = 1",
        );
    }
    if arrangement.sequence {
        return cannot("sequence parallelism between tensor ranks", "pin layout.sequence = false");
    }
    // AutoEP keeps experts whole, on ranks that count from the nearest.
    if layout.expert.get() > 1 && arrangement.expert_fold == 1 && layout.tensor.get() > 1 {
        return cannot(
            "experts that are spread over replicas and cut along tensor ranks",
            "fold over all tensor ranks",
        );
    }
    rules::experts_from_the_nearest(arrangement)
}

/// State is sharded among all replicas; groups of them (MiCS) were removed.
fn state(arrangement: &Arrangement) -> Option<Cannot> {
    if arrangement.zero == ZeroStage::Zero0 || arrangement.shard == arrangement.replicas() {
        return None;
    }
    cannot("shard groups smaller than all replicas", "pin layout.shard to all replicas")
}
