//! What every axis value that was not chosen would have cost at best, and why.

use super::TIE;
use super::explain::{describe_layout, value_of};
use crate::analytic::StepTimes;
use crate::analytic::search::{LayoutSearchResult, PricedLayout, SearchAxis, SearchProblem};
use serde::Serialize;

/// The best layout with an axis value that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AxisAlternative {
    /// The axis.
    pub axis: SearchAxis,
    /// Its value, in words.
    pub value: String,
    /// The layout, in words.
    pub layout: String,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Seconds over those of the choice, less one.
    pub slowdown: f64,
    /// Whether the difference is too small to be told.
    pub is_tied: bool,
    /// Bytes of the heaviest rank at its peak.
    pub peak_bytes: f64,
    /// What grows most, and by how many seconds.
    pub cause: (&'static str, f64),
    /// By cause, the seconds that a step of it takes more than one of the choice; below 0 where less.
    pub time_delta: Vec<(&'static str, f64)>,
}

/// The best of every axis value that `chosen` does not have, fastest first within its axis.
pub(super) fn axis_alternatives(
    problem: &SearchProblem,
    found: &LayoutSearchResult,
    chosen: &PricedLayout,
) -> Vec<AxisAlternative> {
    let own = causes(problem, chosen);
    let loser = |axis: SearchAxis, value: u32, champion: &PricedLayout| {
        let time_delta: Vec<(&'static str, f64)> = own
            .iter()
            .zip(causes(problem, champion))
            .map(|((name, before), (_, after))| (*name, after - before))
            .collect();
        let slowdown = champion.seconds / chosen.seconds - 1.0;
        AxisAlternative {
            axis,
            value: value_of(axis, value),
            layout: describe_layout(&champion.config),
            step_seconds: champion.seconds,
            slowdown,
            is_tied: slowdown.abs() <= TIE,
            peak_bytes: champion.bytes,
            cause: time_delta.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are causes"),
            time_delta,
        }
    };
    let others = found.best_per_axis.iter().filter(|(axis, value, _)| axis.value(&chosen.config) != *value);
    let mut losers: Vec<AxisAlternative> =
        others.map(|(axis, value, champion)| loser(*axis, *value, champion)).collect();
    losers.sort_by(|a, b| a.axis.cmp(&b.axis).then(a.step_seconds.total_cmp(&b.step_seconds)));
    losers
}

fn causes(problem: &SearchProblem, choice: &PricedLayout) -> Vec<(&'static str, f64)> {
    let case = problem.at(&choice.config);
    StepTimes::of(&case).causes(&case).to_vec()
}
