//! Studies of dtrain.

use super::functions::Function;
use dtrain_planner::tune::{
    Proposal, ProposalSource, PruneDecision, Sampler, SlotAction, Study, StudyEvent, StudySolver, StudyState,
    TrialOutcome, TrialRunner, TrialValue,
};
use dtrain_protocol::shuffle::splitmix64;
use std::time::Instant;

/// Trials of a function, one after the other.
struct Runs<'a> {
    function: &'a Function,
    seed: u64,
    ended: Option<StudyEvent>,
}

impl TrialRunner for Runs<'_> {
    fn slots(&self) -> usize {
        1
    }

    fn launch(&mut self, proposal: &Proposal) {
        let outcome = outcome(self.function, self.seed, proposal);
        self.ended = Some(StudyEvent::Ended { trial: proposal.trial, outcome });
    }

    fn resume(&mut self, _: u64, _: Option<u64>) {}

    fn reattach(&mut self, _: u64) {}

    fn stop(&mut self, _: u64, _: PruneDecision) {}

    fn next_event(&mut self) -> Option<StudyEvent> {
        self.ended.take()
    }
}

/// What a trial measures. One that cannot be measured has failed: no value is made up for it.
fn outcome(function: &Function, seed: u64, proposal: &Proposal) -> TrialOutcome {
    let truth = (function.truth)(&proposal.values);
    let noise = function.noise * bell(seed, proposal.trial);
    truth.map_or(TrialOutcome::done(f64::NAN), |truth| TrialOutcome::done(truth + noise))
}

/// About a standard normal number: the sum of twelve even ones.
fn bell(seed: u64, trial: u64) -> f64 {
    (0..12).map(|k| even(splitmix64(seed ^ 0x5eed, trial), k)).sum::<f64>() - 6.0
}

/// A number in the unit interval.
#[expect(clippy::cast_precision_loss, reason = "chance needs no more digits")]
fn even(seed: u64, k: u64) -> f64 {
    splitmix64(seed, k) as f64 / u64::MAX as f64
}

/// True values of what a study recommends after 30 and after all trials.
pub(crate) fn study(sampler: Sampler, function: &Function, seed: u64, trials: u64) -> (f64, f64) {
    let mut log = Vec::new();
    let [early, late] = [30, trials].map(|trials| {
        let study = Study { sampler, trials: Some(trials), ..Study::new((function.space)(), seed) };
        let search = StudySolver::new(study, std::mem::take(&mut log));
        let search = search.run(Runs { function, seed, ended: None });
        log = search.log().to_vec();
        let best = search.recommend().and_then(|best| (function.truth)(&best.values));
        best.unwrap_or(function.failed)
    });
    (early, late)
}

/// Milliseconds that each of some suggestions took after so many trials.
pub(crate) fn milliseconds(sampler: Sampler, function: &Function, trials: u64, repeats: u64) -> Vec<f64> {
    let study = Study { sampler, ..Study::new((function.space)(), 0) };
    let size = study.space.dimensions().len() as u64;
    let mut study_state = StudyState::default();
    for trial in 0..trials {
        let point: Vec<f64> = (0..size).map(|k| even(trial, k)).collect();
        let proposal = Proposal { trial, values: study.space.values(&point), source: ProposalSource::Random };
        note(&study, &mut study_state, function, &proposal);
    }
    let timed = |_| {
        let begun = Instant::now();
        let next = study.next_from(&study_state, &|_: &[TrialValue]| true);
        let took = 1000.0 * begun.elapsed().as_secs_f64();
        let SlotAction::Launch(proposal) = next else { unreachable!("a continuum is never exhausted") };
        note(&study, &mut study_state, function, &proposal);
        took
    };
    (0..repeats).map(timed).collect()
}

fn note(study: &Study, study_state: &mut StudyState, function: &Function, proposal: &Proposal) {
    study_state.record(study, &proposal.launched());
    let outcome = outcome(function, 0, proposal);
    study_state.record(study, &StudyEvent::Ended { trial: proposal.trial, outcome });
}
