//! Measured step time, memory and traffic of the ranks, beside the predictions.

use super::number::{deviation, seconds};
use dtrain_planner::step::traffic::Traffic;
use dtrain_planner::{MemoryBreakdown, TimeBreakdown};
use dtrain_protocol::PhaseTimes;
use dtrain_recipes::Bytes;
use dtrain_runner::ledger::{TrialDetails, TypicalStep};

/// A phase of a step: its name, and functions that return its measured and its predicted seconds.
pub(super) type PhaseColumn = (&'static str, fn(&PhaseTimes) -> f64, fn(&TimeBreakdown) -> f64);

/// All phases in the order of a step.
pub(super) const PHASES: [PhaseColumn; 6] = [
    ("forward", |t| t.forward, |b| b.forward),
    ("backward", |t| t.backward, |b| b.backward),
    ("communication", |t| t.communication, |b| b.communication),
    ("pipeline bubble", |t| t.bubble, |b| b.bubble),
    ("optimizer", |t| t.optimizer, |b| b.optimizer),
    ("samples, overhead", |t| t.data, |b| b.overhead),
];

/// The whole step, whose line stands above those of its phases.
const STEP: PhaseColumn = ("step", |t| t.step, TimeBreakdown::total);

/// Formats a table of each phase's seconds: predicted, and minimum, median and maximum over the ranks'
/// typical steps, with the median's deviation. The first line is the whole step, to which each rank's phases
/// add up. Empty without measurements.
pub(super) fn phases(trial: &TrialDetails, typical: &[TypicalStep]) -> Vec<Vec<String>> {
    let predicted: Option<TimeBreakdown> = predicted(trial, "breakdown");
    let titles = ["", "predicted", "min", "median", "max"].map(str::to_owned).to_vec();
    let mut lines = vec![titles];
    // A foreign program reports no phases.
    let may_lack_phases = predicted.is_none() || trial.runs_foreign_program();
    if may_lack_phases && typical.iter().all(|step| step.times.parts() <= 0.0) {
        return Vec::new();
    }
    for (name, measured, of) in std::iter::once(STEP).chain(PHASES) {
        let mut ranks: Vec<f64> = typical.iter().map(|step| measured(&step.times)).collect();
        ranks.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) =
            (ranks.first(), ranks.last().filter(|most| **most > 0.0 || predicted.is_some()))
        else {
            continue;
        };
        let median = ranks[ranks.len() / 2];
        let said = predicted.as_ref().map(of);
        // Near zero a ratio is meaningless.
        let off = said.filter(|said| *said > 1e-6).map(|said| deviation(median, said));
        lines.push(vec![
            name.to_owned(),
            said.map(seconds).unwrap_or_default(),
            seconds(*least),
            seconds(median),
            seconds(*most),
            off.unwrap_or_default(),
        ]);
    }
    if lines.len() > 1 { lines } else { Vec::new() }
}

/// Formats a table of memory categories, predicted and measured, for the rank with the highest peak. Empty
/// without measurements.
///
/// Persistent state is counted exactly; the rest of the peak is saved activations, buffers and the process
/// itself.
pub(super) fn memory(trial: &TrialDetails) -> Vec<Vec<String>> {
    let predicted: Option<MemoryBreakdown> = predicted(trial, "memory");
    let most = |key: &str| {
        let ranks = trial.figures.iter().filter(|summary| summary.key == key);
        ranks.filter_map(|summary| summary.max).reduce(f64::max).filter(|most| *most > 0.0)
    };
    let (Some(weights), Some(gradients), Some(optimizer), Some(peak)) =
        (most("weights_bytes"), most("gradients_bytes"), most("optimizer_bytes"), most("memory_bytes"))
    else {
        return Vec::new();
    };
    let said = |of: fn(&MemoryBreakdown) -> u64| predicted.as_ref().map(of);
    let held = |memory: &MemoryBreakdown| memory.weights.0 + memory.gradients.0 + memory.optimizer.0;
    let rest = predicted.as_ref().map(|memory| memory.total().0 - held(memory));
    let lines = [
        ("weights", said(|memory| memory.weights.0), weights),
        ("gradients", said(|memory| memory.gradients.0), gradients),
        ("optimizer", said(|memory| memory.optimizer.0), optimizer),
        ("activations, rest", rest, (peak - weights - gradients - optimizer).max(0.0)),
    ];
    let lines = lines.into_iter().map(|(name, said, measured)| {
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let off = said.filter(|said| *said > 0).map(|said| deviation(measured, said as f64));
        let said = said.map(|said| Bytes(said).to_string()).unwrap_or_default();
        vec![name.to_owned(), said, bytes(measured), off.unwrap_or_default()]
    });
    let titles = ["", "predicted", "measured"].map(str::to_owned).to_vec();
    std::iter::once(titles).chain(lines).collect()
}

/// Formats a table of the bytes sent per step by the rank that sends most: predicted for each purpose, and
/// predicted and measured in total. Empty if nothing was sent.
pub(super) fn traffic(trial: &TrialDetails) -> Vec<Vec<String>> {
    let ranks = trial.figures.iter().filter(|summary| summary.key == "sent_bytes");
    let most = ranks.filter_map(|summary| summary.mean).reduce(f64::max).filter(|most| *most > 0.0);
    let Some(measured) = most else { return Vec::new() };
    let said: Option<Traffic> = predicted(trial, "traffic");
    let total = said.as_ref().map(|said| said.total()).filter(|total| total.0 > 0);
    let parts = said.iter().flat_map(Traffic::purposes).filter(|(_, bytes)| bytes.0 > 0);
    let parts = parts.map(|(purpose, bytes)| vec![purpose.to_owned(), bytes.to_string()]);
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let off = total.map(|total| deviation(measured, total.0 as f64));
    let all = vec![
        "all".to_owned(),
        total.map(|total| total.to_string()).unwrap_or_default(),
        bytes(measured),
        off.unwrap_or_default(),
    ];
    let titles = ["", "predicted", "measured"].map(str::to_owned).to_vec();
    std::iter::once(titles).chain(parts).chain([all]).collect()
}

/// Formats a number of bytes with a unit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes are whole and positive")]
pub(crate) fn bytes(value: f64) -> String {
    Bytes(value as u64).to_string()
}

/// Parses the field `part` of the plan's estimate for the candidate that was trained; `None` without one.
pub(super) fn predicted<T: serde::de::DeserializeOwned>(trial: &TrialDetails, part: &str) -> Option<T> {
    let choices = trial.plan.get("choices")?.as_array()?;
    let trained = choices.iter().find(|choice| choice.get("candidate") == Some(&trial.candidate))?;
    serde_json::from_value(trained.get("estimate")?.get(part)?.clone()).ok()
}
