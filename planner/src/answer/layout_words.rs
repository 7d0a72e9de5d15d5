//! Layouts in the words of the field, and in a short notation.

use crate::layout::candidate::zero_name;
use dtrain_protocol::{Arrangement, Axis, ContextExchange, DeviceKind, EmbeddingHeadCost, RankOrder};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};

/// Returns the degrees of a layout along the axes that training engines know; expert-parallel ranks that fold
/// over others count as expert-parallel.
fn degrees(arrangement: &Arrangement) -> [(&'static str, &'static str, u32); 5] {
    let layout = &arrangement.layout;
    [
        ("tensor parallel", "TP", layout.degree(Axis::Tensor)),
        ("pipeline parallel", "PP", layout.degree(Axis::Pipeline)),
        ("context parallel", "CP", layout.degree(Axis::Context)),
        ("data parallel", "DP", layout.readers()),
        ("expert parallel", "EP", layout.degree(Axis::Expert) * arrangement.expert_fold),
    ]
}

/// Describes a layout in the words of the field, one clause for each of its properties:
/// `tensor parallel 8 × data parallel 4`, `ZeRO-1`, `micro-batch 2`, `no recompute`.
pub fn clauses(arrangement: &Arrangement, micro_batch: u32) -> Vec<String> {
    let used: Vec<String> = degrees(arrangement)
        .into_iter()
        .filter(|(_, _, degree)| *degree > 1)
        // Names are those of `degrees`; two of them have a way to work.
        .map(|(name, _, degree)| match name {
            "pipeline parallel" => format!("{name} {degree} ({})", schedule_words(arrangement)),
            "context parallel" => format!("{name} {degree}{}", exchange_words(arrangement)),
            _ => format!("{name} {degree}"),
        })
        .collect();
    let mut clauses = vec![if used.is_empty() { one_device(arrangement.device) } else { used.join(" × ") }];
    if let Some(zero) = zero(arrangement, " over groups of ") {
        clauses.push(zero);
    }
    clauses.push(format!("micro-batch {micro_batch}"));
    if arrangement.sequence {
        clauses.push("sequence parallel".into());
    }
    clauses.push(recompute_words(arrangement));
    if arrangement.layout.pipeline.get() > 1 && arrangement.ends != EmbeddingHeadCost::FREE {
        clauses.push("uneven stages".into());
    }
    if arrangement.expert_fold > 1 {
        clauses.push("experts on tensor- and context-parallel ranks".into());
    }
    if arrangement.order == RankOrder::DataOutermost {
        clauses.push("pipeline stages within hosts".into());
    }
    if arrangement.precision != Precision::F32 {
        clauses.push(arrangement.precision.name().into());
    }
    if !arrangement.state.is_plain() {
        clauses.push(arrangement.state.describe());
    }
    if !arrangement.sync.is_exact() {
        clauses.push(format!("approximate: {}", arrangement.sync));
    }
    clauses
}

/// Describes a layout, but for its precision and the ends of its pipeline, in the short notation that the glossary defines:
/// `TP 8 PP 4 DP 16 ZeRO-1 MB 1`.
pub fn abbreviated(arrangement: &Arrangement, micro_batch: u32) -> String {
    let used = degrees(arrangement).into_iter().filter(|(_, _, degree)| *degree > 1);
    let mut words: Vec<String> = used.map(|(_, short, degree)| format!("{short} {degree}")).collect();
    if words.is_empty() {
        words.push(one_device(arrangement.device));
    }
    words.extend(zero(arrangement, "/"));
    words.push(format!("MB {micro_batch}"));
    if arrangement.layout.pipeline.get() > 1 {
        words.push(match arrangement.schedule {
            PipelineSchedule::Gpipe => "GPipe".into(),
            PipelineSchedule::OneForwardOneBackward => "1F1B".into(),
            PipelineSchedule::Interleaved => format!("VPP {}", arrangement.chunks),
            PipelineSchedule::ZeroBubble => "ZB".into(),
        });
    }
    words.extend(arrangement.sequence.then(|| "SP".into()));
    let every = match arrangement.recompute_every {
        1 => String::new(),
        every => format!("/{every}"),
    };
    match arrangement.recompute {
        Recompute::None => {}
        Recompute::Selective => words.push(format!("AC selective{every}")),
        Recompute::Full => words.push(format!("AC full{every}")),
    }
    match arrangement.context_exchange {
        ContextExchange::Ring => {}
        ContextExchange::AllGather => words.push("AG".into()),
        ContextExchange::AllToAll => words.push("A2A".into()),
    }
    words.extend((arrangement.expert_fold > 1).then(|| "folded".into()));
    words.extend((arrangement.order == RankOrder::DataOutermost).then(|| "PP in host".into()));
    words.join(" ")
}

fn one_device(device: DeviceKind) -> String {
    if device.is_gpu() { "one GPU".into() } else { "one rank".into() }
}

/// Names the ZeRO stage of a layout, and after `joint` the size of a shard group that is smaller than the
/// replicas; `None` without ZeRO.
fn zero(arrangement: &Arrangement, joint: &str) -> Option<String> {
    let Arrangement { zero, shard, .. } = arrangement;
    if *zero == ZeroStage::Zero0 || arrangement.replicas() <= 1 {
        return None;
    }
    let name = format!("ZeRO-{}", zero_name(*zero));
    let is_partial = *shard < arrangement.replicas();
    Some(if is_partial { format!("{name}{joint}{shard}") } else { name })
}

fn schedule_words(arrangement: &Arrangement) -> String {
    match arrangement.schedule {
        PipelineSchedule::Gpipe => "GPipe".into(),
        PipelineSchedule::OneForwardOneBackward => "1F1B".into(),
        PipelineSchedule::Interleaved => {
            format!("interleaved 1F1B, {} virtual stages", arrangement.chunks)
        }
        PipelineSchedule::ZeroBubble => "zero bubble".into(),
    }
}

/// Names the exchange of keys and values in brackets; nothing for a ring.
fn exchange_words(arrangement: &Arrangement) -> &'static str {
    match arrangement.context_exchange {
        ContextExchange::Ring => "",
        ContextExchange::AllGather => " (all-gather)",
        ContextExchange::AllToAll => " (all-to-all)",
    }
}

fn recompute_words(arrangement: &Arrangement) -> String {
    let of = match arrangement.recompute_every {
        1 => String::new(),
        every => format!(" of one layer in {every}"),
    };
    match arrangement.recompute {
        Recompute::None => "no recompute".into(),
        Recompute::Selective => format!("selective recompute{of}"),
        Recompute::Full => format!("full recompute{of}"),
    }
}
