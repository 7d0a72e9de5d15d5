//! Assignments of ranks for tests.

use dtrain_protocol::{Assignment, AttemptId, Hyperparameters, TrialId};
use dtrain_recipes::{Model, Optimizer};

/// Returns the assignment of the only rank of an attempt that trains `model`.
pub(super) fn assignment(trial: TrialId, attempt: AttemptId, model: Model) -> Assignment {
    let optimizer = Optimizer { beta2: 0.99, weight_decay: 0.0, ..Optimizer::ADAMW };
    Assignment {
        trial,
        attempt,
        model,
        chunks: Vec::new(),
        training: Hyperparameters { optimizer, ..Hyperparameters::plain() },
        ..Assignment::example()
    }
}
