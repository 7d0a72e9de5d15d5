//! Micro-batch loader (sampler): the shuffled training samples that a rank reads, in order.

use super::{Batch, Prefetch, SampleSource};
use dtrain_protocol::shuffle::shuffled_sample;
use dtrain_protocol::{Action, Assignment, Failure, StepId};
use std::ops::Range;
use std::sync::Arc;

/// The endless sequence of this rank's micro-batches after `begin` steps; the next one is read while the
/// current one is computed.
#[derive(Debug)]
pub(crate) struct MicroBatchLoader(Prefetch);

impl MicroBatchLoader {
    pub(crate) fn new(assignment: &Assignment, train: Arc<dyn SampleSource>, begin: StepId) -> Self {
        let numbers = numbers(assignment, train.len(), begin);
        Self::of(train, numbers)
    }

    /// Creates a loader of micro-batches, each of the samples that an item of `numbers` lists.
    pub(crate) fn of(
        source: Arc<dyn SampleSource>,
        numbers: impl Iterator<Item = Vec<u64>> + Send + 'static,
    ) -> Self {
        Self(Prefetch::new(source, numbers))
    }

    /// Returns the next micro-batch; waits for it if it has not been read yet.
    pub(crate) fn next(&mut self) -> Result<Batch, Failure> {
        match self.0.next() {
            Some(Ok(batch)) => Ok(batch),
            Some(Err(error)) => Err(Failure::Data(error.to_string())),
            None => Err(Failure::Data("the thread that reads samples ended".into())),
        }
    }
}

/// Iterates over the forward passes of a rank, and returns the numbers of the samples that each reads,
/// out of `samples`; empty for a rank that reads none.
fn numbers(assignment: &Assignment, samples: u64, begin: StepId) -> impl Iterator<Item = Vec<u64>> + use<> {
    let Assignment { training, model, chunks, step, .. } = assignment;
    let (batch, seed, share) = (training.batch, training.seed, training.share.clone());
    let micro_batch = u64::from(training.micro_batch);
    let reads = |blocks: &Range<u32>| blocks.start == 0 || blocks.end == model.blocks();
    let forwards = step.iter().filter_map(|action| match action {
        Action::Forward(pass) if reads(&chunks[pass.chunk as usize]) => Some(u64::from(pass.micro)),
        _ => None,
    });
    let forwards: Vec<_> = forwards.collect();
    // A stage in the middle of the model reads nothing.
    let steps = begin.0..if forwards.is_empty() { begin.0 } else { u64::MAX };
    steps.flat_map(move |step| {
        let share = share.start + step * batch..share.end + step * batch;
        let micro = move |micro: &u64| {
            let begin = share.start + micro * micro_batch;
            (begin..begin + micro_batch)
                .map(|cursor| shuffled_sample(seed, samples, cursor))
                .collect::<Vec<_>>()
        };
        forwards.iter().map(micro).collect::<Vec<_>>()
    })
}
