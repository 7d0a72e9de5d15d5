//! Validation: the loss and accuracy of a model on samples that it was never trained on.
//!
//! A validation may be long. So the ranks agree a few times a second, between micro-batches, whether it
//! goes on: an order to stop ends it, and so does a time limit. The decision is the same on all, as at the
//! end of a step.

use super::time_limit::RunClock;
use super::{AgentOrders, EventSink};
use crate::data::{Batch, SampleSource};
use crate::network::{ModelInput, context_parallel};
use crate::ops::DeferredLossFigures;
use crate::parallel::sync::put;
use crate::parallel::{StepTotals, step_totals};
use crate::stage::ForwardOutput;
use crate::train_step::Replica;
use dtrain_protocol::{Event, Failure, Neighbor, Pass, StepId};
use std::ops::Range;
use std::time::Instant;

/// Approximate time between two agreements of the ranks, in seconds.
const AGREE_SECONDS: f64 = 0.25;

/// The orders and the clock that may end a validation, and the receiver of its progress reports.
pub(super) struct ValidationHooks<'a> {
    pub(super) orders: &'a mut AgentOrders,
    pub(super) clock: &'a mut RunClock,
    pub(super) tell: &'a EventSink,
}

/// The step after which a validation is made, and its extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValidationId {
    /// Number of steps completed before the validation.
    pub(super) step: StepId,
    /// Limit on the number of samples that the validation uses.
    pub(super) samples: u64,
    /// True for the validation at the end of the run.
    pub(super) is_last: bool,
}

/// The outcome of a validation, which is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValidationOutcome {
    /// The validation has figures of all samples; at the end of a run, of as many as the time allowed.
    Figures(StepTotals),
    /// There are no samples, or there was not enough time for all of them.
    Nothing,
    /// A stop was ordered during the validation.
    Stopped,
}

/// Computes loss and accuracy over the first samples of `valid`, which are divided among the replicas,
/// and reports them. Replicas that differ between outer steps use the weights of their last outer step.
pub(super) fn validate(
    replica: &mut Replica<'_>,
    valid: &dyn SampleSource,
    which: ValidationId,
    watching: &mut ValidationHooks<'_>,
) -> Result<ValidationOutcome, Failure> {
    let began = Instant::now();
    let own = replica.outer.as_ref().and_then(|outer| outer.show(&mut replica.stage));
    let validated = figures(replica, valid, which, watching, began);
    if let Some(own) = own {
        put(&mut replica.stage, &own);
    }
    let seconds = began.elapsed().as_secs_f64();
    let validated = validated?;
    watching.clock.validated(seconds, matches!(validated, ValidationOutcome::Figures(_)));
    if let ValidationOutcome::Figures(totals) = &validated {
        let (loss, accuracy) = (totals.loss(), Some(totals.accuracy()));
        (watching.tell)(Event::Validated { step: which.step, loss, accuracy, seconds: Some(seconds) });
    }
    Ok(validated)
}

/// Computes the figures of a validation with the current weights.
fn figures(
    replica: &mut Replica<'_>,
    valid: &dyn SampleSource,
    which: ValidationId,
    watching: &mut ValidationHooks<'_>,
    began: Instant,
) -> Result<ValidationOutcome, Failure> {
    let samples = which.samples.min(valid.len());
    if samples == 0 {
        return Ok(ValidationOutcome::Nothing);
    }
    let micro_batch = u64::from(replica.training.micro_batch);
    let (reader, readers) = replica.mesh.reader();
    let mine = replica_range(samples, reader, readers);
    let mut measured = DeferredLossFigures::default();
    let mut agreement = ContinueVote { began, told: 0.0, next: 0 };
    // Replicas that hold parts of one model pass through it together: all do as many passes as the largest
    // part takes.
    for pass in 0..samples.div_ceil(readers.into()).div_ceil(micro_batch) {
        if pass == agreement.next {
            let done = (pass * micro_batch * u64::from(readers)).min(samples);
            match agreement.reach(replica, which, (done, samples), watching)? {
                RankDecision::GoOn => {}
                RankDecision::Stop => return Ok(ValidationOutcome::Stopped),
                RankDecision::TimeIsOver if which.is_last && pass > 0 => {
                    tell_cut(replica, (done, samples), watching.tell);
                    break;
                }
                RankDecision::TimeIsOver if which.is_last => {}
                RankDecision::TimeIsOver => return Ok(ValidationOutcome::Nothing),
            }
        }
        let begin = mine.start + pass * micro_batch;
        let end = mine.end.min(begin + micro_batch);
        let is_over = begin >= end;
        let numbers = if is_over { vec![0] } else { (begin..end).collect() };
        let batch = valid.read(&numbers).map_err(|error| Failure::Data(error.to_string()))?;
        let batch = context_parallel::cut(batch, &replica.mesh.partners().context);
        let pass_began = Instant::now();
        if let ForwardOutput::Loss(figures) = through(replica, &batch)
            && replica.mesh.reports_loss()
            && !is_over
        {
            measured.add(figures);
        }
        replica.slowdown.hold_validation(pass_began);
        replica.mesh.check()?;
    }
    let totals = StepTotals::of(measured.read());
    step_totals::send(&totals, replica.mesh.world());
    let totals = step_totals::collect(replica.mesh.world())?;
    if totals.loss().is_finite() {
        return Ok(ValidationOutcome::Figures(totals));
    }
    Err(Failure::NotFinite { step: which.step, figure: "the validation loss".into() })
}

/// Reports that the figures of a validation are of `done` samples only, not of all `samples`.
fn tell_cut(replica: &Replica<'_>, (done, samples): (u64, u64), tell: &EventSink) {
    if replica.mesh.world().rank() == 0 {
        tell(Event::Notice(format!(
            "the time limit ended the last validation after {done} of {samples} samples: its figures are of these alone"
        )));
    }
}

/// The decision of all ranks about a validation that has begun.
enum RankDecision {
    GoOn,
    Stop,
    TimeIsOver,
}

/// The votes of the ranks on the continuation of a validation.
struct ContinueVote {
    began: Instant,
    /// Time of rank 0's last progress report, in seconds from the beginning of the validation.
    told: f64,
    /// Number of the pass before which the next vote is held.
    next: u64,
}

impl ContinueVote {
    /// Holds a vote and returns the decision. Rank 0 decides the time of the next vote, and whether the
    /// time is over; any rank may have the order to stop.
    fn reach(
        &mut self,
        replica: &mut Replica<'_>,
        which: ValidationId,
        (done, of): (u64, u64),
        watching: &mut ValidationHooks<'_>,
    ) -> Result<RankDecision, Failure> {
        // A device may have only queued its work.
        replica.clock.wait();
        let world = replica.mesh.world();
        let seconds = self.began.elapsed().as_secs_f64();
        let is_first = world.rank() == 0;
        let is_over = is_first && watching.clock.is_over(which.is_last, self.next > 0);
        let own = StepTotals {
            ordered: watching.orders.stop(),
            elapsed: if is_first { seconds } else { 0.0 },
            // A flag in the count: no rank counts anything yet.
            count: u64::from(is_over),
            ..StepTotals::default()
        };
        step_totals::send(&own, world);
        let all = step_totals::collect(world)?;
        if is_first && all.elapsed - self.told >= AGREE_SECONDS {
            self.told = all.elapsed;
            (watching.tell)(Event::Validating { step: which.step, done, of });
        }
        self.next += passes(self.next, all.elapsed);
        Ok(if all.ordered {
            RankDecision::Stop
        } else if all.count > 0 {
            RankDecision::TimeIsOver
        } else {
            RankDecision::GoOn
        })
    }
}

/// Returns the number of passes until the next vote, given that `done` passes took `seconds`; it is at
/// most `done`.
fn passes(done: u64, seconds: f64) -> u64 {
    #![expect(clippy::cast_precision_loss, reason = "counts of passes are far below 2^52")]
    #![expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float saturates"
    )]
    ((done as f64 * AGREE_SECONDS / seconds.max(1e-9)) as u64).clamp(1, done.max(1))
}

/// Passes `batch` through all chunks of this rank, in order, as all stages of the pipeline do; returns
/// the output of the last one.
///
/// Not counted in `planner/src/step/traffic`: validation.
fn through(replica: &mut Replica<'_>, batch: &Batch) -> ForwardOutput {
    let Replica { stage, messages, .. } = replica;
    let mut last = None;
    for chunk in 0..stage.chunks() {
        let pass = Pass { micro: 0, chunk };
        if !stage.is_first(chunk) {
            let shape = stage.message_shape(chunk, Neighbor::Previous, batch.samples());
            messages.exchange(Neighbor::Previous, None, Some((pass, shape)));
        }
        let flow = stage.infer(chunk, messages.take(Neighbor::Previous, pass), &ModelInput::of(batch));
        if let ForwardOutput::Activation(activation) = &flow {
            messages.give(Neighbor::Next, pass, activation.clone());
            messages.exchange(Neighbor::Next, Some(pass), None);
        }
        last = Some(flow);
    }
    last.expect("a stage has a chunk")
}

/// Returns the part of the samples `0..samples` that replica number `replica` of `replicas` takes.
fn replica_range(samples: u64, replica: u32, replicas: u32) -> Range<u64> {
    let (replica, replicas) = (u64::from(replica), u64::from(replicas));
    samples * replica / replicas..samples * (replica + 1) / replicas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_a_few_times_a_second() {
        for pass_seconds in [1e-6, 1e-3, 0.1, 3.0] {
            let (mut done, mut longest) = (0, 0);
            while f64::from(done) * pass_seconds < 20.0 {
                let more = u32::try_from(passes(done.into(), f64::from(done) * pass_seconds)).unwrap();
                (done, longest) = (done + more, longest.max(more));
            }
            let seconds = f64::from(longest) * pass_seconds;
            assert!(
                seconds <= AGREE_SECONDS.max(pass_seconds) + 1e-9,
                "{seconds} s in passes of {pass_seconds} s"
            );
        }
    }

    #[test]
    fn every_validation_sample_is_taken_by_one_replica() {
        for samples in 0..40 {
            for replicas in 1..7 {
                let all: Vec<_> =
                    (0..replicas).flat_map(|replica| replica_range(samples, replica, replicas)).collect();
                assert_eq!(all, (0..samples).collect::<Vec<_>>());
            }
        }
    }
}
