//! Which samples a rank reads, in order.

use crate::data::{Batch, Prefetch, Source};
use dtrain_protocol::order::{sample_at, share};
use dtrain_protocol::{Action, Assignment, Failure, StepId};
use std::sync::Arc;

/// The micro-batches of this rank after `begin` steps, without end, each read while the one before is computed.
#[derive(Debug)]
pub(crate) struct Stream(Prefetch);

impl Stream {
    pub(super) fn new(assignment: &Assignment, train: Arc<dyn Source>, begin: StepId) -> Self {
        let numbers = numbers(assignment, train.len(), begin);
        Self(Prefetch::new(train, numbers))
    }

    /// The next micro-batch.
    pub(crate) fn next(&mut self) -> Result<Batch, Failure> {
        match self.0.next() {
            Some(Ok(batch)) => Ok(batch),
            Some(Err(error)) => Err(Failure::Data(error.to_string())),
            None => Err(Failure::Data("the thread that reads samples ended".into())),
        }
    }
}

/// Numbers of the samples of each forward pass of this rank, of `samples` that there are.
fn numbers(assignment: &Assignment, samples: u64, begin: StepId) -> impl Iterator<Item = Vec<u64>> + use<> {
    let (batch, seed) = (assignment.training.batch, assignment.training.seed);
    let micro_batch = u64::from(assignment.training.micro_batch);
    let replica = assignment.layout.coord(assignment.rank).along(dtrain_protocol::Axis::Data);
    let replicas = assignment.layout.data.get();
    let forwards = assignment.step.iter().filter_map(|action| match action {
        Action::Forward(micro) => Some(u64::from(*micro)),
        Action::Backward(_) | Action::Exchange { .. } | Action::ReduceGradients | Action::UpdateWeights => {
            None
        }
    });
    let forwards: Vec<_> = forwards.collect();
    (begin.0..).flat_map(move |step| {
        let share = share(step, batch, replica, replicas);
        let micro = move |micro: &u64| {
            let begin = share.start + micro * micro_batch;
            (begin..begin + micro_batch).map(|cursor| sample_at(seed, samples, cursor)).collect::<Vec<_>>()
        };
        forwards.iter().map(micro).collect::<Vec<_>>()
    })
}
