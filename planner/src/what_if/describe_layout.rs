//! Describes layouts, and values on their axes, in words.

use crate::analytic::StepConfig;
use crate::analytic::search::{GPIPE, SearchAxis};
use dtrain_protocol::{ContextExchange, EmbeddingHeadCost, RankOrder};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};

/// Describes a layout in words, without degrees of 1.
pub fn describe_layout(config: &StepConfig) -> String {
    let (degrees, arrangement) = (config.degrees(), &config.arrangement);
    let degrees = [
        ("data", degrees.data),
        ("tensor", degrees.tensor),
        ("pipeline", degrees.pipeline),
        ("context", degrees.context),
        ("expert", degrees.expert),
    ];
    let degrees: Vec<String> = degrees
        .iter()
        .filter(|(_, degree)| *degree > 1)
        .map(|(axis, degree)| format!("{axis} {degree}"))
        .collect();
    let mut words = if degrees.is_empty() { "one GPU".to_owned() } else { degrees.join(" × ") };
    words += &format!(", micro-batch {}", config.micro_batch);
    if config.pipeline() > 1.0 {
        words += &format!(", {}", schedule(arrangement.schedule, arrangement.chunks));
        words += ends(arrangement.ends);
    }
    if arrangement.zero != ZeroStage::Zero0 {
        words += &format!(", zero {}", arrangement.zero as u8);
        if arrangement.shard < arrangement.replicas() {
            words += &format!(" over {}", arrangement.shard);
        }
    }
    if arrangement.sequence {
        words += ", sequence parallel";
    }
    match arrangement.recompute {
        Recompute::None => {}
        Recompute::Selective => words += ", selective recompute",
        Recompute::Full => {
            words += ", full recompute";
            if arrangement.recompute_every > 1 {
                words += &format!(" of every {} layers", arrangement.recompute_every);
            }
        }
    }
    if !arrangement.state.is_plain() {
        words += &format!(", {}", arrangement.state.describe());
    }
    match arrangement.context_exchange {
        ContextExchange::Ring => {}
        ContextExchange::AllGather => words += ", keys and values gathered",
        ContextExchange::AllToAll => words += ", heads exchanged",
    }
    if arrangement.expert_fold > 1 {
        words += ", experts folded over tensor and context ranks";
    }
    if arrangement.order == RankOrder::DataOutermost {
        words += ", stages within hosts";
    }
    words
}

/// Describes the number of layers that embedding and head count as in a pipeline, in words.
fn ends(ends: EmbeddingHeadCost) -> &'static str {
    match ends {
        EmbeddingHeadCost { embedding: 0, head: 0 } => "",
        EmbeddingHeadCost { embedding: 0, .. } => " with fewer layers in the last stage",
        EmbeddingHeadCost { head: 0, .. } => " with fewer layers in the first stage",
        EmbeddingHeadCost { .. } => " with fewer layers in the first and last stage",
    }
}

fn schedule(schedule: PipelineSchedule, chunks: u32) -> String {
    match schedule {
        PipelineSchedule::Gpipe => "gpipe".into(),
        PipelineSchedule::OneForwardOneBackward => "1f1b".into(),
        PipelineSchedule::Interleaved => format!("interleaved over {chunks} chunks"),
        PipelineSchedule::ZeroBubble => "zero bubble".into(),
    }
}

/// Describes a value on `axis` in words.
pub(super) fn value_of(axis: SearchAxis, value: u32) -> String {
    match axis {
        SearchAxis::Tensor => format!("tensor {value}"),
        SearchAxis::Context => format!("context {value}"),
        SearchAxis::Expert => format!("expert {value}"),
        SearchAxis::Pipeline => format!("pipeline {value}"),
        SearchAxis::Data => format!("data {value}"),
        SearchAxis::MicroBatch => format!("micro-batch {value}"),
        SearchAxis::Sequence if value == 0 => "no sequence parallelism".into(),
        SearchAxis::Sequence => "sequence parallel".into(),
        SearchAxis::Recompute => match value {
            0 => "no recompute".into(),
            1 => "selective recompute".into(),
            2 => "full recompute".into(),
            more => format!("full recompute of every {} layers", more - 1),
        },
        SearchAxis::Exchange => ["keys and values in a ring", "keys and values gathered", "heads exchanged"]
            .get(value as usize)
            .map_or_else(String::new, |words| (*words).into()),
        SearchAxis::Order if value == 0 => "replicas within hosts".into(),
        SearchAxis::Order => "stages within hosts".into(),
        SearchAxis::Shard => format!("shards over {value}"),
        SearchAxis::Zero => format!("zero {value}"),
        SearchAxis::Schedule => match value {
            0 => "zero bubble".into(),
            1 => "1f1b".into(),
            GPIPE => "gpipe".into(),
            chunks => format!("interleaved over {chunks} chunks"),
        },
    }
}
