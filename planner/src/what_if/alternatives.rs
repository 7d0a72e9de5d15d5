//! The best layout for every axis value that was not chosen, and the cause of its slowdown.

use super::TIE;
use super::describe_layout::{describe_layout, value_of};
use crate::analytic::StepTimes;
use crate::analytic::search::{LayoutSearchResult, PricedLayout, SearchAxis, SearchProblem};
use serde::Serialize;

/// The best layout with an axis value that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AxisAlternative {
    /// Axis on which the layout differs from the choice.
    pub axis: SearchAxis,
    /// Value of the layout on the axis, in words.
    pub value: String,
    /// Best layout that has the value on the axis, in words.
    pub layout: String,
    /// Estimated seconds per step of the layout.
    pub step_seconds: f64,
    /// Relative slowdown of the layout: its seconds over those of the choice, minus one.
    pub slowdown: f64,
    /// True if the layout is as fast as the choice within the tie margin.
    pub is_tied: bool,
    /// Peak bytes of the layout's heaviest rank.
    pub peak_bytes: f64,
    /// Cause of step time that grows most against the choice, and by how many seconds.
    pub cause: (&'static str, f64),
    /// Seconds per step in excess of the choice, by cause; negative where the layout takes less.
    pub time_delta: Vec<(&'static str, f64)>,
}

/// Returns the best layout for every axis value that `chosen` does not have, fastest first on each axis.
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
