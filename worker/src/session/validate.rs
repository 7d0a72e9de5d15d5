//! The figures of a model on samples it was never trained on.

use crate::data::Source;
use crate::interpret::{Replica, view};
use crate::parallel::{Ballot, Tally, tally};
use dtrain_protocol::{Failure, StepId};
use std::ops::Range;

/// Loss and accuracy over the first `samples` of `valid`, of which every replica takes its part; the same figures on
/// all. `None` when there are no samples.
pub(super) fn validate(
    replica: &mut Replica<'_>,
    valid: &dyn Source,
    samples: u64,
    step: StepId,
) -> Result<Option<Tally>, Failure> {
    let samples = samples.min(valid.len());
    if samples == 0 {
        return Ok(None);
    }
    let micro_batch = u64::from(replica.training.micro_batch);
    let mine = part(samples, replica.courier.rank(), replica.courier.ranks());
    let mut ballot = Ballot::default();
    let mut begin = mine.start;
    while begin < mine.end {
        let end = mine.end.min(begin + micro_batch);
        let batch = valid.read(&(begin..end).collect::<Vec<_>>());
        let batch = batch.map_err(|error| Failure::Data(error.to_string()))?;
        let (loss_sum, hits, count) = replica.stage.evaluate(&view(&batch));
        ballot.add(&Ballot { loss_sum, hits, count, ..Ballot::default() });
        begin = end;
    }
    tally::send(&ballot, &replica.courier);
    let tally = tally::collect(&replica.courier)?;
    if tally.loss().is_finite() {
        return Ok(Some(tally));
    }
    Err(Failure::NotFinite { step, figure: "the validation loss".into() })
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
