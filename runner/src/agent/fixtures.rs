//! Assignments for tests.

use dtrain_protocol::{
    Arrangement, Assignment, AttemptId, DeviceKind, Hyperparameters, Placement, Rank, RankTransport,
    RunUntil, TrialId, WaitLimits,
};
use dtrain_recipes::{Model, Optimizer, OptimizerKind, Schedule};
use std::path::PathBuf;

/// Returns the assignment of the only rank of an attempt that trains `model`.
pub(super) fn assignment(trial: TrialId, attempt: AttemptId, model: Model) -> Assignment {
    let optimizer =
        Optimizer { kind: OptimizerKind::Adamw, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.0 };
    Assignment {
        trial,
        attempt,
        rank: Rank(0),
        arrangement: Arrangement::SINGLE,
        model,
        chunks: Vec::new(),
        data: None,
        data_root: PathBuf::new(),
        training: Hyperparameters {
            batch: 1,
            share: 0..1,
            micro_batch: 1,
            micro_batches: 1,
            optimizer,
            learning_rate: 1e-3,
            warmup_steps: 0,
            schedule_steps: 1,
            schedule: Schedule::Constant,
            final_fraction: 1.0,
            clip: None,
            seed: 7,
        },
        until: RunUntil::default(),
        step: Vec::new(),
        placement: Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 1 },
        link: RankTransport::Alone,
        waits: WaitLimits::for_steps_of(None),
        validate_every: 1,
        validate_samples: 1,
        save_every: 1,
        checkpoints: PathBuf::new(),
        resume: None,
    }
}
