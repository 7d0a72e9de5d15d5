//! Describes an arrangement in sentences with the usual terms.

use crate::layout::candidate::Candidate;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{Model, PipelineSchedule, Recompute, ZeroStage};

/// Returns one sentence for each axis and each way of saving memory in a candidate; none for one rank that
/// stores everything.
pub(super) fn sentences(candidate: &Candidate, model: &Model) -> Vec<String> {
    let all = [
        data(candidate),
        approximate(&candidate.arrangement),
        tensor(&candidate.arrangement),
        pipeline(&candidate.arrangement, model),
        context(&candidate.arrangement),
        expert(&candidate.arrangement),
        zero(&candidate.arrangement),
        recompute(&candidate.arrangement),
    ];
    all.into_iter().flatten().collect()
}

fn data(candidate: &Candidate) -> Option<String> {
    let layout = candidate.arrangement.layout;
    let shares = candidate.split.shares(layout.expert);
    match layout.data.get() {
        1 => None,
        replicas if shares.is_empty() => Some(format!("data parallelism: {replicas} replicas")),
        replicas => {
            let shares: Vec<String> = shares.iter().map(ToString::to_string).collect();
            Some(format!("data parallelism: {replicas} replicas that do {} micro-batches", shares.join(", ")))
        }
    }
}

fn approximate(arrangement: &Arrangement) -> Option<String> {
    let sync = &arrangement.sync;
    (!sync.is_exact()).then(|| format!("approximate: {sync}; losses are not those of one rank"))
}

fn tensor(arrangement: &Arrangement) -> Option<String> {
    let ways = arrangement.layout.tensor.get();
    let sequence = if arrangement.sequence { ", with sequence parallelism" } else { "" };
    (ways > 1).then(|| format!("tensor parallelism: matrices are cut over {ways} ranks{sequence}"))
}

fn pipeline(arrangement: &Arrangement, model: &Model) -> Option<String> {
    let (stages, chunks) = (arrangement.layout.pipeline.get(), arrangement.chunks);
    let schedule = match arrangement.schedule {
        PipelineSchedule::Gpipe => "GPipe: all forwards, then all backwards".into(),
        PipelineSchedule::OneForwardOneBackward => "1F1B: one forward, one backward".into(),
        PipelineSchedule::Interleaved => format!("interleaved 1F1B over {chunks} chunks a stage"),
        PipelineSchedule::ZeroBubble => "ZB-H1: gradients of weights fill the bubble".into(),
    };
    let blocks = model.blocks();
    (stages > 1).then(|| format!("pipeline parallelism: {blocks} blocks in {stages} stages; {schedule}"))
}

fn context(arrangement: &Arrangement) -> Option<String> {
    let ways = arrangement.layout.context.get();
    (ways > 1).then(|| format!("context parallelism: sequences are cut over a ring of {ways} ranks"))
}

fn expert(arrangement: &Arrangement) -> Option<String> {
    let ways = arrangement.layout.expert.get();
    (ways > 1).then(|| format!("expert parallelism: experts are spread over {ways} ranks"))
}

fn zero(arrangement: &Arrangement) -> Option<String> {
    let what = match arrangement.zero {
        ZeroStage::Zero0 => return None,
        ZeroStage::Zero1 => "ZeRO-1: optimizer state is",
        ZeroStage::Zero2 => "ZeRO-2: optimizer state and gradients are",
        ZeroStage::Zero3 => "ZeRO-3 (fully sharded): optimizer state, gradients and weights are",
    };
    let (shard, replicas) = (arrangement.shard, arrangement.replicas());
    let groups = replicas / shard;
    let again = if groups > 1 { format!(", replicated by {groups} groups") } else { String::new() };
    Some(format!("{what} sharded over {shard} replicas{again}"))
}

fn recompute(arrangement: &Arrangement) -> Option<String> {
    let of = match arrangement.recompute_every {
        1 => "every block".into(),
        every => format!("one block in {every}"),
    };
    match arrangement.recompute {
        Recompute::None => None,
        Recompute::Selective => Some(format!("activation recompute: the attention core of {of}")),
        Recompute::Full => Some(format!("activation recompute: all of {of}")),
    }
}
