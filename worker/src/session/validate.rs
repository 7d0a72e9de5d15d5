//! The figures of a model on samples it was never trained on.

use crate::data::{Batch, Source};
use crate::interpret::Replica;
use crate::ops::Measured;
use crate::parallel::sync::put;
use crate::parallel::{StepTotals, context, step_totals};
use crate::stage::{Flow, Samples};
use dtrain_protocol::{Failure, Pass, StepId, Toward};
use std::ops::Range;

/// Loss and accuracy over the first `samples` of `valid`, of which every replica takes its part; the same figures on
/// all. `None` when there are no samples. Replicas that moved apart show the weights of their last meeting.
pub(super) fn validate(
    replica: &mut Replica<'_>,
    valid: &dyn Source,
    samples: u64,
    step: StepId,
) -> Result<Option<StepTotals>, Failure> {
    let own = replica.outer.as_ref().and_then(|outer| outer.show(&mut replica.stage));
    let totals = figures(replica, valid, samples, step);
    if let Some(own) = own {
        put(&mut replica.stage, &own);
    }
    totals
}

/// The figures with the weights as they are.
fn figures(
    replica: &mut Replica<'_>,
    valid: &dyn Source,
    samples: u64,
    step: StepId,
) -> Result<Option<StepTotals>, Failure> {
    let samples = samples.min(valid.len());
    if samples == 0 {
        return Ok(None);
    }
    let micro_batch = u64::from(replica.training.micro_batch);
    let (reader, readers) = replica.mesh.reader();
    let mine = part(samples, reader, readers);
    let mut measured = Measured::default();
    // Replicas that hold parts of one model go through it together: all do as many passes as the largest part takes.
    for pass in 0..samples.div_ceil(readers.into()).div_ceil(micro_batch) {
        let begin = mine.start + pass * micro_batch;
        let end = mine.end.min(begin + micro_batch);
        let is_over = begin >= end;
        let numbers = if is_over { vec![0] } else { (begin..end).collect() };
        let batch = valid.read(&numbers).map_err(|error| Failure::Data(error.to_string()))?;
        let batch = context::cut(batch, &replica.mesh.partners().context);
        if let Flow::Loss(figures) = through(replica, &batch)
            && replica.mesh.tells_loss()
            && !is_over
        {
            measured.add(figures);
        }
        replica.mesh.check()?;
    }
    let totals = StepTotals::of(measured.read());
    step_totals::send(&totals, replica.mesh.world());
    let totals = step_totals::collect(replica.mesh.world())?;
    if totals.loss().is_finite() {
        return Ok(Some(totals));
    }
    Err(Failure::NotFinite { step, figure: "the validation loss".into() })
}

/// Takes `batch` through the chunks of this rank, each when its turn comes, as all stages of the pipeline do.
fn through(replica: &mut Replica<'_>, batch: &Batch) -> Flow {
    let Replica { stage, messages, .. } = replica;
    let mut last = None;
    for chunk in 0..stage.chunks() {
        let pass = Pass { micro: 0, chunk };
        if !stage.is_first(chunk) {
            let shape = stage.message_shape(chunk, Toward::Previous, batch.samples());
            messages.exchange(Toward::Previous, None, Some((pass, shape)));
        }
        let flow = stage.infer(chunk, messages.take(Toward::Previous, pass), &Samples::of(batch));
        if let Flow::Activation(activation) = &flow {
            messages.give(Toward::Next, pass, activation.clone());
            messages.exchange(Toward::Next, Some(pass), None);
        }
        last = Some(flow);
    }
    last.expect("a stage has a chunk")
}

/// The part of `0..samples` that replica `replica` of `replicas` takes.
fn part(samples: u64, replica: u32, replicas: u32) -> Range<u64> {
    let (replica, replicas) = (u64::from(replica), u64::from(replicas));
    samples * replica / replicas..samples * (replica + 1) / replicas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_validation_sample_is_taken_by_one_replica() {
        for samples in 0..40 {
            for replicas in 1..7 {
                let all: Vec<_> =
                    (0..replicas).flat_map(|replica| part(samples, replica, replicas)).collect();
                assert_eq!(all, (0..samples).collect::<Vec<_>>());
            }
        }
    }
}
