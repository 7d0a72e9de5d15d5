//! Executes the actions of one optimizer step, exactly as the assignment lists them.

use crate::optimizer::{Move, Optimizer};
use crate::parallel::pipeline::Post;
use crate::parallel::sync::{Outer, norms_squared};
use crate::parallel::{Ballot, Mesh, Reduction, Tally, context, norm_squared, tally, tensor, update};
use crate::session::Stream;
use crate::stage::{Flow, Samples, Stage};
use crate::watch::{Phase, Tempo, Watch};
use dtrain_protocol::{Action, Failure, Pass, PhaseTimes, StepId, Toward, Training};
use std::time::Instant;

/// One rank's part of the model, with what moves its weights.
pub(crate) struct Replica<'a> {
    pub(crate) training: &'a Training,
    pub(crate) stage: Stage,
    pub(crate) optimizer: Optimizer,
    pub(crate) reduction: Reduction,
    /// Where replicas move apart: what they have in common.
    pub(crate) outer: Option<Outer>,
    pub(crate) post: Post,
    pub(crate) mesh: Mesh,
    pub(crate) tempo: Tempo,
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
    let watch = Watch::start(replica.mesh.waited());
    let mut run = Run { replica, done, ballot: flags, tally: None, gradient_norm: f64::NAN, watch };
    let mut learning_rate = 0.0;
    run.replica.stage.gradients().clear();
    run.replica.post.clear();
    run.spent(Phase::Optimizer);
    for (index, action) in actions.iter().enumerate() {
        match action {
            Action::Forward(pass) => run.forward(*pass, stream)?,
            Action::Backward(pass) => run.backward(*pass, is_last(actions, index)),
            Action::BackwardInput(pass) => run.backward_input(*pass),
            Action::BackwardWeights(pass) => run.backward_weights(*pass, is_last(actions, index)),
            Action::Exchange { with, send, recv } => run.exchange(*with, *send, *recv),
            Action::ReduceGradients => run.reduce()?,
            Action::UpdateWeights => learning_rate = run.update()?,
        }
        run.replica.mesh.check()?;
    }
    let Run { tally, gradient_norm, watch, .. } = run;
    let times = watch.times();
    let tally = tally.ok_or_else(|| beyond("a step that does not reduce its gradients"))?;
    Ok(StepOutcome { tally, gradient_norm, learning_rate, times })
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
    watch: Watch,
}

impl Run<'_, '_> {
    /// Puts the time since this was last called down to `phase`.
    fn spent(&mut self, phase: Phase) {
        self.watch.spent(phase, self.replica.mesh.waited());
    }

    fn forward(&mut self, pass: Pass, stream: &mut Stream) -> Result<(), Failure> {
        let reads = self.replica.stage.reads_samples(pass.chunk);
        let batch = if reads { Some(stream.next()?) } else { None };
        let batch = batch.map(|batch| context::cut(batch, &self.replica.mesh.partners().context));
        self.spent(Phase::Data);

        let began = Instant::now();
        let Replica { stage, post, mesh, tempo, .. } = &mut *self.replica;
        let samples = batch.as_ref().map_or(Samples::NOTHING, Samples::of);
        match stage.forward(pass, post.take(Toward::Previous, pass), &samples) {
            Flow::Loss { loss_sum, hits, count } if mesh.tells_loss() => {
                self.ballot.add(&Ballot { loss_sum, hits, count, ..Ballot::default() });
            }
            Flow::Loss { .. } => {}
            Flow::Activation(activation) => post.give(Toward::Next, pass, activation),
        }
        Tempo::hold(began, tempo.forward);
        self.spent(Phase::Forward);
        Ok(())
    }

    fn backward(&mut self, pass: Pass, last: Last) {
        let began = Instant::now();
        self.send_tally(last);
        let weight = self.weight();
        let Replica { stage, reduction, outer, post, mesh, tempo, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        let upstream = post.take(Toward::Next, pass);
        let before = stage.backward(pass, upstream, weight, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        if let Some(gradient) = before {
            post.give(Toward::Previous, pass, gradient);
        }
        Tempo::hold(began, tempo.input + tempo.weights);
        self.spent(Phase::Backward);
    }

    fn backward_input(&mut self, pass: Pass) {
        let began = Instant::now();
        let weight = self.weight();
        let Replica { stage, post, tempo, .. } = &mut *self.replica;
        let upstream = post.take(Toward::Next, pass);
        if let Some(gradient) = stage.backward_input(pass, upstream, weight) {
            post.give(Toward::Previous, pass, gradient);
        }
        Tempo::hold(began, tempo.input);
        self.spent(Phase::Backward);
    }

    fn backward_weights(&mut self, pass: Pass, last: Last) {
        let began = Instant::now();
        self.send_tally(last);
        let Replica { stage, reduction, outer, mesh, tempo, .. } = &mut *self.replica;
        let is_final = last.of_chunk && outer.is_none();
        stage.backward_weights(pass, &mut |unit, gradients| {
            reduction.finish(unit, gradients, mesh, is_final);
        });
        Tempo::hold(began, tempo.weights);
        self.spent(Phase::Backward);
    }

    /// The loss is known before the last backward, so its sum over the ranks travels first, and gradients follow
    /// while backward computes.
    fn send_tally(&self, last: Last) {
        if last.of_step {
            tally::send(&self.ballot, self.replica.mesh.world());
        }
    }

    /// What the mean loss of a micro-batch on this rank counts in the loss of the batch.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a share of a batch")]
    fn weight(&self) -> f32 {
        let Replica { training, outer, mesh, .. } = &*self.replica;
        // A replica that moves by itself knows its own samples only.
        let batch = if outer.is_some() { training.share.end - training.share.start } else { training.batch };
        // The mean over this rank's part of the sequences stands for as large a part of the batch.
        let parts = batch * u64::from(mesh.partners().context.size());
        (f64::from(training.micro_batch) / parts as f64) as f32
    }

    fn exchange(&mut self, with: Toward, send: Option<Pass>, recv: Option<Pass>) {
        let Replica { training, stage, post, .. } = &mut *self.replica;
        let samples = training.micro_batch as usize;
        let recv = recv.map(|pass| (pass, stage.message_shape(pass.chunk, with, samples)));
        post.exchange(with, send, recv);
        self.spent(Phase::Bubble);
    }

    fn reduce(&mut self) -> Result<(), Failure> {
        let tally = tally::collect(self.replica.mesh.world())?;
        // Stages that are done early wait here for the last one.
        let is_pipeline = self.replica.mesh.pipeline().size() > 1;
        self.spent(if is_pipeline { Phase::Bubble } else { Phase::Communication });
        let Replica { stage, reduction, outer, post, mesh, .. } = &mut *self.replica;
        if outer.is_none() {
            reduction.collect(stage.gradients(), mesh)?;
        }
        tensor::sum_parts(stage, mesh.partners());
        if let Some(index) = stage.tied_across_stages() {
            stage.gradients().change(index, |values| post.sum_with_other_end(values));
        }
        self.spent(Phase::Communication);
        self.tally = Some(tally);
        if tally.loss().is_finite() { Ok(()) } else { Err(self.not_finite("the loss")) }
    }

    /// Clips and applies; returns the learning rate. Nothing is applied unless the gradient is finite.
    #[expect(clippy::cast_possible_truncation, reason = "a factor in (0, 1]")]
    fn update(&mut self) -> Result<f64, Failure> {
        let Replica { training, stage, optimizer, outer, mesh, .. } = &mut *self.replica;
        let (own, norm) = if outer.is_some() {
            let (own, mean) = norms_squared(stage, mesh)?;
            (own.sqrt(), mean.sqrt())
        } else {
            let norm = norm_squared(stage, mesh)?.sqrt();
            (norm, norm)
        };
        if !norm.is_finite() {
            return Err(self.not_finite("the gradient norm"));
        }
        let rate = learning_rate(training, self.done);
        let scale = training.clip.map_or(1.0, |largest| (largest / own).min(1.0));
        update(stage, optimizer, mesh, Move { rate, scale: scale as f32, t: self.done.0 + 1 })?;
        self.gradient_norm = norm;
        self.spent(Phase::Optimizer);
        self.meet()?;
        Ok(rate)
    }

    /// Replicas that move apart meet when it is time.
    fn meet(&mut self) -> Result<(), Failure> {
        let Replica { stage, reduction, outer, mesh, .. } = &mut *self.replica;
        let Some(outer) = outer else { return Ok(()) };
        outer.moved();
        if outer.is_due(StepId(self.done.0 + 1)) {
            outer.meet(stage, reduction, mesh)?;
            self.spent(Phase::Communication);
        }
        Ok(())
    }

    fn not_finite(&self, figure: &str) -> Failure {
        Failure::NotFinite { step: StepId(self.done.0 + 1), figure: figure.into() }
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
