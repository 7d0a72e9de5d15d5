//! Enumerates the layouts and arrangements of a number of ranks that the recipe leaves open.

use crate::hardware::GpuSpec;
use crate::layout::batch_split::divisors;
use crate::layout::rejection::Rejection;
use crate::layout::space::recompute_options::recompute_options;
use crate::pipeline_schedule::{PipelineShape, is_possible};
use dtrain_protocol::{Arrangement, Axis, DeviceKind, Layout};
use dtrain_recipes::{
    LayoutPins, Model, PipelineSchedule, Precision, Recipe, StatePolicy, Tunable, ZeroStage,
};
use std::num::NonZeroU32;

/// Most chunks per pipeline stage to try, unless the recipe sets more: the number of messages grows with
/// them.
const CHUNKS_MOST: u32 = 4;

/// Enumerates all layouts of `ranks` ranks that have the degrees pinned in the recipe, in a fixed order.
pub(super) fn enumerate_layouts(ranks: u32, pins: &LayoutPins) -> Vec<Layout> {
    let pin = |axis| match axis {
        Axis::Tensor => pins.tensor,
        Axis::Context => pins.context,
        Axis::Expert => pins.expert,
        Axis::Data => pins.data,
        Axis::Pipeline => pins.pipeline,
    };
    let mut found = vec![(Vec::new(), ranks)];
    for axis in Axis::ALL {
        let cut = |(degrees, left): (Vec<u32>, u32)| {
            let ways = divisors(u64::from(left)).into_iter().filter_map(|d| u32::try_from(d).ok());
            let ways: Vec<u32> = ways.filter(|d| pin(axis).is_none_or(|pinned| pinned == *d)).collect();
            ways.into_iter().map(move |d| {
                let mut degrees = degrees.clone();
                degrees.push(d);
                (degrees, left / d)
            })
        };
        found = found.into_iter().flat_map(cut).collect();
    }
    let whole = found.into_iter().filter(|(_, left)| *left == 1);
    whole.filter_map(|(degrees, _)| layout(&degrees)).collect()
}

/// Returns the layout with the given degrees, one for each axis in the order of [`Axis::ALL`].
fn layout(degrees: &[u32]) -> Option<Layout> {
    let degree = |axis: Axis| NonZeroU32::new(*degrees.get(axis as usize)?);
    Some(Layout {
        tensor: degree(Axis::Tensor)?,
        context: degree(Axis::Context)?,
        expert: degree(Axis::Expert)?,
        data: degree(Axis::Data)?,
        pipeline: degree(Axis::Pipeline)?,
    })
}

/// Returns a rejection if a degree of `layout` does not divide its dimension of the model or a pinned
/// setting, with any engine; `None` if all do.
pub(super) fn indivisible(recipe: &Recipe, layout: &Layout) -> Option<Rejection> {
    let pins = &recipe.layout;
    let check = |what: &str, size: u32, degree: u32| {
        let uneven = !size.is_multiple_of(degree);
        uneven.then(|| Rejection::DoesNotDivide { dimension: what.into(), size, degree })
    };
    let decoder = match &recipe.model {
        Model::Decoder(d) => {
            let (tensor, context) = (layout.tensor.get(), layout.context.get());
            // Every rank holds an early and a late piece of a sequence, so that all of them have equal work.
            let pieces = if context > 1 { 2 * context } else { 1 };
            let rows = if pins.sequence == Some(true) { context * tensor } else { 1 };
            check("model.heads", d.heads, tensor)
                .or_else(|| check("model.kv_heads", d.kv_heads, tensor))
                .or_else(|| check("model.ffn", d.ffn, tensor))
                .or_else(|| check("model.experts", d.experts?.count, layout.expert.get()))
                // It may divide unevenly, but every rank needs a part of it.
                .or_else(|| check("model.vocab", d.vocab, tensor).filter(|_| d.vocab < tensor))
                .or_else(|| check("model.context", d.context, pieces))
                .or_else(|| check("model.context", d.context, rows))
        }
        Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) | Model::Command(_) => None,
    };
    let replicas = Arrangement { layout: *layout, ..Arrangement::SINGLE }.replicas();
    let stages = layout.pipeline.get();
    let chunks = match pins.schedule {
        Some(PipelineSchedule::Interleaved) => pins.chunks.unwrap_or(2),
        Some(_) | None => 1,
    };
    let runs = if stages > 1 { stages * chunks } else { 1 };
    let too_deep = (runs > 1 && runs > recipe.model.blocks()).then(|| Rejection::DoesNotDivide {
        dimension: "the model's blocks".into(),
        size: recipe.model.blocks(),
        degree: runs,
    });
    let shard = pins.shard.unwrap_or(1);
    decoder.or(too_deep).or_else(|| check("the number of replicas", replicas, shard))
}

/// Returns the number of which the micro-batches of a step must be a multiple: see
/// [`crate::pipeline_schedule::is_possible`].
pub(super) fn round(arrangement: &Arrangement) -> u32 {
    let stages = arrangement.layout.pipeline.get();
    let shape = PipelineShape { stages, chunks: arrangement.chunks, micros: 1 };
    if is_possible(arrangement.schedule, shape) { 1 } else { stages }
}

/// Enumerates the arrangements of one layout that the recipe leaves open.
pub(super) fn enumerate_arrangements(
    recipe: &Recipe,
    layout: Layout,
    device: DeviceKind,
    part: Option<&GpuSpec>,
) -> Vec<Arrangement> {
    let pins = &recipe.layout;
    let base = Arrangement { layout, device, ..Arrangement::SINGLE };
    // A single replica needs no synchronization.
    let sync = if base.replicas() > 1 { recipe.sync } else { base.sync };
    let state = recipe.train.state.policy(StatePolicy::PLAIN);
    let base = Arrangement { sync, state, ..base };
    let mut all = vec![base];
    let mut each = |options: &dyn Fn(&Arrangement) -> Vec<Arrangement>| {
        all = all.iter().flat_map(options).collect();
    };
    each(&|a| {
        let all = precisions(&recipe.train.precision, part).into_iter();
        all.map(|precision| Arrangement { precision, ..*a }).collect()
    });
    each(&|a| zeros(pins.zero, a.replicas()).into_iter().map(|zero| Arrangement { zero, ..*a }).collect());
    each(&|a| shards(recipe, a).into_iter().map(|shard| Arrangement { shard, ..*a }).collect());
    each(&|a| {
        let all = sequences(recipe, &a.layout).into_iter();
        all.map(|sequence| Arrangement { sequence, ..*a }).collect()
    });
    each(&|a| {
        let all = schedules(pins, layout, recipe.model.blocks()).into_iter();
        all.map(|(schedule, chunks)| Arrangement { schedule, chunks, ..*a }).collect()
    });
    each(&|a| {
        let all = recompute_options(pins, a, recipe.model.blocks()).into_iter();
        all.map(|(recompute, recompute_every)| Arrangement { recompute, recompute_every, ..*a }).collect()
    });
    all
}

/// Returns the precisions to try on `part`.
fn precisions(choice: &Tunable<Precision>, part: Option<&GpuSpec>) -> Vec<Precision> {
    match choice {
        Tunable::Pinned(precision) => vec![*precision],
        Tunable::Among(all) => all.clone(),
        Tunable::Auto | Tunable::Log { .. }
            if part.is_some_and(|part| !part.has_precision(Precision::Bf16)) =>
        {
            vec![Precision::F32, Precision::F16]
        }
        // bf16 is as fast as f16, and needs no loss scale.
        Tunable::Auto | Tunable::Log { .. } => vec![Precision::F32, Precision::Bf16],
    }
}

/// Returns the ZeRO stages to try: the pinned one, otherwise all, or only stage 0 for a single replica.
fn zeros(pinned: Option<ZeroStage>, replicas: u32) -> Vec<ZeroStage> {
    match pinned {
        Some(zero) => vec![zero],
        None if replicas == 1 => vec![ZeroStage::Zero0],
        None => vec![ZeroStage::Zero0, ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero3],
    }
}

/// Returns the sizes of the shard group to try: all replicas, or those of one host, whose links are faster.
fn shards(recipe: &Recipe, arrangement: &Arrangement) -> Vec<u32> {
    let replicas = arrangement.replicas();
    let hosts = recipe.cluster.host_count();
    match recipe.layout.shard {
        _ if arrangement.zero == ZeroStage::Zero0 => vec![1],
        Some(shard) => vec![shard],
        None if hosts > 1 && replicas > hosts && replicas.is_multiple_of(hosts) => {
            vec![replicas, replicas / hosts]
        }
        None => vec![replicas],
    }
}

/// Returns the settings of sequence parallelism to try: off, and on where the sequence length is divisible.
fn sequences(recipe: &Recipe, layout: &Layout) -> Vec<bool> {
    let tensor = layout.tensor.get();
    let divides = match &recipe.model {
        Model::Decoder(d) => d.context.is_multiple_of(layout.context.get() * tensor),
        Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) | Model::Command(_) => false,
    };
    match recipe.layout.sequence {
        _ if tensor == 1 => vec![false],
        Some(sequence) => vec![sequence],
        None if divides => vec![false, true],
        None => vec![false],
    }
}

/// Returns the pipeline schedules to try, each with its number of chunks per stage.
fn schedules(pins: &LayoutPins, layout: Layout, blocks: u32) -> Vec<(PipelineSchedule, u32)> {
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    let stages = layout.pipeline.get();
    if stages == 1 {
        return vec![(OneForwardOneBackward, 1)];
    }
    let chunks: Vec<u32> = match pins.chunks {
        Some(chunks) => vec![chunks],
        None => (1..=CHUNKS_MOST).collect(),
    };
    let pinned = |schedule: &PipelineSchedule| pins.schedule.is_none_or(|pinned| pinned == *schedule);
    let all = [OneForwardOneBackward, ZeroBubble, Interleaved, Gpipe].into_iter().filter(pinned);
    let with_chunks = |schedule| chunks.iter().map(move |chunks| (schedule, *chunks));
    // Only several chunks are interleaved, and a chunk needs a block.
    let fits = |(schedule, chunks): &(PipelineSchedule, u32)| {
        (*schedule == Interleaved) == (*chunks > 1) && stages * chunks <= blocks.max(1)
    };
    all.flat_map(with_chunks).filter(fits).collect()
}
