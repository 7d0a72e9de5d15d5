//! Where the time of a step went on all ranks, beside what was predicted.

use super::number::{deviation, seconds};
use dtrain_planner::Breakdown;
use dtrain_runner::ledger::Trial;

/// The series of a phase, its name, and its prediction.
type Phase = (&'static str, &'static str, fn(&Breakdown) -> f64);

/// All phases, in the order of a step.
const PHASES: [Phase; 6] = [
    ("forward_seconds", "forward", |b| b.forward),
    ("backward_seconds", "backward", |b| b.backward),
    ("communication_seconds", "communication", |b| b.communication),
    ("bubble_seconds", "pipeline bubble", |b| b.bubble),
    ("optimizer_seconds", "optimizer", |b| b.optimizer),
    ("data_seconds", "samples, overhead", |b| b.overhead),
];

/// `phase  predicted  least  median  most  deviation of the median`; the figures of a rank are means over its steps.
/// Empty when nothing was measured.
pub(super) fn phases(trial: &Trial) -> Vec<Vec<String>> {
    let predicted = predicted(trial);
    let titles = ["", "predicted", "least", "median", "most"].map(str::to_owned).to_vec();
    let mut lines = vec![titles];
    for (key, name, of) in PHASES {
        let figures = trial.figures.iter().filter(|summary| summary.key == key);
        let mut ranks: Vec<f64> = figures.filter_map(|summary| summary.mean).collect();
        ranks.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (ranks.first(), ranks.last()) else { continue };
        let median = ranks[ranks.len() / 2];
        let said = predicted.as_ref().map(of);
        // What is next to nothing has no meaningful ratio.
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

/// What the plan said of the candidate that was trained.
fn predicted(trial: &Trial) -> Option<Breakdown> {
    let choices = trial.plan.get("choices")?.as_array()?;
    let trained = choices.iter().find(|choice| choice.get("candidate") == Some(&trial.candidate))?;
    serde_json::from_value(trained.get("estimate")?.get("breakdown")?.clone()).ok()
}
