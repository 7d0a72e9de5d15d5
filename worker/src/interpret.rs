//! Executes the actions of one optimizer step, exactly as the assignment lists them.

use crate::loss_scale::LossScale;
use crate::ops::Measured;
use crate::optimizer::{Move, Optimizer};
use crate::parallel::pipeline::PipelineMessages;
use crate::parallel::sync::{Outer, norms_squared, undo};
use crate::parallel::{
    Mesh, NoiseGauge, Reduction, StepTotals, context, norm_squared, step_totals, tensor, update,
};
use crate::session::{Copying, Stream};
use crate::stage::{Flow, Samples, Stage};
use crate::watch::{DeviceClock, Phase, Slowdown, Watch};
use dtrain_protocol::rate::{Curve, Progress};
use dtrain_protocol::{Action, Failure, GradientNoise, Pass, PhaseTimes, RunUntil, StepId, Toward, Training};
use std::sync::Arc;
use std::time::Instant;

/// One rank's part of the model, with what moves its weights.
pub(crate) struct Replica<'a> {
    pub(crate) training: &'a Training,
    /// When training is over, which the learning rate depends on.
    pub(crate) until: &'a RunUntil,
    pub(crate) stage: Stage,
    pub(crate) optimizer: Optimizer,
    pub(crate) reduction: Reduction,
    /// Where replicas move apart: what they have in common.
    pub(crate) outer: Option<Outer>,
    /// Where products are of f16: what the loss is multiplied by.
    pub(crate) loss_scale: Option<LossScale>,
    /// Where replicas' gradients can be compared with their sum: what compares them.
    pub(crate) noise: Option<NoiseGauge>,
    pub(crate) messages: PipelineMessages,
    pub(crate) mesh: Mesh,
    pub(crate) slowdown: Slowdown,
    /// Tells the phases of a step apart where a device computes them.
    pub(crate) clock: DeviceClock,
    /// The state that is being copied, where it is: it must not change before it was.
    pub(crate) copying: Option<Arc<Copying>>,
}

/// What a step gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepOutcome {
    /// Figures and flags of all replicas.
    pub(crate) totals: StepTotals,
    /// Global gradient norm before clipping; none when a loss scale was too large and nothing moved.
    pub(crate) gradient_norm: Option<f64>,
    /// Learning rate that was applied.
    pub(crate) learning_rate: f64,
    /// What the gradients of the step before tell.
    pub(crate) noise: Option<GradientNoise>,
    /// Where this rank's time went.
    pub(crate) times: PhaseTimes,
}

/// Computes the gradients of `fresh` batches, and makes the update after `done` steps with those of the oldest batch that
/// is owed one; mostly that is one batch and its own update.
///
/// `actions` are those of one batch and one update. `flags` are this rank's wish to stop and its clock, which travel with each
/// batch; its figures are ignored. An `Err` leaves the weights as they were when a figure is not finite, and unusable otherwise.
pub(crate) fn step(
    replica: &mut Replica<'_>,
    actions: &[Action],
    stream: &mut Stream,
    (done, fresh): (StepId, u64),
    flags: StepTotals,
) -> Result<StepOutcome, Failure> {
    let passes = actions.iter().position(|action| *action == Action::ReduceGradients);
    let passes = passes.ok_or_else(|| beyond("a step that does not reduce its gradients"))?;
    let (passes, end) = actions.split_at(passes);
    let is_timed = replica.clock.begin_step();
    let watch = Watch::start(replica.mesh.waited());
    let outcome = StepOutcome {
        totals: StepTotals::default(),
        gradient_norm: None,
        learning_rate: 0.0,
        noise: None,
        times: PhaseTimes::default(),
    };
    let measured = Measured::default();
    let mut run = Run { replica, done, totals: flags, measured, outcome, watch, is_timed };
    for _ in 0..fresh {
        let square = run.replica.noise.as_ref().map_or(0.0, NoiseGauge::own);
        run.totals = StepTotals { square, ..flags };
        run.begin_batch();
        run.follow(passes, stream)?;
        let Replica { stage, reduction, outer, mesh, .. } = &mut *run.replica;
        if outer.is_none() {
            reduction.leave(stage.gradients(), mesh);
        }
        if run.replica.reduction.is_of_device() {
            run.send_totals();
            run.spent(Phase::Backward);
        }
        let Replica { stage, loss_scale, noise, .. } = &mut *run.replica;
        if let Some(noise) = noise {
            noise.measure(stage.gradients(), loss_scale.as_ref().map_or(1.0, LossScale::scale));
        }
        if let Some(scale) = loss_scale {
            scale.leave();
        }
        run.spent(Phase::Optimizer);
    }
    run.follow(end, stream)?;
    let times = run.replica.clock.end_step(run.watch.times(), is_timed);
    Ok(StepOutcome { times, ..run.outcome })
}

/// Whether the action at `index` is the last backward of all, and the last of its chunk: gradients are final then.
fn is_last(actions: &[Action], index: usize) -> Last {
    let chunk = |action: &Action| match action {
        Action::Backward(pass) | Action::BackwardWeights(pass) => Some(pass.chunk),
        _ => None,
    };
    let mut later = actions[index + 1..].iter().filter_map(chunk).peekable();
    let own = chunk(&actions[index]);
    Last { of_step: later.peek().is_none(), of_chunk: later.all(|other| Some(other) != own) }
}

/// What a backward is the last of.
#[derive(Clone, Copy, Debug)]
struct Last {
    of_step: bool,
    of_chunk: bool,
}

/// The failure of an assignment that asks for more than the worker can.
fn beyond(what: &str) -> Failure {
    Failure::Other(format!("the assignment needs {what}, which this worker does not support; plan again"))
}

/// A step in progress.
struct Run<'r, 'a> {
    replica: &'r mut Replica<'a>,
    /// Steps completed before this one.
    done: StepId,
    totals: StepTotals,
    /// Losses that are not in the totals yet.
    measured: Measured,
    outcome: StepOutcome,
    watch: Watch,
    /// Whether every phase ends only when the device has done it.
    is_timed: bool,
}

impl Run<'_, '_> {
    /// Does `actions` in their order.
    fn follow(&mut self, actions: &[Action], stream: &mut Stream) -> Result<(), Failure> {
        for (index, action) in actions.iter().enumerate() {
            let began = Instant::now();
            let phase = match action {
                Action::Forward(pass) => self.forward(*pass, stream)?,
                Action::Backward(pass) => self.backward(*pass, is_last(actions, index)),
                Action::BackwardInput(pass) => self.backward_input(*pass),
                Action::BackwardWeights(pass) => self.backward_weights(*pass, is_last(actions, index)),
                Action::Exchange { with, send, recv } => self.exchange(*with, *send, *recv),
                Action::ReduceGradients => self.reduce()?,
                Action::UpdateWeights => self.update()?,
            };
            self.replica.slowdown.hold(action, began);
            self.spent(phase);
            self.replica.mesh.check()?;
        }
        Ok(())
    }

    /// Makes room for the gradients of a batch.
    fn begin_batch(&mut self) {
        let Replica { stage, reduction, outer, loss_scale, messages, .. } = &mut *self.replica;
        stage.gradients().clear();
        messages.clear();
        // Replicas that move apart sum changes of weights, which know no loss scale.
        if let Some(scale) = loss_scale.as_mut().filter(|_| outer.is_none()) {
            if let Some(old) = scale.take_feedback() {
                undo::unscale(reduction, old);
            }
            undo::begin(reduction, scale.scale());
        }
        self.spent(Phase::Optimizer);
    }

    /// Puts the time since this was last called down to `phase`.
    fn spent(&mut self, phase: Phase) {
        if self.is_timed {
            self.replica.clock.wait();
        }
        self.watch.spent(phase, self.replica.mesh.waited());
    }

    fn forward(&mut self, pass: Pass, stream: &mut Stream) -> Result<Phase, Failure> {
        let reads = self.replica.stage.reads_samples(pass.chunk);
        let batch = if reads { Some(stream.next()?) } else { None };
        let batch = batch.map(|batch| context::cut(batch, &self.replica.mesh.partners().context));
        self.spent(Phase::Data);

        let Replica { stage, messages, mesh, .. } = &mut *self.replica;
        let samples = batch.as_ref().map_or(Samples::NOTHING, Samples::of);
        match stage.forward(pass, messages.take(Toward::Previous, pass), &samples) {
            Flow::Loss(figures) if mesh.tells_loss() => self.measured.add(figures),
            Flow::Loss(_) => {}
            Flow::Activation(activation) => messages.give(Toward::Next, pass, activation),
        }
        Ok(Phase::Forward)
    }

    fn backward(&mut self, pass: Pass, last: Last) -> Phase {
        self.before_last(last);
        let weight = self.weight();
        let Replica { stage, reduction, outer, messages, mesh, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        let upstream = messages.take(Toward::Next, pass);
        let before = stage.backward(pass, upstream, weight, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        if let Some(gradient) = before {
            messages.give(Toward::Previous, pass, gradient);
        }
        Phase::Backward
    }

    fn backward_input(&mut self, pass: Pass) -> Phase {
        let weight = self.weight();
        let Replica { stage, messages, .. } = &mut *self.replica;
        let upstream = messages.take(Toward::Next, pass);
        if let Some(gradient) = stage.backward_input(pass, upstream, weight) {
            messages.give(Toward::Previous, pass, gradient);
        }
        Phase::Backward
    }

    fn backward_weights(&mut self, pass: Pass, last: Last) -> Phase {
        self.before_last(last);
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        stage.backward_weights(pass, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        Phase::Backward
    }

    /// The host knows the loss before the last backward, so its sum over the ranks travels first, and gradients follow while
    /// backward computes. A device would have to be waited for in the middle of the batch: there gradients go first.
    fn before_last(&mut self, last: Last) {
        if last.of_step && !self.replica.reduction.is_of_device() {
            self.send_totals();
        }
    }

    /// Reads the figures of the batch and begins to sum them over the ranks.
    fn send_totals(&mut self) {
        self.totals.add(&StepTotals::of(std::mem::take(&mut self.measured).read()));
        step_totals::send(&self.totals, self.replica.mesh.world());
    }

    /// What the mean loss of a micro-batch on this rank counts in the loss of the batch, times the loss scale.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a share of a batch")]
    fn weight(&self) -> f32 {
        let Replica { training, outer, loss_scale, mesh, .. } = &*self.replica;
        // A replica that moves by itself knows its own samples only.
        let batch = if outer.is_some() { training.share.end - training.share.start } else { training.batch };
        // The mean over this rank's part of the sequences stands for as large a part of the batch.
        let parts = batch * u64::from(mesh.partners().context.size());
        let scale = loss_scale.as_ref().map_or(1.0, LossScale::scale);
        scale * (f64::from(training.micro_batch) / parts as f64) as f32
    }

    fn exchange(&mut self, with: Toward, send: Option<Pass>, recv: Option<Pass>) -> Phase {
        let Replica { training, stage, messages, .. } = &mut *self.replica;
        let samples = training.micro_batch as usize;
        let recv = recv.map(|pass| (pass, stage.message_shape(pass.chunk, with, samples)));
        messages.exchange(with, send, recv);
        Phase::Bubble
    }

    fn reduce(&mut self) -> Result<Phase, Failure> {
        // In the order in which they left.
        let gradients_first = self.replica.reduction.is_of_device();
        if gradients_first {
            self.collect_gradients()?;
        }
        let totals = step_totals::collect(self.replica.mesh.world())?;
        // Stages that are done early wait here for the last one.
        let is_pipeline = self.replica.mesh.pipeline().size() > 1;
        self.spent(if is_pipeline { Phase::Bubble } else { Phase::Communication });
        if !gradients_first {
            self.collect_gradients()?;
        }
        let Replica { stage, messages, mesh, .. } = &mut *self.replica;
        tensor::sum_parts(stage, mesh.partners());
        if let Some(index) = stage.tied_across_stages() {
            stage.gradients().change(index, |values| messages.sum_with_other_end(values));
        }
        self.outcome.totals = totals;
        if totals.loss().is_finite() { Ok(Phase::Communication) } else { Err(self.not_finite("the loss")) }
    }

    /// Waits for the sums of the gradients of the oldest batch that left.
    fn collect_gradients(&mut self) -> Result<(), Failure> {
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        if outer.is_none() {
            reduction.collect(stage.gradients(), mesh)?;
        }
        self.spent(Phase::Communication);
        Ok(())
    }

    /// Clips and applies. Unless the gradient is finite, nothing is applied and error feedback forgets the batch; that is
    /// an error unless a smaller loss scale may help.
    #[expect(clippy::cast_possible_truncation, reason = "a factor in (0, 1]")]
    fn update(&mut self) -> Result<Phase, Failure> {
        if let Some(copying) = self.replica.copying.take() {
            copying.wait();
        }
        let Replica { training, until, stage, optimizer, reduction, outer, loss_scale, noise, mesh, .. } =
            &mut *self.replica;
        let loss_was = loss_scale.as_mut().map_or(1.0, LossScale::arrive);
        let (own, norm) = if outer.is_some() {
            let (own, mean) = norms_squared(stage, mesh)?;
            (own.sqrt(), mean.sqrt())
        } else {
            let norm = norm_squared(stage, mesh)?.sqrt();
            (norm, norm)
        };
        let (own, norm) = (own / f64::from(loss_was), norm / f64::from(loss_was));
        self.outcome.gradient_norm = Some(norm).filter(|norm| norm.is_finite());
        undo::settle(reduction, norm.is_finite());
        let may_shrink = match loss_scale {
            None => false,
            Some(scale) if norm.is_finite() => {
                scale.settle();
                false
            }
            Some(scale) => scale.shrink(loss_was),
        };
        if !norm.is_finite() {
            self.spent(Phase::Optimizer);
            return if may_shrink { self.meet() } else { Err(self.not_finite("the gradient norm")) };
        }
        self.outcome.noise = noise.as_mut().and_then(|n| n.compare(norm * norm, self.outcome.totals.square));
        let rate = learning_rate(training, until, self.done, self.outcome.totals.elapsed);
        let scale = training.clip.map_or(1.0, |largest| (largest / own).min(1.0)) / f64::from(loss_was);
        update(stage, optimizer, mesh, Move { rate, scale: scale as f32, t: self.done.0 + 1 })?;
        self.outcome.learning_rate = rate;
        self.spent(Phase::Optimizer);
        self.meet()
    }

    /// Replicas that move apart meet when it is time.
    fn meet(&mut self) -> Result<Phase, Failure> {
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        let Some(outer) = outer else { return Ok(Phase::Optimizer) };
        outer.moved();
        if outer.is_due(StepId(self.done.0 + 1)) {
            outer.meet(stage, reduction, mesh)?;
        }
        Ok(Phase::Communication)
    }

    fn not_finite(&self, figure: &str) -> Failure {
        Failure::NotFinite { step: StepId(self.done.0 + 1), figure: figure.into() }
    }
}

/// Learning rate of the step after `done` steps, when a share of `elapsed` of the time limit has passed.
fn learning_rate(training: &Training, until: &RunUntil, done: StepId, elapsed: f64) -> f64 {
    let elapsed = until.seconds.map(|_| elapsed);
    Curve::of(training).at(Progress { step: done.0, steps: until.steps.map(|steps| steps.0), elapsed })
}

#[cfg(test)]
pub(crate) mod tests;
