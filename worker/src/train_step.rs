//! Train step: executes the actions of one optimizer step, in the order of the assignment's pipeline
//! schedule (such as 1F1B).

use crate::data::{IGNORED, MicroBatchLoader};
use crate::loss_scale::LossScale;
use crate::mesh::Mesh;
use crate::network::{ModelInput, context_parallel};
use crate::ops::DeferredLossFigures;
use crate::optimizer::{StageOptimizer, WeightUpdate};
use crate::parallel::pipeline::PipelineMessages;
use crate::parallel::sync::{OuterOptimizer, norms_squared};
use crate::parallel::{
    GradientReduction, NoiseGauge, StepTotals, clip_factor, grad_norm_squared, sequence_parallel,
    step_totals, update,
};
use crate::snapshot::CopyCompletion;
use crate::stage::{ForwardOutput, LossWeights, Stage};
use crate::step_timer::{DeviceClock, Slowdown, StepPhase, StepTimer};
use dtrain_protocol::learning_rate_warmup_and_decay::{LearningRateSchedule, SchedulePosition};
use dtrain_protocol::{
    Action, Failure, GradientNoise, Hyperparameters, Neighbor, Pass, PhaseTimes, RunUntil, StepId,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// One rank's part of the model, with its optimizer, its process groups and the rest of its training state.
pub(crate) struct Replica<'a> {
    pub(crate) training: &'a Hyperparameters,
    /// End of training, which the learning rate depends on.
    pub(crate) until: &'a RunUntil,
    pub(crate) stage: Stage,
    pub(crate) optimizer: StageOptimizer,
    pub(crate) reduction: GradientReduction,
    /// Outer optimizer of local replicas.
    pub(crate) outer: Option<OuterOptimizer>,
    /// Loss scale, if products are in f16.
    pub(crate) loss_scale: Option<LossScale>,
    /// Gradient noise gauge, if replicas can be compared.
    pub(crate) noise: Option<NoiseGauge>,
    pub(crate) messages: PipelineMessages,
    pub(crate) mesh: Mesh,
    pub(crate) slowdown: Slowdown,
    /// Clock that divides the time of a step by phases on a device.
    pub(crate) clock: DeviceClock,
    /// Copying of the state in progress: weights must not change before its end.
    pub(crate) copying: Option<Arc<CopyCompletion>>,
}

/// The result of one step on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepOutcome {
    /// Totals and flags of all ranks.
    pub(crate) totals: StepTotals,
    /// Global gradient norm before clipping; `None` if the loss scale was too large and no update was made.
    pub(crate) gradient_norm: Option<f64>,
    /// Learning rate of the update; 0 if no update was made.
    pub(crate) learning_rate: f64,
    /// Gradient noise of the previous step, if it is measured.
    pub(crate) noise: Option<GradientNoise>,
    /// Time that this rank spent in each phase.
    pub(crate) times: PhaseTimes,
}

/// Computes the gradients of `fresh` batches, and makes the update after `done` steps with those of the
/// oldest pending batch; mostly that is one batch and its own update.
///
/// `actions` are those of one batch and one update. `flags` are this rank's stop request and its clock,
/// which are sent with each batch; its figures are ignored. An `Err` leaves the weights unchanged if a
/// figure is not finite, and unusable otherwise.
pub(crate) fn run_step(
    replica: &mut Replica<'_>,
    actions: &[Action],
    stream: &mut MicroBatchLoader,
    (done, fresh): (StepId, u64),
    flags: StepTotals,
) -> Result<StepOutcome, Failure> {
    let passes = actions.iter().position(|action| *action == Action::ReduceGradients);
    let passes = passes.ok_or_else(|| unsupported("a step that does not reduce its gradients"))?;
    let (passes, end) = actions.split_at(passes);
    let is_timed = replica.clock.begin_step();
    let watch = StepTimer::start(replica.mesh.waited());
    let outcome = StepOutcome::default();
    let measured = DeferredLossFigures::default();
    let counted = BTreeMap::new();
    let mut run = TrainStep { replica, done, totals: flags, measured, counted, outcome, watch, is_timed };
    for _ in 0..fresh {
        let square = run.replica.noise.as_ref().map_or(0.0, NoiseGauge::own);
        run.totals = StepTotals { square, ..flags };
        run.begin_batch();
        run.run_schedule(passes, stream)?;
        let Replica { stage, reduction, outer, mesh, .. } = &mut *run.replica;
        if outer.is_none() {
            reduction.start_remaining(stage.gradients(), mesh);
        }
        if run.replica.reduction.is_of_device() {
            run.send_totals();
            run.record_phase(StepPhase::Backward);
        }
        let Replica { stage, loss_scale, noise, .. } = &mut *run.replica;
        if let Some(noise) = noise {
            noise.measure(stage.gradients(), loss_scale.as_ref().map_or(1.0, LossScale::scale));
        }
        if let Some(scale) = loss_scale {
            scale.push_in_flight();
        }
        run.record_phase(StepPhase::Optimizer);
    }
    run.run_schedule(end, stream)?;
    let times = run.replica.clock.end_step(run.watch.times(), is_timed);
    Ok(StepOutcome { times, ..run.outcome })
}

/// Returns two flags about the backward action at `index`: it is the last one of all, and the last of its
/// chunk. Gradients are final then.
fn final_backward(actions: &[Action], index: usize) -> FinalBackward {
    let chunk = |action: &Action| match action {
        Action::Backward(pass) | Action::BackwardWeights(pass) => Some(pass.chunk),
        _ => None,
    };
    let mut later = actions[index + 1..].iter().filter_map(chunk).peekable();
    let own = chunk(&actions[index]);
    FinalBackward { of_step: later.peek().is_none(), of_chunk: later.all(|other| Some(other) != own) }
}

/// Two flags of a backward: it is the last of its step, and the last of its chunk.
#[derive(Clone, Copy, Debug)]
struct FinalBackward {
    of_step: bool,
    of_chunk: bool,
}

/// Returns the failure of an assignment that the worker does not support.
fn unsupported(what: &str) -> Failure {
    Failure::Other(format!("the assignment needs {what}, which this worker does not support; plan again"))
}

/// A train step in progress.
struct TrainStep<'r, 'a> {
    replica: &'r mut Replica<'a>,
    /// Number of steps completed before this one.
    done: StepId,
    totals: StepTotals,
    /// Losses that are not in the totals yet.
    measured: DeferredLossFigures,
    /// Numbers of targets that count in a pass over packed sequences and in the whole step.
    counted: BTreeMap<Pass, (usize, u64)>,
    outcome: StepOutcome,
    watch: StepTimer,
    /// True if the device is synchronized at the end of every phase.
    is_timed: bool,
}

impl TrainStep<'_, '_> {
    /// Runs the actions of a pipeline schedule, such as 1F1B, in their order.
    fn run_schedule(&mut self, actions: &[Action], stream: &mut MicroBatchLoader) -> Result<(), Failure> {
        for (index, action) in actions.iter().enumerate() {
            let began = Instant::now();
            let phase = match action {
                Action::Forward(pass) => self.forward(*pass, stream)?,
                Action::Backward(pass) => self.backward(*pass, final_backward(actions, index)),
                Action::BackwardInput(pass) => self.backward_input(*pass),
                Action::BackwardWeights(pass) => self.backward_weights(*pass, final_backward(actions, index)),
                Action::Exchange { with, send, recv } => self.exchange(*with, *send, *recv),
                Action::ReduceGradients => self.reduce()?,
                Action::UpdateWeights => self.update()?,
            };
            self.replica.slowdown.hold(action, began);
            self.record_phase(phase);
            self.replica.mesh.check()?;
        }
        Ok(())
    }

    /// Clears the gradients and messages before a batch.
    fn begin_batch(&mut self) {
        let Replica { stage, reduction, outer, loss_scale, messages, .. } = &mut *self.replica;
        stage.gradients().clear();
        messages.clear();
        // Local replicas sum changes of weights, which have no loss scale.
        if let Some(scale) = loss_scale.as_mut().filter(|_| outer.is_none()) {
            if let Some(old) = scale.take_feedback() {
                reduction.unscale_residual(old);
            }
            reduction.begin_batch(scale.scale());
        }
        self.record_phase(StepPhase::Optimizer);
    }

    /// Counts the time since the last call as time of `phase`.
    fn record_phase(&mut self, phase: StepPhase) {
        if self.is_timed {
            self.replica.clock.wait();
        }
        self.watch.record_phase(phase, self.replica.mesh.waited());
    }

    fn forward(&mut self, pass: Pass, stream: &mut MicroBatchLoader) -> Result<StepPhase, Failure> {
        let reads = stream.is_packed() || self.replica.stage.reads_samples(pass.chunk);
        let batch = if reads { Some(stream.next()?) } else { None };
        let batch = batch.map(|batch| context_parallel::cut(batch, &self.replica.mesh.partners().context));
        self.record_phase(StepPhase::Data);

        let Replica { stage, messages, mesh, .. } = &mut *self.replica;
        let samples = batch.as_ref().map_or(ModelInput::NOTHING, ModelInput::of);
        if let Some(packed) = samples.packed() {
            let counted = samples.targets().iter().filter(|target| **target != IGNORED).count();
            self.counted.insert(pass, (counted, packed.step_targets));
        }
        match stage.forward(pass, messages.take(Neighbor::Previous, pass), &samples) {
            ForwardOutput::Loss(figures) if mesh.reports_loss() => self.measured.add(figures),
            ForwardOutput::Loss(_) => {}
            ForwardOutput::Activation(activation) => messages.give(Neighbor::Next, pass, activation),
        }
        Ok(StepPhase::Forward)
    }

    fn backward(&mut self, pass: Pass, last: FinalBackward) -> StepPhase {
        self.before_last(last);
        let weight = self.weight(pass);
        let Replica { stage, reduction, outer, messages, mesh, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        let upstream = messages.take(Neighbor::Next, pass);
        let before = stage.backward(pass, upstream, weight, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        if let Some(gradient) = before {
            messages.give(Neighbor::Previous, pass, gradient);
        }
        StepPhase::Backward
    }

    fn backward_input(&mut self, pass: Pass) -> StepPhase {
        let weight = self.weight(pass);
        let Replica { stage, messages, .. } = &mut *self.replica;
        let upstream = messages.take(Neighbor::Next, pass);
        if let Some(gradient) = stage.backward_input(pass, upstream, weight) {
            messages.give(Neighbor::Previous, pass, gradient);
        }
        StepPhase::Backward
    }

    fn backward_weights(&mut self, pass: Pass, last: FinalBackward) -> StepPhase {
        self.before_last(last);
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        stage.backward_weights(pass, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        StepPhase::Backward
    }

    /// Sends the totals before the last backward: the host knows the loss by then, and gradients follow
    /// while backward computes. A device would have to be synchronized in the middle of the batch: there
    /// gradients go first.
    fn before_last(&mut self, last: FinalBackward) {
        if last.of_step && !self.replica.reduction.is_of_device() {
            self.send_totals();
        }
    }

    /// Reads the loss figures of the batch, and starts to sum the totals over the ranks.
    fn send_totals(&mut self) {
        self.totals.add(&StepTotals::of(std::mem::take(&mut self.measured).read()));
        step_totals::send(&self.totals, self.replica.mesh.world());
    }

    /// Returns the weights of a pass on this rank in the loss of the batch, times the loss scale. The loss is the
    /// mean over the targets that count, in packed sequences as many as there happen to be.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a share of a batch")]
    fn weight(&mut self, pass: Pass) -> LossWeights {
        let counted = self.counted.remove(&pass);
        let Replica { training, outer, loss_scale, mesh, .. } = &*self.replica;
        // A replica that moves by itself knows its own samples only.
        let batch = if outer.is_some() { training.share.end - training.share.start } else { training.batch };
        // The mean over this rank's part of the sequences stands for as large a part of the batch.
        let parts = batch * u64::from(mesh.partners().context.size());
        let scale = loss_scale.as_ref().map_or(1.0, LossScale::scale);
        let penalty = scale * (f64::from(training.micro_batch) / parts as f64) as f32;
        let share = |(own, all): (usize, u64)| scale * (own as f64 / all.max(1) as f64) as f32;
        LossWeights { loss: counted.map_or(penalty, share), penalty }
    }

    /// Exchanges pipeline messages with a neighboring stage.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `messages`.
    fn exchange(&mut self, with: Neighbor, send: Option<Pass>, recv: Option<Pass>) -> StepPhase {
        let Replica { training, stage, messages, .. } = &mut *self.replica;
        let samples = training.micro_batch as usize;
        let recv = recv.map(|pass| (pass, stage.message_shape(pass.chunk, with, samples)));
        messages.exchange(with, send, recv);
        StepPhase::Bubble
    }

    fn reduce(&mut self) -> Result<StepPhase, Failure> {
        // In the order in which they were sent.
        let gradients_first = self.replica.reduction.is_of_device();
        if gradients_first {
            self.collect_gradients()?;
        }
        let totals = step_totals::collect(self.replica.mesh.world())?;
        // Stages that are done early wait here for the last one.
        let is_pipeline = self.replica.mesh.pipeline().size() > 1;
        self.record_phase(if is_pipeline { StepPhase::Bubble } else { StepPhase::Communication });
        if !gradients_first {
            self.collect_gradients()?;
        }
        let Replica { stage, messages, mesh, .. } = &mut *self.replica;
        sequence_parallel::sum_parts(stage, mesh.partners());
        if let Some(index) = stage.tied_across_stages() {
            stage.gradients().change(index, |values| messages.sum_with_other_end(values));
        }
        self.outcome.totals = totals;
        if totals.loss().is_finite() {
            Ok(StepPhase::Communication)
        } else {
            Err(self.not_finite("the loss"))
        }
    }

    /// Waits for the sums of the gradients of the oldest batch in flight.
    fn collect_gradients(&mut self) -> Result<(), Failure> {
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        if outer.is_none() {
            reduction.collect(stage.gradients(), mesh)?;
        }
        self.record_phase(StepPhase::Communication);
        Ok(())
    }

    /// Clips the gradient and updates the weights. Unless the gradient is finite, nothing is updated and
    /// error feedback drops the batch; that is an error unless a smaller loss scale may help.
    #[expect(clippy::cast_possible_truncation, reason = "a factor in (0, 1]")]
    fn update(&mut self) -> Result<StepPhase, Failure> {
        if let Some(copying) = self.replica.copying.take() {
            copying.wait();
        }
        let Replica { training, until, stage, optimizer, reduction, outer, loss_scale, noise, mesh, .. } =
            &mut *self.replica;
        let loss_was = loss_scale.as_mut().map_or(1.0, LossScale::pop_in_flight);
        let (own, norm) = if outer.is_some() {
            let (own, mean) = norms_squared(stage, mesh)?;
            (own.sqrt(), mean.sqrt())
        } else {
            let norm = grad_norm_squared(stage, mesh)?.sqrt();
            (norm, norm)
        };
        let (own, norm) = (own / f64::from(loss_was), norm / f64::from(loss_was));
        self.outcome.gradient_norm = Some(norm).filter(|norm| norm.is_finite());
        reduction.resolve_batch(norm.is_finite());
        let may_shrink = match loss_scale {
            None => false,
            Some(scale) if norm.is_finite() => {
                scale.record_finite();
                false
            }
            Some(scale) => scale.shrink(loss_was),
        };
        if !norm.is_finite() {
            self.record_phase(StepPhase::Optimizer);
            return if may_shrink { self.outer_step() } else { Err(self.not_finite("the gradient norm")) };
        }
        self.outcome.noise = noise.as_mut().and_then(|n| n.compare(norm * norm, self.outcome.totals.square));
        let rate = learning_rate(training, until, self.done, self.outcome.totals.elapsed);
        let scale = clip_factor(own, training.clip) / f64::from(loss_was);
        update(stage, optimizer, mesh, WeightUpdate { rate, scale: scale as f32, t: self.done.0 + 1 })?;
        self.outcome.learning_rate = rate;
        self.record_phase(StepPhase::Optimizer);
        self.outer_step()
    }

    /// Makes an outer step of local replicas, if one is due.
    fn outer_step(&mut self) -> Result<StepPhase, Failure> {
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        let Some(outer) = outer else { return Ok(StepPhase::Optimizer) };
        outer.mark_diverged();
        if outer.is_due(StepId(self.done.0 + 1)) {
            outer.outer_step(stage, reduction, mesh)?;
        }
        Ok(StepPhase::Communication)
    }

    fn not_finite(&self, figure: &str) -> Failure {
        Failure::NotFinite { step: StepId(self.done.0 + 1), figure: figure.into() }
    }
}

/// Returns the learning rate of the step after `done` steps, at the share `elapsed` of the time limit.
fn learning_rate(training: &Hyperparameters, until: &RunUntil, done: StepId, elapsed: f64) -> f64 {
    let elapsed = until.seconds.map(|_| elapsed);
    LearningRateSchedule::of(training).at(SchedulePosition {
        step: done.0,
        steps: until.steps.map(|steps| steps.0),
        elapsed,
    })
}

#[cfg(test)]
pub(crate) mod tests;
