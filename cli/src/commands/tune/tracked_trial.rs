//! What a study that goes on knows of its trials.

use super::study_config::StudyConfig;
use crate::command_error::{CommandError, ExitReason};
use crate::context::Context;
use crate::load_recipe::LoadedRecipe;
use crate::output::Output;
use crate::render::number::counted;
use dtrain_planner::tune::{ProposalSource, StudyEvent, TrialOutcome, TrialValue};
use dtrain_recipes::Metric;
use dtrain_runner::Interrupts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Trials in a row that may be lost, or crash, before the study stops: something is wrong with all of them.
pub(super) const FAILURES_MOST: u32 = 3;

/// What a runner works with.
pub(super) struct RunnerContext<'env> {
    pub(super) context: &'env Context,
    pub(super) quiet: &'env Context,
    pub(super) loaded: &'env LoadedRecipe,
    pub(super) kept: &'env StudyConfig,
    pub(super) name: &'env str,
    pub(super) interrupts: Arc<Interrupts>,
    /// No trial begins from then on.
    pub(super) deadline: Option<Instant>,
}

/// A trial that runs.
pub(super) struct RunningTrial {
    pub(super) interrupts: Arc<Interrupts>,
    /// Why it was asked to end, and when.
    pub(super) ending: Option<(EndRequest, Instant)>,
    /// Since when its machines are out of reach.
    pub(super) away: Option<Instant>,
}

/// Why a trial was asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// It is to pause.
    Pause,
    /// It is pruned.
    Prune,
    /// Its machines failed, and it is to be tried on others.
    Machines,
    /// The study is interrupted.
    Interrupt,
}

/// What is known of every trial of the study, running or not.
#[derive(Default)]
pub(super) struct TrackedTrial {
    pub(super) values: Vec<TrialValue>,
    pub(super) source: serde_json::Value,
    /// Steps and cost of the newest report.
    pub(super) newest: Option<(u64, f64)>,
    /// The slot in which it was begun: it goes on with those hosts.
    pub(super) place: Option<usize>,
    pub(super) running: Option<RunningTrial>,
}

/// What the log of a study says of its trials.
pub(super) fn replay_events(log: &[StudyEvent]) -> BTreeMap<u64, TrackedTrial> {
    let mut known: BTreeMap<u64, TrackedTrial> = BTreeMap::new();
    for event in log {
        let one = known.entry(event.trial()).or_default();
        match event {
            StudyEvent::Launched { values, source, .. } => {
                one.values.clone_from(values);
                one.source = source_json(source);
            }
            StudyEvent::Reported { progress: at, value, .. } => one.newest = Some((*at, *value)),
            StudyEvent::Paused { .. } | StudyEvent::Resumed { .. } | StudyEvent::Ended { .. } => {}
        }
    }
    known
}

/// Whether an event says that machines ran a trial to its end.
pub(super) fn is_done(event: &StudyEvent) -> bool {
    matches!(
        event,
        StudyEvent::Ended { outcome: TrialOutcome::Done { .. } | TrialOutcome::Pruned { .. }, .. }
    )
}

pub(super) fn source_json(source: &ProposalSource) -> serde_json::Value {
    serde_json::to_value(source).expect("a source has string keys only")
}

/// A context whose output says nothing, for threads beside a display.
pub(super) fn quiet_context(context: &Context) -> Context {
    Context { out: Output { json: false, quiet: true, ..context.out }, home: context.home.clone() }
}

/// Why a study ends after so many trials in a row without a result; `unmeasured` is the metric that none of them reported.
pub(super) fn no_results(unmeasured: Option<&Metric>, is_lost: bool) -> CommandError {
    let many = counted(FAILURES_MOST.into(), "trial");
    match unmeasured {
        Some(metric) => CommandError::new(
            ExitReason::WorkerFailed,
            format!("{many} in a row ended without a value of `{metric}`"),
        )
        .hint("report it by that name, or name another one as objective.metric"),
        None => {
            let exit = if is_lost { ExitReason::Infrastructure } else { ExitReason::WorkerFailed };
            CommandError::new(exit, format!("{many} in a row failed"))
        }
    }
}
