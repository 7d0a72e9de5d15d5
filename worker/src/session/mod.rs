//! Session: one attempt of one rank, from the assignment to the last event.
//!
//! Decides nothing: the assignment says what a step does, and when to save, validate and stop; all ranks
//! agree on flags that are raised on the way (an order, the clock) before any of them acts.

mod agent_orders;
mod extra_state;
mod load_checkpoint;
mod pending_updates;
mod read_parameter;
mod replica_check;
mod save_checkpoint;
mod stop_condition;
mod tensor_snapshot;
mod time_limit;
mod validate;

#[cfg(test)]
mod tests;

pub use agent_orders::AgentOrders;
pub(crate) use load_checkpoint::weights;
#[cfg(test)]
pub(crate) use tests::world::assignment as assignment_of_tests;

use crate::checkpoint::TensorReader;
use crate::comm::{self, DeviceLinks, ProcessGroup, RankId, WaitPolicy, WorkCounter};
use crate::data::{self, DataSet, MicroBatchLoader, SampleSource};
use crate::device;
use crate::loss_scale::LossScale;
use crate::memory;
use crate::mesh::Mesh;
use crate::optimizer::StageOptimizer;
use crate::parallel::pipeline::PipelineMessages;
use crate::parallel::sync::OuterOptimizer;
use crate::parallel::{GradientReduction, NoiseGauge, StepTotals};
use crate::stage::{ModelShard, Stage};
use crate::step_timer::{DeviceClock, Slowdown};
use crate::train_step::{self, Replica, StepOutcome};
use dtrain_protocol::{
    Assignment, Event, Failure, ResidentBytes, StepFigures, StepId, StopReason, cannot_run,
};
use dtrain_recipes::ZeroStage;
use pending_updates::PendingUpdates;
use save_checkpoint::{CheckpointSaver, OnFailure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stop_condition::{is_complete, reason_after_step, reason_after_validation};
use time_limit::RunClock;
use validate::{ValidationHooks, ValidationId};

/// A receiver of the events of a rank, called from any of its threads.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Runs the attempt that `assignment` describes; the last event is `Finished`. The caller reports an
/// `Err`.
pub fn attempt(assignment: &Assignment, orders: &mut AgentOrders, tell: &EventSink) -> Result<(), Failure> {
    check_ability(assignment)?;
    let waits = WaitPolicy::new(assignment.waits);
    let join = |orders: &mut AgentOrders| join(assignment, &waits, orders, tell);
    attempt_with(assignment, join, &waits.progress, Slowdown::default(), orders, tell)
}

/// Runs [`attempt`] with the ranks in `group`, which are already connected.
pub fn attempt_among(
    assignment: &Assignment,
    group: Box<dyn ProcessGroup>,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(), Failure> {
    attempt_slowed(assignment, group, Slowdown::default(), orders, tell)
}

/// Runs [`attempt_among`], with each pass slowed down as `slowdown` says.
pub fn attempt_slowed(
    assignment: &Assignment,
    group: Box<dyn ProcessGroup>,
    slowdown: Slowdown,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(), Failure> {
    check_ability(assignment)?;
    attempt_anyway(assignment, group, slowdown, orders, tell)
}

/// Runs [`attempt_slowed`] with any arrangement, including those that no planner chooses.
fn attempt_anyway(
    assignment: &Assignment,
    group: Box<dyn ProcessGroup>,
    slowdown: Slowdown,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(), Failure> {
    let mesh = Mesh::of(group, &assignment.arrangement, assignment.rank).map_err(|error| error.failure());
    attempt_with(assignment, |_| mesh, &WorkCounter::default(), slowdown, orders, tell)
}

/// Runs [`attempt`] with the ranks that `join` connects, which advances `progress` meanwhile.
fn attempt_with(
    assignment: &Assignment,
    join: impl FnOnce(&mut AgentOrders) -> Result<Mesh, Failure>,
    progress: &WorkCounter,
    slowdown: Slowdown,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(), Failure> {
    let device = device::open(&assignment.placement).map_err(|error| Failure::Other(error.to_string()))?;
    let mesh = join(orders)?;
    let saved = assignment.resume.as_ref().map(load_checkpoint::open).transpose()?;
    #[cfg(test)]
    if let Some(saved) = &saved {
        saved.expect(saved.manifest().reads(assignment));
    }
    let data = open_data(assignment, saved.as_ref(), progress)?;
    let Assignment { model, chunks, training, until, arrangement, rank, .. } = assignment;
    let partners = mesh.partners().clone();
    let holding =
        ModelShard { model, chunks, seed: training.seed, arrangement: *arrangement, rank: *rank, partners };
    let stage = Stage::of(&holding, &device).map_err(|error| Failure::Other(error.to_string()))?;
    let stage = stage.with_z_loss(training.z_loss);
    let optimizer = match arrangement.zero {
        ZeroStage::Zero0 => StageOptimizer::new(&training.optimizer, stage.parameters()),
        ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => {
            StageOptimizer::sharded(&training.optimizer, stage.parameters(), stage.shards())
        }
    };
    let (reduction, outer) =
        (GradientReduction::of(&stage, arrangement), OuterOptimizer::of(&stage, arrangement));
    let messages = PipelineMessages::new(mesh.pipeline().clone(), stage.device());
    let (loss_scale, noise) =
        (LossScale::of(arrangement.precision), NoiseGauge::of(training, arrangement, &mesh));
    let clock = DeviceClock::of(stage.device());
    let mut replica = Replica {
        training,
        until,
        stage,
        optimizer,
        reduction,
        outer,
        loss_scale,
        noise,
        messages,
        mesh,
        slowdown,
        clock,
        copying: None,
    };
    let notice = match &saved {
        Some(saved) => load_checkpoint::load(saved, assignment, &data, &mut replica)?,
        None => None,
    };
    // All ranks leave this together once they are loaded: no first step waits for another rank's slow
    // start.
    replica.mesh.world().barrier()?;
    let begin = first_step(assignment);
    tell(ready_event(assignment, &replica, &data, begin, notice));
    let inputs = save_checkpoint::inputs(&data);
    let mut stream = MicroBatchLoader::new(assignment, Arc::from(data.train), begin);
    let mut saver = CheckpointSaver::new(assignment, inputs);
    train(assignment, &mut replica, &mut stream, data.valid.as_ref(), &mut saver, orders, tell)
}

fn check_ability(assignment: &Assignment) -> Result<(), Failure> {
    match cannot_run(&assignment.arrangement, &assignment.model) {
        Some(reason) => Err(Failure::Other(format!("this assignment cannot be run: {reason}; plan again"))),
        None => Ok(()),
    }
}

fn join(
    assignment: &Assignment,
    waits: &WaitPolicy,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<Mesh, Failure> {
    let Assignment { trial, attempt, rank, arrangement, link, placement, .. } = assignment;
    let seat =
        RankId { trial: trial.clone(), attempt: *attempt, rank: *rank, ranks: arrangement.layout.world() };
    let announce = |address: &str| {
        tell(Event::Listening(address.to_owned()));
        orders.peers()
    };
    let mesh = comm::join(link, &seat, waits, announce).and_then(|mut group| {
        let links = DeviceLinks::agree(group.as_mut(), placement, waits)?;
        Mesh::with_links(group, arrangement, *rank, &links)
    });
    mesh.map_err(|error| error.failure())
}

/// Opens the data of the assignment, with the tokenizer in the checkpoint `saved`.
fn open_data(
    assignment: &Assignment,
    saved: Option<&TensorReader>,
    progress: &WorkCounter,
) -> Result<DataSet, Failure> {
    let Assignment { data, data_root, model, training, checkpoints, .. } = assignment;
    let data = data.as_ref().ok_or_else(|| Failure::Data("the assignment names none".into()))?;
    let tokenizer = match saved {
        Some(saved) => load_checkpoint::tokenizer(saved)?,
        None => None,
    };
    let opened =
        data::open_with(data, data_root, model, &cache(checkpoints), tokenizer.as_deref(), progress, &|_| ())
            .and_then(|opened| opened.fill_a_batch(training.batch).map(|()| opened));
    opened.map_err(|error| Failure::Data(error.to_string()))
}

/// Returns the cache folder for tokenizers and tokens: `cache` in the state folder, shared by the trials,
/// if `checkpoints` is `<state>/trials/<trial>/checkpoints`; otherwise `cache` beside `checkpoints`.
pub(crate) fn cache(checkpoints: &Path) -> PathBuf {
    let above: Vec<_> = checkpoints.ancestors().skip(1).take(3).collect();
    let folder = match above.as_slice() {
        [_, trials, state] if trials.ends_with("trials") => state,
        [beside, ..] => beside,
        [] => checkpoints,
    };
    folder.join("cache")
}

fn ready_event(
    assignment: &Assignment,
    replica: &Replica<'_>,
    data: &DataSet,
    step: StepId,
    notice: Option<String>,
) -> Event {
    Event::Ready {
        step,
        parameters: replica.stage.parameters().iter().map(|parameter| parameter.range.len() as u64).sum(),
        device: device::describe(&assignment.placement),
        train_samples: data.train.len(),
        valid_samples: data.valid.len(),
        data_fingerprint: data.inputs().fingerprint(),
        notice,
    }
}

/// Trains until a stop condition of the assignment holds, and waits until the last checkpoint is saved.
///
/// If all ranks fail alike, such as by a loss that is not finite, a checkpoint in progress is finished
/// first: training can resume from it. After the loss of a peer it is not, as its part of the checkpoint
/// may be missing and the other ranks must not wait.
fn train(
    assignment: &Assignment,
    replica: &mut Replica<'_>,
    stream: &mut MicroBatchLoader,
    valid: &dyn SampleSource,
    saver: &mut CheckpointSaver,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(), Failure> {
    let ended = steps(assignment, replica, stream, valid, saver, orders, tell);
    if !matches!(ended, Err(Failure::PeerLost { .. } | Failure::Stuck { .. })) {
        saver.wait();
    }
    let (step, reason) = ended?;
    saver.insist(replica, (step, reason), orders, tell)?;
    tell(Event::Finished { step, reason });
    Ok(())
}

/// Runs steps until a stop condition of the assignment holds; returns the last step, and the reason for
/// the stop.
fn steps(
    assignment: &Assignment,
    replica: &mut Replica<'_>,
    stream: &mut MicroBatchLoader,
    valid: &dyn SampleSource,
    saver: &mut CheckpointSaver,
    orders: &mut AgentOrders,
    tell: &EventSink,
) -> Result<(StepId, StopReason), Failure> {
    let until = &assignment.until;
    let mut clock = RunClock::of(assignment);
    let mut step = first_step(assignment);
    let mut compared = step;
    let mut ahead = PendingUpdates::of(assignment, replica.mesh.replicas().ranks());
    let mut reason = is_complete(until, step).then_some(StopReason::Complete);
    if reason.is_some() {
        // The attempt before was stopped in its last validation.
        let which = ValidationId { step, samples: assignment.validate_samples, is_last: true };
        reason = reason_after_validation(
            replica,
            valid,
            which,
            ValidationHooks { orders, clock: &mut clock, tell },
            reason,
        )?;
    }
    let mut sent = replica.mesh.bytes_sent();
    while reason.is_none() || !ahead.is_level() {
        // Rank 0's clock counts for all: for the end, and for the learning rate on the way there.
        let passed = clock.share(step).filter(|_| assignment.rank.0 == 0);
        let flags =
            StepTotals { ordered: orders.stop(), elapsed: passed.unwrap_or(0.0), ..StepTotals::default() };
        let fresh = ahead.advance(assignment, step, reason.is_some());
        let outcome = train_step::run_step(replica, &assignment.step, stream, (step, fresh), flags)?;
        let sent_bytes = replica.mesh.bytes_sent() - sent;
        sent += sent_bytes;
        step = StepId(step.0 + 1);
        let memory_bytes = memory::used_bytes(replica.stage.device());
        let held = held_bytes(replica);
        let figures = StepFigures { sent_bytes, memory_bytes, held, ..figures(assignment, step, &outcome) };
        tell(Event::Step(figures));
        reason = reason_after_step(until, step, &outcome.totals, reason);
        if !ahead.is_level() {
            continue;
        }
        let is_last = reason.is_some_and(|reason| reason != StopReason::Ordered);
        if is_last {
            outer_step(replica)?;
        }
        if is_last || is_due(step, assignment.validate_every) {
            let which = ValidationId { step, samples: assignment.validate_samples, is_last };
            let watching = ValidationHooks { orders, clock: &mut clock, tell };
            reason = reason_after_validation(replica, valid, which, watching, reason)?;
        }
        let is_saved = reason.is_some() || is_due(step, assignment.save_every);
        if is_saved && step.0 >= compared.0 + replica_check::EVERY {
            compared = step;
            replica_check::check(replica, assignment, step)?;
        }
        // Only bytes sent for steps are counted.
        sent = replica.mesh.bytes_sent();
        if is_saved {
            let on_failure = if reason.is_some() { OnFailure::Retry } else { OnFailure::Continue };
            saver.save(replica, step, on_failure, tell);
        }
    }
    Ok((step, reason.expect("the loop ends with a reason")))
}

/// Makes a last outer step if replicas have diverged: the result of training is the weights that they
/// share.
fn outer_step(replica: &mut Replica<'_>) -> Result<(), Failure> {
    let Replica { stage, reduction, outer, mesh, .. } = replica;
    match outer.as_mut().filter(|outer| outer.has_diverged()) {
        Some(outer) => outer.outer_step(stage, reduction, mesh),
        None => Ok(()),
    }
}

/// Returns the number of steps that were completed before this attempt.
fn first_step(assignment: &Assignment) -> StepId {
    assignment.resume.as_ref().map_or(StepId(0), |point| point.step)
}

/// Returns `true` if an action that runs every `every` steps is due after `step`; 0 means never.
fn is_due(step: StepId, every: u64) -> bool {
    every > 0 && step.0.is_multiple_of(every)
}

/// Returns the bytes of weights, gradients and optimizer state that this rank keeps between steps.
fn held_bytes(replica: &mut Replica<'_>) -> ResidentBytes {
    ResidentBytes {
        weights: replica.stage.value_bytes(),
        gradients: replica.stage.gradients().bytes(),
        optimizer: replica.optimizer.bytes()
            + replica.reduction.bytes()
            + replica.outer.as_ref().map_or(0, OuterOptimizer::bytes),
    }
}

fn figures(assignment: &Assignment, step: StepId, outcome: &StepOutcome) -> StepFigures {
    StepFigures {
        step,
        loss: outcome.totals.loss(),
        gradient_norm: outcome.gradient_norm,
        learning_rate: outcome.learning_rate,
        elapsed: assignment.until.seconds.map(|_| outcome.totals.elapsed),
        noise: outcome.noise,
        tokens: assignment.training.batch * assignment.model.sample_tokens(),
        times: outcome.times,
        memory_bytes: 0,
        sent_bytes: 0,
        held: ResidentBytes::default(),
    }
}
