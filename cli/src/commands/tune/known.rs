//! What a study that goes on knows of its trials.

use super::kept::Kept;
use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::load::Loaded;
use crate::output::Output;
use crate::render::number::counted;
use dtrain_planner::tune::{Outcome, Source, StudyEvent, Value};
use dtrain_recipes::Metric;
use dtrain_runner::Interrupts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Trials in a row that may be lost, or crash, before the study stops: something is wrong with all of them.
pub(super) const FAILURES_MOST: u32 = 3;

/// What a runner works with.
pub(super) struct Ground<'env> {
    pub(super) context: &'env Context,
    pub(super) quiet: &'env Context,
    pub(super) loaded: &'env Loaded,
    pub(super) kept: &'env Kept,
    pub(super) name: &'env str,
    pub(super) interrupts: Arc<Interrupts>,
    /// No trial begins from then on.
    pub(super) deadline: Option<Instant>,
}

/// A trial that runs.
pub(super) struct Running {
    pub(super) interrupts: Arc<Interrupts>,
    /// Why it was asked to end, and when.
    pub(super) ending: Option<(Reason, Instant)>,
    /// Since when its machines are out of reach.
    pub(super) away: Option<Instant>,
}

/// Why a trial was asked to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
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
pub(super) struct Known {
    pub(super) values: Vec<Value>,
    pub(super) source: serde_json::Value,
    /// Steps and cost of the newest report.
    pub(super) newest: Option<(u64, f64)>,
    /// The slot in which it was begun: it goes on with those hosts.
    pub(super) place: Option<usize>,
    pub(super) running: Option<Running>,
}

/// What the log of a study says of its trials.
pub(super) fn known(log: &[StudyEvent]) -> BTreeMap<u64, Known> {
    let mut known: BTreeMap<u64, Known> = BTreeMap::new();
    for event in log {
        let one = known.entry(event.trial()).or_default();
        match event {
            StudyEvent::Launched { values, source, .. } => {
                one.values.clone_from(values);
                one.source = source_json(source);
            }
            StudyEvent::Reported { at, value, .. } => one.newest = Some((*at, *value)),
            StudyEvent::Paused { .. } | StudyEvent::Resumed { .. } | StudyEvent::Ended { .. } => {}
        }
    }
    known
}

/// Whether an event says that machines ran a trial to its end.
pub(super) fn is_done(event: &StudyEvent) -> bool {
    matches!(event, StudyEvent::Ended { outcome: Outcome::Done { .. } | Outcome::Pruned { .. }, .. })
}

pub(super) fn source_json(source: &Source) -> serde_json::Value {
    serde_json::to_value(source).expect("a source has string keys only")
}

/// A context whose output says nothing, for threads beside a display.
pub(super) fn quiet(context: &Context) -> Context {
    Context { out: Output { json: false, quiet: true, ..context.out }, home: context.home.clone() }
}

/// Why a study ends after so many trials in a row without a result; `unmeasured` is the metric that none of them reported.
pub(super) fn in_a_row(unmeasured: Option<&Metric>, is_lost: bool) -> Failure {
    let many = counted(FAILURES_MOST.into(), "trial");
    match unmeasured {
        Some(metric) => {
            Failure::new(Exit::WorkerFailed, format!("{many} in a row ended without a value of `{metric}`"))
                .hint("report it by that name, or name another one as objective.metric")
        }
        None => {
            let exit = if is_lost { Exit::Infrastructure } else { Exit::WorkerFailed };
            Failure::new(exit, format!("{many} in a row failed"))
        }
    }
}
