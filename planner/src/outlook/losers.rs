//! What every axis value that was not chosen would have cost at best, and why.

use super::words::value_of;
use crate::analytic::Step;
use crate::analytic::search::{Axis, Choice, Found, Question};
use serde::Serialize;

/// The best layout with an axis value that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loser {
    /// The axis.
    pub axis: Axis,
    /// Its value, in words.
    pub value: String,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Seconds over those of the choice, less one.
    pub slower: f64,
    /// What grows most, and by how many seconds.
    pub cause: (&'static str, f64),
}

/// The best of every axis value that `chosen` does not have, fastest first within its axis.
pub(super) fn losers(question: &Question, found: &Found, chosen: &Choice) -> Vec<Loser> {
    let own = causes(question, chosen);
    let mut losers: Vec<Loser> = found
        .champions
        .iter()
        .filter(|(axis, value, _)| axis.value(&chosen.cut) != *value)
        .map(|(axis, value, champion)| Loser {
            axis: *axis,
            value: value_of(*axis, *value),
            step_seconds: champion.seconds,
            slower: champion.seconds / chosen.seconds - 1.0,
            cause: grown(&own, &causes(question, champion)),
        })
        .collect();
    losers.sort_by(|a, b| a.axis.cmp(&b.axis).then(a.step_seconds.total_cmp(&b.step_seconds)));
    losers
}

fn causes(question: &Question, choice: &Choice) -> Vec<(&'static str, f64)> {
    let case = question.at(&choice.cut);
    Step::of(&case).causes(&case).to_vec()
}

/// The cause that grows most from one layout to another.
fn grown(from: &[(&'static str, f64)], to: &[(&'static str, f64)]) -> (&'static str, f64) {
    let growth = from.iter().zip(to).map(|((name, before), (_, after))| (*name, after - before));
    growth.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are causes")
}
