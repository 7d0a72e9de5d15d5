//! Lowers a plan's choice to one assignment for each rank; nothing is left to decide afterwards.

use crate::layout::candidate::Candidate;
use crate::pipeline_schedule::{self, chunks_of};
use crate::planning::foreign;
use crate::planning::plan::{Plan, RankedCandidate};
use crate::training::checkpoint_interval::final_checkpoint_seconds;
use dtrain_protocol::{
    Action, Assignment, AttemptId, Axis, DeviceKind, Hyperparameters, MetricTarget, Placement, Rank,
    RankTransport, ResumePoint, RunUntil, StepId, TrialId, WaitLimits,
};
use dtrain_recipes::Model;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Inputs of the assignments of one attempt, besides the plan and its choice.
#[derive(Clone, Debug, PartialEq)]
pub struct AttemptSpec {
    /// Id of the trial to which the attempt belongs.
    pub trial: TrialId,
    /// Id of the attempt.
    pub attempt: AttemptId,
    /// Folder of the trial's checkpoints.
    pub checkpoints: PathBuf,
    /// Checkpoint to resume from; `None` for a start from initial weights.
    pub resume: Option<ResumePoint>,
    /// Seconds that earlier attempts have trained.
    pub spent_seconds: f64,
}

/// Returns one assignment for each rank, in the order of ranks.
///
/// Every link is [`RankTransport::Alone`]: the launcher knows how the ranks reach each other, and fills it
/// in.
pub fn lower(plan: &Plan, choice: &RankedCandidate, launch: &AttemptSpec) -> Vec<Assignment> {
    let Candidate { arrangement, split, .. } = &choice.candidate;
    // Replicas with unequal shares have different lists of actions.
    let mut steps = BTreeMap::new();
    let ranks = (0..arrangement.layout.world()).map(Rank);
    ranks
        .map(|rank| {
            let passes = split.micro_batches_of(arrangement.layout.reader(rank));
            let steps = steps.entry(passes).or_insert_with(|| pipeline_schedule::steps(arrangement, passes));
            of_rank(plan, choice, launch, rank, steps)
        })
        .collect()
}

fn of_rank(
    plan: &Plan,
    choice: &RankedCandidate,
    launch: &AttemptSpec,
    rank: Rank,
    steps: &[Vec<Action>],
) -> Assignment {
    let (recipe, candidate, pace) = (&plan.recipe, &choice.candidate, &choice.run_length);
    let layout = candidate.arrangement.layout;
    let stage = layout.coord(rank).along(Axis::Pipeline);
    let stop = &recipe.objective.stop;
    let limit = stop.time.map(|time| time.0);
    let spent_seconds = limit.map_or(0.0, |limit| launch.spent_seconds.min(limit));
    Assignment {
        trial: launch.trial.clone(),
        attempt: launch.attempt,
        rank,
        arrangement: candidate.arrangement,
        model: model(plan, choice),
        engine: None,
        chunks: chunks_of(stage, &candidate.arrangement, recipe.model.blocks()).collect(),
        data: recipe.data.clone(),
        data_root: plan.data_root.clone(),
        workdir: None,
        training: training(plan, choice, rank),
        until: RunUntil {
            steps: pace.steps.map(StepId),
            seconds: limit.map(|limit| limit - spent_seconds),
            spent_seconds,
            validation_seconds: pace.validation.map_or(0.0, |validation| validation.seconds),
            save_seconds: limit.map_or(0.0, |_| final_checkpoint_seconds(recipe)),
            target: stop.target.map(|value| MetricTarget {
                metric: recipe.objective.metric.clone(),
                goal: recipe.objective.goal(),
                value,
            }),
        },
        step: steps[stage as usize].clone(),
        placement: placement(plan, choice, rank),
        link: RankTransport::Alone,
        waits: WaitLimits::for_steps_of(choice.estimate.as_ref().map(|estimate| estimate.step.0)),
        validate_every: pace.validate_every,
        validate_samples: pace.validate_samples,
        save_every: pace.save_every,
        checkpoints: launch.checkpoints.clone(),
        resume: launch.resume.clone(),
    }
}

/// Returns the model that the ranks train; in that of a foreign command, placeholders are replaced by the
/// plan's values.
fn model(plan: &Plan, choice: &RankedCandidate) -> Model {
    match &plan.recipe.model {
        Model::Command(command) => Model::Command(foreign::command_with_values(plan, choice, command)),
        ours => ours.clone(),
    }
}

/// Returns the hyperparameters of the training on rank `rank`.
pub(crate) fn training(plan: &Plan, choice: &RankedCandidate, rank: Rank) -> Hyperparameters {
    let (train, candidate, pace) = (&plan.recipe.train, &choice.candidate, &choice.run_length);
    let (split, reader) = (&candidate.split, candidate.arrangement.layout.reader(rank));
    Hyperparameters {
        batch: split.global(),
        share: split.share(reader),
        micro_batch: split.micro(),
        micro_batches: split.micro_batches_of(reader).get(),
        optimizer: train.optimizer,
        learning_rate: candidate.learning_rate,
        warmup_steps: pace.warmup.value,
        schedule_steps: pace.schedule_steps,
        schedule: train.schedule,
        final_fraction: train.final_fraction,
        clip: train.clip,
        z_loss: train.z_loss,
        attention: train.state.attention,
        seed: train.seed,
    }
}

/// Returns the host and device of rank `rank`. Ranks are spread over the hosts in order; on a CPU every rank
/// has its own number, and the GPUs of a host are used in turn.
fn placement(plan: &Plan, choice: &RankedCandidate, rank: Rank) -> Placement {
    let (device, threads) = (choice.candidate.arrangement.device, choice.candidate.threads);
    let gpus = u32::try_from(plan.host.gpus.len()).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    let index = match device {
        DeviceKind::Cpu => rank.0,
        DeviceKind::Cuda | DeviceKind::Wgpu => rank.0 % gpus,
    };
    let world = choice.candidate.arrangement.layout.world();
    Placement { host: plan.host.host_of(rank, world), device, index, threads }
}

#[cfg(test)]
mod tests;
