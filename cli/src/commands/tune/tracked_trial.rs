//! State that the runner of a study keeps about each trial.

use super::study_config::StudyConfig;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::LoadedRecipe;
use crate::output::Output;
use crate::render::number::counted;
use dtrain_planner::tune::{ProposalSource, StudyEvent, TrialOutcome, TrialValue};
use dtrain_recipes::Metric;
use dtrain_runner::Interrupts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Number of consecutive trials that may be lost, or fail, before the study stops: something is wrong with
/// all of them.
pub(super) const FAILURES_MOST: u32 = 3;

/// Resources with which a runner is created.
pub(super) struct RunnerContext<'env> {
    pub(super) context: &'env Context,
    pub(super) quiet: &'env Context,
    pub(super) loaded: &'env LoadedRecipe,
    pub(super) kept: &'env StudyConfig,
    pub(super) name: &'env str,
    pub(super) interrupts: Arc<Interrupts>,
    /// Time after which no trial starts; `None` without a limit.
    pub(super) deadline: Option<Instant>,
}

/// Control of a trial that is running.
pub(super) struct RunningTrial {
    pub(super) interrupts: Arc<Interrupts>,
    /// Reason and time of the request to end the trial; `None` if there was none.
    pub(super) ending: Option<(EndRequest, Instant)>,
    /// Time since which the trial's hosts are unreachable; `None` while they answer.
    pub(super) away: Option<Instant>,
}

/// Reason why a trial was asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// To pause the trial, which may be resumed later.
    Pause,
    /// To prune the trial, which does not look promising.
    Prune,
    /// Its hosts failed: it is repeated on others.
    Machines,
    /// The user interrupted the study.
    Interrupt,
}

/// State of one trial of a study, running or not.
#[derive(Default)]
pub(super) struct TrackedTrial {
    pub(super) values: Vec<TrialValue>,
    pub(super) source: serde_json::Value,
    /// Progress and cost in the latest report; `None` before the first.
    pub(super) newest: Option<(u64, f64)>,
    /// Slot in which the trial was started, and on whose hosts it resumes; `None` before its start.
    pub(super) place: Option<usize>,
    pub(super) running: Option<RunningTrial>,
}

/// Restores the state of all trials from the events in a study's log.
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

/// Returns `true` if the event shows that a trial ran to its end, so that its hosts work.
pub(super) fn is_done(event: &StudyEvent) -> bool {
    matches!(
        event,
        StudyEvent::Ended { outcome: TrialOutcome::Done { .. } | TrialOutcome::Pruned { .. }, .. }
    )
}

pub(super) fn source_json(source: &ProposalSource) -> serde_json::Value {
    serde_json::to_value(source).expect("a source has string keys only")
}

/// Returns a copy of the context without output, for threads beside a display.
pub(super) fn quiet_context(context: &Context) -> Context {
    Context { out: Output { json: false, quiet: true, ..context.out }, ..context.clone() }
}

/// Builds the error after too many trials without a result; `unmeasured` is the objective's metric if no
/// trial reported it.
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
