//! Ranks the layouts that a search found.
//!
//! The minimum of many estimates tends to be one that is too low, more so the larger the search. So layouts
//! are ranked by the 80th percentile of their step time: a layout of a kind without published runs must be
//! faster by its uncertainty.

use super::{DatasheetPlanError, TIE, refusal};
use crate::analytic::search::{LayoutSearchResult, PricedLayout, SearchProblem};
use crate::analytic::uncertainty::{LogStdDevs, step_time_uncertainty};
use crate::analytic::{MissingInputs, StepConfig};
use crate::choice::tie_break::TieBreak;

/// Standard deviations from the estimate to the 80th percentile.
const PESSIMISTIC: f64 = 0.8416;

/// A layout, with the 80th percentile of its step time.
#[derive(Clone, Debug)]
pub(super) struct PessimisticLayout {
    pub(super) choice: PricedLayout,
    pub(super) doubt: LogStdDevs,
    /// 80th percentile of the seconds per step of the layout.
    pub(super) seconds: f64,
}

/// The chosen layout, the layouts tied with it in order of preference, and the others, fastest first.
#[derive(Clone, Debug)]
pub(super) struct RankedLayouts {
    pub(super) chosen: PessimisticLayout,
    pub(super) ties: Vec<PessimisticLayout>,
    pub(super) others: Vec<PessimisticLayout>,
}

/// Ranks the layouts that a search found.
pub(super) fn rank_layouts(
    problem: &SearchProblem,
    found: &LayoutSearchResult,
) -> Result<RankedLayouts, DatasheetPlanError> {
    let mut all = pessimistic_layouts(problem, found);
    let Some(fastest) = all.first() else { return Err(refusal(problem, found)) };
    let within = (1.0 + TIE) * fastest.seconds;
    let is_bettered = |one: &PessimisticLayout| {
        let betters = |other: &PessimisticLayout| {
            let (seconds, bytes) = ((other.seconds, one.seconds), (other.choice.bytes, one.choice.bytes));
            seconds.0 <= seconds.1 && bytes.0 <= bytes.1 && (seconds.0 < seconds.1 || bytes.0 < bytes.1)
        };
        all.iter().any(betters)
    };
    let mut ties: Vec<PessimisticLayout> =
        all.iter().filter(|one| one.seconds <= within && !is_bettered(one)).cloned().collect();
    let order = |one: &PessimisticLayout| {
        TieBreak::of(&one.choice.config.arrangement, one.choice.bytes / problem.cluster.memory)
    };
    ties.sort_by(|a, b| order(a).cmp(&order(b)).then(a.seconds.total_cmp(&b.seconds)));
    all.retain(|one| one.seconds > within);
    let mut ties = distinct(ties);
    let chosen = ties.remove(0);
    Ok(RankedLayouts { chosen, ties, others: distinct(all) })
}

/// Returns all layouts that a search kept, fastest first by the 80th percentile.
fn pessimistic_layouts(problem: &SearchProblem, found: &LayoutSearchResult) -> Vec<PessimisticLayout> {
    let best_per_axis = found.best_per_axis.iter().map(|(_, _, choice)| choice);
    let mut all: Vec<PessimisticLayout> = Vec::new();
    for choice in found.best.iter().chain(best_per_axis) {
        if all.iter().any(|known| known.choice.config == choice.config) {
            continue;
        }
        let doubt =
            step_time_uncertainty(&problem.at(&choice.config), problem.cluster.gpu, MissingInputs::default());
        let seconds = choice.seconds * (PESSIMISTIC * doubt.deviation()).exp();
        all.push(PessimisticLayout { choice: *choice, doubt, seconds });
    }
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all
}

/// Removes layouts that differ from an earlier one only in sharding group and rank order.
fn distinct(all: Vec<PessimisticLayout>) -> Vec<PessimisticLayout> {
    let mut kept: Vec<PessimisticLayout> = Vec::new();
    let same = |a: &StepConfig, b: &StepConfig| {
        let alike = |config: &StepConfig| {
            let arrangement = config.arrangement;
            (
                config.degrees(),
                config.micro_batch,
                arrangement.schedule,
                arrangement.chunks,
                arrangement.recompute,
            )
        };
        alike(a) == alike(b)
    };
    for one in all {
        if !kept.iter().any(|known| same(&known.choice.config, &one.choice.config)) {
            kept.push(one);
        }
    }
    kept
}
