//! Executes the actions of one optimizer step, exactly as the assignment lists them.

use crate::data::Batch;
use crate::optimizer::Optimizer;
use crate::parallel::{Ballot, Buckets, Courier, Tally, tally};
use crate::session::Stream;
use crate::stage::{Flow, Samples, Stage};
use dtrain_protocol::{Action, Failure, PhaseTimes, StepId, Training};
use std::time::Instant;

/// One replica's part of the model, with what moves its weights.
pub(crate) struct Replica<'a> {
    pub(crate) training: &'a Training,
    pub(crate) stage: Stage,
    pub(crate) optimizer: Optimizer,
    pub(crate) buckets: Buckets,
    /// Index among the replicas is the courier's rank.
    pub(crate) courier: Courier,
}

/// What a step gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepOutcome {
    /// Figures and flags of all replicas.
    pub(crate) tally: Tally,
    /// Global gradient norm before clipping.
    pub(crate) gradient_norm: f64,
    /// Learning rate that was applied.
    pub(crate) learning_rate: f64,
    /// Where this rank's time went.
    pub(crate) times: PhaseTimes,
}

/// Does `actions` as the step after `done` steps.
///
/// `flags` are this rank's wishes to stop; its figures are ignored. An `Err` leaves the weights as they were
/// when a figure is not finite, and unusable otherwise.
pub(crate) fn step(
    replica: &mut Replica<'_>,
    actions: &[Action],
    stream: &mut Stream,
    done: StepId,
    flags: Ballot,
) -> Result<StepOutcome, Failure> {
    let began = Instant::now();
    let last_backward = actions.iter().rposition(|action| matches!(action, Action::Backward(_)));
    let mut run = Run {
        replica,
        done,
        ballot: flags,
        tally: None,
        gradient_norm: f64::NAN,
        times: PhaseTimes::default(),
    };
    let mut learning_rate = 0.0;
    run.replica.stage.gradients().clear();
    for (index, action) in actions.iter().enumerate() {
        match action {
            Action::Forward(micro) => run.forward(*micro, stream)?,
            Action::Backward(micro) => run.backward(*micro, Some(index) == last_backward),
            Action::ReduceGradients => run.reduce()?,
            Action::UpdateWeights => learning_rate = run.update()?,
            Action::Exchange { .. } => return Err(beyond("an exchange between pipeline stages")),
        }
    }
    let Run { tally, gradient_norm, mut times, .. } = run;
    times.step = began.elapsed().as_secs_f64();
    let tally = tally.ok_or_else(|| beyond("a step that does not reduce its gradients"))?;
    Ok(StepOutcome { tally, gradient_norm, learning_rate, times })
}

/// The failure of an assignment that asks for more than the worker can.
fn beyond(what: &str) -> Failure {
    Failure::Other(format!("the assignment asks for {what}, which this worker cannot do; plan again"))
}

/// A step in progress.
struct Run<'r, 'a> {
    replica: &'r mut Replica<'a>,
    /// Steps completed before this one.
    done: StepId,
    ballot: Ballot,
    tally: Option<Tally>,
    gradient_norm: f64,
    times: PhaseTimes,
}

impl Run<'_, '_> {
    fn forward(&mut self, micro: u32, stream: &mut Stream) -> Result<(), Failure> {
        let began = Instant::now();
        let batch = stream.next()?;
        self.times.data += began.elapsed().as_secs_f64();

        let began = Instant::now();
        match self.replica.stage.forward(micro, None, &view(&batch)) {
            Flow::Loss { loss_sum, hits, count } => {
                self.ballot.add(&Ballot { loss_sum, hits, count, ..Ballot::default() });
            }
            Flow::Activation(_) => return Err(beyond("a part of a model without its end")),
        }
        self.times.forward += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// The loss is known before the last backward, so its sum over the ranks travels first, and gradients follow
    /// while backward computes.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a share of a batch")]
    fn backward(&mut self, micro: u32, is_last: bool) {
        let began = Instant::now();
        let Replica { training, stage, buckets, courier, .. } = &mut *self.replica;
        let weight = (f64::from(training.micro_batch) / training.batch as f64) as f32;
        if is_last {
            tally::send(&self.ballot, courier);
        }
        let overlap = is_last && courier.ranks() > 1;
        stage.backward(micro, None, weight, &mut |unit, gradients| {
            if overlap {
                buckets.finish(unit, gradients, courier);
            }
        });
        self.times.backward += began.elapsed().as_secs_f64();
    }

    fn reduce(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        let Replica { stage, buckets, courier, .. } = &mut *self.replica;
        let tally = tally::collect(courier)?;
        if courier.ranks() > 1 {
            buckets.collect(stage.gradients(), courier)?;
        }
        self.times.communication += began.elapsed().as_secs_f64();
        self.tally = Some(tally);
        if tally.loss().is_finite() { Ok(()) } else { Err(self.not_finite("the loss")) }
    }

    /// Clips and applies; returns the learning rate. Nothing is applied unless the gradient is finite.
    #[expect(clippy::cast_possible_truncation, reason = "a factor in (0, 1]")]
    fn update(&mut self) -> Result<f64, Failure> {
        let began = Instant::now();
        let norm = self.replica.stage.gradients().norm_squared().sqrt();
        if !norm.is_finite() {
            return Err(self.not_finite("the gradient norm"));
        }
        let Replica { training, stage, optimizer, .. } = &mut *self.replica;
        let rate = learning_rate(training, self.done);
        let scale = training.clip.map_or(1.0, |largest| (largest / norm).min(1.0));
        optimizer.step(stage, rate, scale as f32, self.done.0 + 1);
        self.gradient_norm = norm;
        self.times.optimizer += began.elapsed().as_secs_f64();
        Ok(rate)
    }

    fn not_finite(&self, figure: &str) -> Failure {
        Failure::NotFinite { step: StepId(self.done.0 + 1), figure: figure.into() }
    }
}

/// A batch as a stage reads it.
pub(crate) fn view(batch: &Batch) -> Samples<'_> {
    match batch {
        Batch::Tokens { inputs, targets, samples, length } => {
            Samples::Tokens { inputs, targets, samples: *samples, length: *length }
        }
        Batch::Rows { values, classes, samples, width } => {
            Samples::Rows { values, classes, samples: *samples, width: *width }
        }
    }
}

/// Learning rate of the step after `done` steps.
pub(crate) fn learning_rate(training: &Training, done: StepId) -> f64 {
    dtrain_protocol::rate::learning_rate(
        training.schedule,
        training.learning_rate,
        training.final_fraction,
        training.warmup_steps,
        training.schedule_steps,
        done.0,
    )
}
