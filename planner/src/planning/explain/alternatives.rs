//! Explains the choice of a plan: the candidates that tie with it, and the cost of every other value of every
//! axis.

use crate::choice::alternative::{Alternative, largest_delta};
use crate::planning::plan::{Plan, RankedCandidate};
use crate::price::estimate::Estimate;
use crate::text::row;
use dtrain_recipes::{Bytes, Seconds};
use std::cmp::Ordering;

/// Largest number of ties to show.
const TIES: usize = 3;

/// Returns the reason why the second candidate of a plan is not the first; `None` if there is no second.
fn runner_up(plan: &Plan) -> Option<String> {
    let (first, second) = (plan.best(), plan.choices.get(1)?);
    let candidate = &second.candidate;
    let (ours, theirs) = (first.price(), second.price());
    if !second.is_tied {
        let slower = 100.0 * (theirs.step.0 / ours.step.0 - 1.0);
        let slower = if slower >= 99.5 {
            format!("{:.1} times as long", theirs.step.0 / ours.step.0)
        } else {
            format!("{slower:.1} % slower")
        };
        let why = largest_delta(&ours.breakdown.parts(), &theirs.breakdown.parts());
        return Some(format!("{candidate}: {slower} ({why})"));
    }
    // In the order of the tie-break.
    let tight = |e: &Estimate| e.memory_peak.0 > e.memory_available.0 / 4 * 3;
    let (a, b) = (first.candidate.arrangement, candidate.arrangement);
    let why = if tight(theirs) && !tight(ours) {
        format!("it leaves less than a quarter of the memory free ({})", theirs.memory_peak)
    } else if b.layout.world() > a.layout.world() {
        format!("it needs {} ranks instead of {}", b.layout.world(), a.layout.world())
    } else if b.recompute > a.recompute {
        "it recomputes more".into()
    } else if b.zero > a.zero {
        "it shards more".into()
    } else {
        format!("its estimate is less certain: up to {}", theirs.step_high)
    };
    Some(format!("{candidate}: a tie; {why}"))
}

/// Appends the candidates that tie with the choice, then the alternatives of every axis.
pub(super) fn write_alternatives(text: &mut String, plan: &Plan) {
    if let Some(why) = runner_up(plan) {
        text.push('\n');
        row(text, "runner-up", &why);
    }
    let ties: Vec<&RankedCandidate> = plan.choices.iter().skip(1).filter(|choice| choice.is_tied).collect();
    if !ties.is_empty() {
        text.push('\n');
        let tied = plan.choices.iter().filter(|choice| choice.is_tied);
        let resolution = 100.0 * tied.map(|choice| choice.price().resolution).fold(0.0, f64::max);
        let told = format!(
            "{} of the others are within the error of the estimate ({resolution:.1} %); the simplest and \
            most certain was chosen",
            ties.len()
        );
        row(text, "ties", &told);
        for tie in ties.iter().take(TIES) {
            row(text, "", &format!("{}: {}", tie.candidate, tie.price().step));
        }
    }
    if plan.alternatives.is_empty() {
        return;
    }
    text.push('\n');
    for of_axis in plan.alternatives.chunk_by(|a, b| a.axis == b.axis) {
        for (place, alternative) in of_axis.iter().enumerate() {
            let key = if place == 0 { alternative.axis.as_str() } else { "" };
            detailed_row(text, key, alternative, plan.best());
        }
    }
}

/// Appends the row of one alternative: its value, its best candidate, its memory, and all causes that add or
/// save time.
fn detailed_row(text: &mut String, key: &str, alternative: &Alternative, best: &RankedCandidate) {
    let Alternative { value, candidate, is_tied, time_delta, memory_peak, .. } = alternative;
    let (step, ours) = (best.price().step.0, best.price().memory_peak);
    let longer: f64 = time_delta.iter().map(|(_, seconds)| seconds).sum();
    let loss = slowdown(longer / step, *is_tied);
    row(text, key, &format!("{value}: {loss}, {}: {candidate}", memory(ours, *memory_peak)));
    let causes = causes(time_delta, step);
    if !causes.is_empty() {
        row(text, "", &format!("because {causes}"));
    }
}

/// Formats the extra time of a step relative to the choice as a percentage; `longer` is a fraction.
pub fn slowdown(longer: f64, is_tie: bool) -> String {
    let sign = if longer < 0.0 { "−" } else { "+" };
    let percent = 100.0 * longer.abs();
    if is_tie { format!("a tie ({sign}{percent:.1} % time)") } else { format!("{sign}{percent:.1} % time") }
}

/// Formats the difference in memory per rank from `ours` to `theirs`.
pub fn memory(ours: Bytes, theirs: Bytes) -> String {
    match theirs.0.cmp(&ours.0) {
        Ordering::Equal => "the same memory".to_owned(),
        Ordering::Greater => format!("+{} a rank", Bytes(theirs.0 - ours.0)),
        Ordering::Less => format!("−{} a rank", Bytes(ours.0 - theirs.0)),
    }
}

/// Formats the causes that take more or less time than in the choice, the largest difference first, without
/// differences below half a percent of the step.
pub fn causes<N: AsRef<str>>(time_delta: &[(N, f64)], step_seconds: f64) -> String {
    let mut told: Vec<_> = time_delta.iter().filter(|(_, s)| s.abs() >= 0.005 * step_seconds).collect();
    told.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let words = |(name, seconds): &&(N, f64)| {
        let sign = if *seconds < 0.0 { "−" } else { "+" };
        format!("{} {sign}{}", name.as_ref(), Seconds(seconds.abs()))
    };
    told.iter().map(words).collect::<Vec<_>>().join(" · ")
}
