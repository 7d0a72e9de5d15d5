//! Micro-batch loader (sampler): the shuffled training samples that a rank reads, in order.

use super::{Batch, Prefetch, SampleSource};
use dtrain_protocol::shuffle::shuffled_sample;
use dtrain_protocol::{Action, Assignment, Failure, StepId};
use std::ops::Range;
use std::sync::Arc;

/// The endless sequence of this rank's micro-batches after `begin` steps; the next one is read while the
/// current one is computed.
pub(crate) struct MicroBatchLoader {
    batches: Prefetch,
    /// For each micro-batch the number of targets that count in its whole step, if not all do.
    step_targets: Option<Box<dyn Iterator<Item = u64> + Send>>,
}

impl MicroBatchLoader {
    pub(crate) fn new(assignment: &Assignment, train: Arc<dyn SampleSource>, begin: StepId) -> Self {
        let is_packed = train.counted_targets(0).is_some();
        let numbers = numbers(assignment, train.len(), begin, is_packed);
        let step_targets = is_packed.then(|| {
            let counts = step_targets(assignment, Arc::clone(&train), begin);
            Box::new(counts) as Box<dyn Iterator<Item = u64> + Send>
        });
        Self { step_targets, ..Self::of(train, numbers) }
    }

    /// Creates a loader of micro-batches, each of the samples that an item of `numbers` lists.
    pub(crate) fn of(
        source: Arc<dyn SampleSource>,
        numbers: impl Iterator<Item = Vec<u64>> + Send + 'static,
    ) -> Self {
        Self { batches: Prefetch::new(source, numbers), step_targets: None }
    }

    /// Returns `true` if the batches are packed, so that every stage reads them.
    pub(crate) fn is_packed(&self) -> bool {
        self.step_targets.is_some()
    }

    /// Returns the next micro-batch; waits for it if it has not been read yet.
    pub(crate) fn next(&mut self) -> Result<Batch, Failure> {
        let targets = self.step_targets.as_mut().and_then(Iterator::next);
        match self.batches.next() {
            Some(Ok(mut batch)) => {
                if let (Batch::Tokens { packed: Some(packed), .. }, Some(targets)) = (&mut batch, targets) {
                    packed.step_targets = targets;
                }
                Ok(batch)
            }
            Some(Err(error)) => Err(Failure::Data(error.to_string())),
            None => Err(Failure::Data("the thread that reads samples ended".into())),
        }
    }
}

/// Iterates over the forward passes of a rank, and returns the numbers of the samples that each reads,
/// out of `samples`; empty for a rank that reads none. Packed samples are read by every stage, as attention needs
/// their documents.
fn numbers(
    assignment: &Assignment,
    samples: u64,
    begin: StepId,
    is_packed: bool,
) -> impl Iterator<Item = Vec<u64>> + use<> {
    let Assignment { training, .. } = assignment;
    let (batch, seed, share) = (training.batch, training.seed, training.share.clone());
    let micro_batch = u64::from(training.micro_batch);
    let forwards = forwards(assignment, is_packed);
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

/// Returns the micro-batches of the forward passes of a step that read samples, in order.
fn forwards(assignment: &Assignment, is_packed: bool) -> Vec<u64> {
    let Assignment { model, chunks, step, .. } = assignment;
    let reads = |blocks: &Range<u32>| is_packed || blocks.start == 0 || blocks.end == model.blocks();
    let forwards = step.iter().filter_map(|action| match action {
        Action::Forward(pass) if reads(&chunks[pass.chunk as usize]) => Some(u64::from(pass.micro)),
        _ => None,
    });
    forwards.collect()
}

/// Iterates over the forward passes of a rank, and returns the number of targets that count in the step of each:
/// in the whole batch, or in this rank's share of it if replicas only average their weights.
fn step_targets(
    assignment: &Assignment,
    source: Arc<dyn SampleSource>,
    begin: StepId,
) -> impl Iterator<Item = u64> + use<> {
    let training = &assignment.training;
    let (batch, seed, samples) = (training.batch, training.seed, source.len());
    let is_local = assignment.arrangement.sync.local.is_some();
    let share = if is_local { training.share.clone() } else { 0..batch };
    let passes = forwards(assignment, true).len();
    (begin.0..).flat_map(move |step| {
        let counted = |cursor| source.counted_targets(shuffled_sample(seed, samples, cursor)).unwrap_or(0);
        let targets: u64 = (share.start + step * batch..share.end + step * batch).map(counted).sum();
        std::iter::repeat_n(targets, passes)
    })
}
