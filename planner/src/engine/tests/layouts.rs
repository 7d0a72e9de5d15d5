//! Models and layouts for the test cases.

use super::*;
use crate::fixtures;
use dtrain_recipes::Decoder;
use std::num::NonZeroU32;

pub(super) fn n(degree: u32) -> NonZeroU32 {
    NonZeroU32::new(degree).expect("degrees start at one")
}

pub(super) fn decoder(model: Model) -> Decoder {
    let Model::Decoder(model) = model else { unreachable!("the sample is a decoder") };
    model
}

/// Returns a Llama whose heads divide as the cases need.
pub(super) fn llama() -> Decoder {
    let model = decoder(fixtures::llama());
    Decoder { layers: 8, hidden: 64, heads: 8, kv_heads: 4, ffn: 256, context: 128, tied: false, ..model }
}

pub(super) fn mixtral() -> Decoder {
    Decoder { experts: decoder(fixtures::experts()).experts, ..llama() }
}

pub(super) fn gpt2() -> Decoder {
    let model = decoder(fixtures::gpt2());
    Decoder { layers: 8, hidden: 64, heads: 8, kv_heads: 8, ffn: 256, context: 128, ..model }
}

/// Returns an arrangement on GPUs in bf16, with state sharded among all replicas.
pub(super) fn on_gpus(layout: Layout, zero: ZeroStage) -> Arrangement {
    let whole =
        Arrangement { layout, device: DeviceKind::Cuda, precision: Precision::Bf16, ..Arrangement::SINGLE };
    let shard = if zero == ZeroStage::Zero0 { 1 } else { whole.replicas() };
    Arrangement { zero, shard, ..whole }
}

pub(super) fn data(data: u32) -> Layout {
    Layout::replicas(n(data))
}

/// Returns a pipeline of four stages, without tied embeddings.
pub(super) fn piped(schedule: PipelineSchedule, chunks: u32, zero: ZeroStage) -> Arrangement {
    let layout = Layout { pipeline: n(4), ..data(2) };
    Arrangement { schedule, chunks, ..on_gpus(layout, zero) }
}

pub(super) fn tensor(tensor: u32, zero: ZeroStage) -> Arrangement {
    on_gpus(Layout { tensor: n(tensor), ..data(2) }, zero)
}

pub(super) fn context(exchange: ContextExchange, zero: ZeroStage) -> Arrangement {
    let layout = Layout { context: n(2), ..data(2) };
    Arrangement { context_exchange: exchange, ..on_gpus(layout, zero) }
}

pub(super) fn experts(tensor: u32, expert: u32, fold: u32, zero: ZeroStage) -> Arrangement {
    let layout = Layout { tensor: n(tensor), expert: n(expert), ..data(2) };
    Arrangement { expert_fold: fold, sequence: tensor > 1, ..on_gpus(layout, zero) }
}

pub(super) fn with(arrangement: Arrangement, change: fn(&mut Arrangement)) -> Arrangement {
    let mut changed = arrangement;
    change(&mut changed);
    changed
}
