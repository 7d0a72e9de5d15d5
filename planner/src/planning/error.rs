//! Errors of the planner: the reasons why a recipe has no plan.

use crate::layout::rejection::{RejectedGroup, Rejection};
use dtrain_protocol::Untrainable;
use std::fmt::Write;

/// Reason why the planner cannot make a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Every candidate of the recipe was rejected.
    #[error("{}", nothing_fits(rejected))]
    NothingFits {
        /// Rejected candidates by reason, with the number of candidates and the nearest one of each; the most
        /// frequent first.
        rejected: Vec<RejectedGroup>,
    },
    /// The training engine that the recipe names cannot train it.
    #[error("{engine} does not support {what}; {instead}")]
    EngineLacks {
        /// Name of the engine, as its authors spell it.
        engine: &'static str,
        /// Setting or feature that the engine lacks.
        what: String,
        /// Alternative that the message suggests.
        instead: &'static str,
    },
    /// The number of ranks is not divisible by the number of hosts.
    #[error(
        "cluster.ranks = {ranks} cannot be divided evenly over {hosts} hosts; set a multiple of {hosts}, \
        or remove it"
    )]
    UnevenHosts {
        /// Number of ranks set in the recipe.
        ranks: u32,
        /// Number of hosts in the cluster.
        hosts: u32,
    },
    /// The number of ranks of a foreign command is not a multiple of the product of the degrees in its
    /// layout.
    #[error(
        "the layout of the recipe is for a multiple of {product} ranks, and the command has {ranks}; set \
        cluster.ranks, or remove an axis of [layout]"
    )]
    UnevenLayout {
        /// Number of ranks that the command starts.
        ranks: u32,
        /// Product of the degrees set in the layout.
        product: u64,
    },
    /// The recipe requires a GPU that is not available.
    #[error(
        "cluster.devices = \"{asked}\", but {host} has no {what} that this binary can use; `dtrain doctor` says \
         what is missing; build with {build}, or set cluster.devices = \"cpu\""
    )]
    NoGpu {
        /// Device that the recipe requires: `gpu` or `cuda`.
        asked: &'static str,
        /// Name of the missing device in words.
        what: &'static str,
        /// Cargo options that build dtrain with a backend for the device.
        build: &'static str,
        /// Name of the host without the device.
        host: String,
    },
    /// The recipe limits the number of epochs, but the number of training samples is unknown.
    #[error(
        "objective.stop.epochs needs the number of training samples, which is unknown; set steps, samples, \
        tokens or time instead"
    )]
    SamplesUnknown,
    /// The worker cannot train this recipe.
    #[error("{0}")]
    Untrainable(Untrainable),
    /// ZeRO 3 is pinned together with a recompute setting that the worker does not support with it.
    #[error(
        "layout.zero = 3 gathers every block again for the backward pass, and so needs recomputation; \
        set layout.recompute = \"full\" of every block, or a zero of 2 or less"
    )]
    GathersWithoutRecompute,
    /// No stop condition of the recipe ends the training.
    #[error("objective.stop needs one of steps, samples, tokens, epochs or time")]
    NoEnd,
    /// The training data has fewer samples than one batch.
    #[error(
        "train.batch is {batch}, and the data has {samples} samples to train on; use a smaller batch, or more data"
    )]
    BatchBeyondData {
        /// Samples of one step, over all replicas.
        batch: u64,
        /// Samples of the training data.
        samples: u64,
    },
    /// A rank has more micro-batches per step than the limit.
    #[error(
        "train.batch is {batch}, which is {passes} micro-batches of {micro} on each of {replicas} replicas; \
        at most {} are run in one step: use a larger layout.micro_batch, or a smaller batch",
        crate::layout::space::MICRO_BATCHES
    )]
    TooManyMicroBatches {
        /// Samples of one step, over all replicas.
        batch: u64,
        /// Samples of one forward pass on one rank.
        micro: u32,
        /// Largest possible number of replicas.
        replicas: u32,
        /// Micro-batches per step of one rank.
        passes: u64,
    },
    /// The recipe sets a batch of zero samples.
    #[error("train.batch must be at least 1")]
    EmptyBatch,
}

/// Formats the reasons why no candidate fits, with a hint for the most helpful one: memory first, then the
/// batch, then the model, then the worker.
fn nothing_fits(rejected: &[RejectedGroup]) -> String {
    let mut groups: Vec<&RejectedGroup> = rejected.iter().collect();
    groups.sort_by_key(|group| informativeness(&group.rejection));
    let Some(first) = groups.first() else {
        return "no layout is left: the product of the pinned axes does not match the pinned number of ranks \
                (cluster.ranks must be a multiple of the product of the layout's axes)"
            .into();
    };
    let mut text = format!("no layout fits; the nearest is {}: {}", first.nearest, first.rejection);
    if let Some(hint) = hint(first) {
        write!(text, "; {hint}").expect("a string takes all text");
    }
    for group in &groups[1..] {
        write!(text, "\n  {} rejected: {}", group.count, group.heading).expect("a string takes all text");
    }
    text
}

fn informativeness(rejection: &Rejection) -> u8 {
    match rejection {
        Rejection::TooMuchMemory { .. } | Rejection::TooLargeTensor { .. } => 0,
        Rejection::BatchDoesNotDivide { .. } => 1,
        Rejection::DoesNotDivide { .. } => 2,
        Rejection::EngineCannot(_) => 3,
        Rejection::CannotRun(_) => 4,
    }
}

fn hint(group: &RejectedGroup) -> Option<&'static str> {
    let has_ranks_of_threads = group.nearest.contains("thread") && !group.nearest.starts_with("one rank");
    match &group.rejection {
        // Ranks of one host share its memory, and each needs some of its own.
        Rejection::TooMuchMemory { .. } if has_ranks_of_threads => Some(
            "use fewer ranks (cluster.ranks), a smaller model, a shorter model.context or layout.recompute = \"full\"",
        ),
        // Recompute is at its maximum already.
        Rejection::TooMuchMemory { .. } if group.nearest.contains("full recompute") => {
            Some("use a smaller model, a shorter model.context, or more or larger devices")
        }
        Rejection::TooMuchMemory { .. } => {
            Some("use a smaller model, a shorter model.context or layout.recompute = \"full\"")
        }
        Rejection::TooLargeTensor { .. } => {
            Some("use a smaller layout.micro_batch, a shorter model.context, or cut it with layout.tensor")
        }
        Rejection::BatchDoesNotDivide { .. } => {
            Some("choose a train.batch that is a multiple of layout.data × layout.micro_batch")
        }
        Rejection::DoesNotDivide { .. } => Some("unpin that axis of [layout], or change the size"),
        Rejection::CannotRun(_) => Some("unpin it in the recipe"),
        // The reason itself says what to do.
        Rejection::EngineCannot(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::Bytes;

    #[test]
    fn the_message_names_the_nearest_the_numbers_and_a_way_out() {
        let group = |rejection: Rejection, count| RejectedGroup {
            heading: rejection.heading(),
            count,
            nearest: "one rank of 2 threads, micro-batch 1 × 8".into(),
            rejection,
        };
        let memory = Rejection::TooMuchMemory { needed: Bytes(3 << 30), available: Bytes(2 << 30) };
        let worker = Rejection::CannotRun("the worker does not cut tensors".into());
        let full = RejectedGroup {
            nearest: "one GPU, 1 micro-batch of 1, full recompute".into(),
            ..group(memory.clone(), 7)
        };
        let text = PlanError::NothingFits { rejected: vec![full] }.to_string();
        assert!(text.contains("full recompute: it needs 3.0 GiB"), "{text}");
        assert!(!text.contains("layout.recompute"), "nothing is advised that is done already: {text}");
        let many = RejectedGroup { nearest: "data 512, 1 thread each".into(), ..group(memory.clone(), 7) };
        let text = PlanError::NothingFits { rejected: vec![many] }.to_string();
        assert!(text.contains("use fewer ranks (cluster.ranks), a smaller model"), "{text}");
        let text = PlanError::NothingFits { rejected: vec![group(worker, 90), group(memory, 7)] }.to_string();
        assert_eq!(
            text,
            "no layout fits; the nearest is one rank of 2 threads, micro-batch 1 × 8: it needs 3.0 GiB on each \
             rank; 2.0 GiB are available; use a smaller model, a shorter model.context or \
             layout.recompute = \"full\"\n  90 rejected: the worker does not cut tensors"
        );
    }
}
