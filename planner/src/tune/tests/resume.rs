//! Interrupted studies resume as if they had not been interrupted.

use super::runs::Runs;
use super::toys::{self, Toy, dimension};
use crate::tune::ask::FinishReason;
use crate::tune::solver::SolverState;
use crate::tune::{
    Asha, Hyperband, Median, Proposal, ProposalSource, Pruner, Sampler, Scale, SearchSpace, SlotAction,
    Study, StudyEvent, StudySolver, StudyState, TrialFailure, TrialOutcome, TrialResult, TrialValue,
};
use argmin::core::observers::{Observe, ObserverMode};
use argmin::core::{Error, KV};
use dtrain_protocol::shuffle::splitmix64;
use std::sync::{Arc, Mutex};

const BUDGET: u64 = 14;

fn study(toy: &Toy) -> Study {
    let space = (toy.space)();
    Study { sampler: Sampler::gaussian(&space), trials: Some(BUDGET), ..Study::new(space, 9) }
}

fn run(study: &Study, toy: Toy) -> StudySolver {
    StudySolver::new(study.clone(), Vec::new()).run(Runs::new(toy, 1))
}

/// Serializes and deserializes a value, as a ledger would.
fn kept<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it is plain");
    serde_json::from_str(&text).expect("it was just written")
}

/// Interrupts a study after several events and resumes it from the log until then; the complete log must be
/// the same.
fn survives(study: &Study, toy: Toy, slots: usize, units: u64, cuts: u64) {
    let runs = || Runs { units, ..Runs::new(toy, slots) };
    let whole = StudySolver::new(study.clone(), Vec::new()).run(runs());
    let log = whole.log();
    for cut in 0..cuts {
        let at = usize::try_from(splitmix64(cut, 77) % log.len() as u64).expect("a few events");
        let before: Vec<StudyEvent> = kept(&log[..at].to_vec());
        let again = StudySolver::new(kept(study), before.clone()).run(runs().after(&before));
        let text = |log: &[StudyEvent]| serde_json::to_string(log).expect("events are plain");
        assert_eq!(text(again.log()), text(log), "{study:?} with {slots} slots, cut at {at}");
        assert_eq!(again, whole);
    }
}

const SAMPLERS: [Sampler; 9] = [
    Sampler::Auto,
    Sampler::Grid { levels: 3 },
    Sampler::Random,
    Sampler::Sobol,
    Sampler::Gaussian { start: 4 },
    Sampler::Tpe,
    Sampler::CmaEs,
    Sampler::Swarm,
    Sampler::Evolution,
];

/// Returns the number of trials until a sampler has learned something; fewer for a Gaussian process, which is
/// slow.
fn trials(sampler: Sampler) -> u64 {
    if matches!(sampler, Sampler::Auto | Sampler::Gaussian { .. }) { BUDGET } else { 40 }
}

#[test]
fn a_study_killed_anywhere_goes_on_to_the_last_bit() {
    for sampler in SAMPLERS {
        for slots in [1, 4] {
            for toy in [toys::recipe(2), toys::learning_rate(2)] {
                survives(&Study { sampler, trials: Some(trials(sampler)), ..study(&toy) }, toy, slots, 0, 20);
            }
        }
    }
}

#[test]
fn so_does_one_whose_trials_are_pruned() {
    let toy = Toy { failure: |_| None, ..toys::recipe(2) };
    let (eta, least, most) = (2, 1, 8);
    let pruners = [
        Pruner::Asha(Asha { eta, min_resource: least, max_resource: most }),
        Pruner::Hyperband(Hyperband { eta, min_resource: least, max_resource: most }),
        Pruner::Median(Median { startup_trials: 3, warmup: 2 }),
    ];
    for pruner in pruners {
        for slots in [1, 4] {
            let study = Study { sampler: Sampler::Random, pruner, trials: Some(24), ..study(&toy) };
            survives(&study, toy, slots, most, 20);
            let search =
                StudySolver::new(study, Vec::new()).run(Runs { units: most, ..Runs::new(toy, slots) });
            let ended = search.ended();
            assert_eq!(ended.len(), 24, "{pruner:?}: those that stayed paused are pruned");
            let pruned =
                ended.iter().filter(|one| matches!(one.outcome, TrialOutcome::Pruned { .. })).count();
            assert!((6..20).contains(&pruned), "{pruner:?}: {pruned} of 24");
        }
    }
}

#[test]
fn a_raised_budget_goes_on_where_the_old_one_ended() {
    let toy = toys::recipe(4);
    let whole = run(&study(&toy), toy);
    let short = run(&Study { trials: Some(BUDGET - 4), ..study(&toy) }, toy);
    assert_eq!(short.finish_reason(), Some(FinishReason::Budget));
    assert_eq!(short.ended(), whole.ended()[..10]);
    let raised =
        StudySolver::new(study(&toy), short.log().to_vec()).run(Runs::new(toy, 1).after(short.log()));
    assert_eq!(raised, whole);
    let lowered = Study { trials: Some(3), ..study(&toy) };
    let lowered = StudySolver::new(lowered, whole.log().to_vec()).run(Runs::new(toy, 1).after(whole.log()));
    assert_eq!(lowered.finish_reason(), Some(FinishReason::Budget));
    assert_eq!(lowered.log(), whole.log(), "nothing is run and nothing is lost");
}

#[test]
fn a_proposal_is_a_function_of_seed_and_log() {
    let toy = toys::recipe(0);
    let log = run(&study(&toy), toy).log().to_vec();
    let seeded = |seed| Study { seed, trials: None, ..study(&toy) };
    assert_eq!(seeded(9).next(&log), seeded(9).next(&log));
    // The first trial is at the center, whatever the seed.
    assert!(seeded(9).next(&log[..2]) != seeded(10).next(&log[..2]));
    assert!(seeded(9).next(&log) != seeded(9).next(&log[..log.len() - 2]));
}

fn few() -> SearchSpace {
    let batches = Scale::Levels([8, 16, 32].map(TrialValue::Whole).to_vec());
    let names = Scale::Names(["f32", "bf16"].map(|word| TrialValue::Word(word.into())).to_vec());
    SearchSpace::new(vec![dimension("train.batch", batches), dimension("train.precision", names)])
}

fn easy(seed: u64) -> Toy {
    Toy { space: few, truth: |point| point[0] + point[1], noise: 0.0, failure: |_| None, seed }
}

#[test]
fn nothing_is_tried_twice_and_all_of_a_small_space_once() {
    for sampler in SAMPLERS {
        let study = Study { sampler, ..Study::new(few(), 1) };
        let search = run(&study, easy(1));
        assert_eq!(search.finish_reason(), Some(FinishReason::Exhausted), "{sampler:?}");
        let ended = search.ended();
        assert_eq!(ended.len(), 6, "{sampler:?}");
        assert!((0..6).all(|a| (0..a).all(|b| ended[a].values != ended[b].values)), "{sampler:?}: {ended:?}");
        let best = search.recommend().expect("six ended");
        assert_eq!(best.values, [TrialValue::Whole(8), TrialValue::Word("f32".into())], "{sampler:?}");
    }
}

#[test]
fn what_was_asked_for_comes_first_and_again_when_it_was_lost() {
    let first = vec![few().values(&[0.9, 0.1]), few().values(&[0.1, 0.9])];
    let study = Study { first: first.clone(), ..Study::new(few(), 1) };
    let trial = |values: &Vec<TrialValue>, outcome| TrialResult { values: values.clone(), outcome };
    let lost = trial(&first[0], TrialOutcome::Failed { reason: TrialFailure::Lost });
    let failed = trial(&first[0], TrialOutcome::Failed { reason: TrialFailure::OutOfMemory });
    let proposed = |ended: &[TrialResult]| match study.next(&StudyEvent::of(ended)) {
        SlotAction::Launch(proposal) => proposal,
        other => panic!("six places: {other:?}"),
    };
    assert_eq!(proposed(&[]).values, first[0]);
    assert_eq!(proposed(&[lost]).values, first[0]);
    let second = proposed(std::slice::from_ref(&failed));
    assert_eq!((second.trial, &second.values, second.source), (1, &first[1], ProposalSource::Given));
    let third = proposed(&[failed, trial(&first[1], TrialOutcome::done(1.0))]);
    assert!(third.source != ProposalSource::Given && !first.contains(&third.values));
}

#[test]
fn a_lost_trial_is_tried_again_and_is_none_of_the_budget() {
    let study = Study { trials: Some(3), sampler: Sampler::Sobol, ..Study::new(few(), 1) };
    let proposed = |log: &[StudyEvent]| match study.next(log) {
        SlotAction::Launch(proposal) => proposal,
        other => panic!("it is not over: {other:?}"),
    };
    let mut log = Vec::new();
    let mut tried = Vec::new();
    for outcome in [
        TrialOutcome::done(1.0),
        TrialOutcome::Failed { reason: TrialFailure::Lost },
        TrialOutcome::done(2.0),
        TrialOutcome::done(3.0),
    ] {
        let proposal = proposed(&log);
        tried.push((proposal.values.clone(), proposal.source));
        log.extend([proposal.launched(), StudyEvent::Ended { trial: proposal.trial, outcome }]);
    }
    assert_eq!(tried[2], tried[1], "the second one was lost");
    assert!(tried[3] != tried[2] && tried[2] != tried[0], "{tried:?}");
    assert_eq!(study.next(&log), SlotAction::Finished(FinishReason::Budget));
}

#[test]
fn a_lost_trial_that_comes_back_is_not_tried_again() {
    let study = Study { first: vec![few().values(&[0.9, 0.1])], ..Study::new(few(), 1) };
    let lost = TrialResult {
        values: study.first[0].clone(),
        outcome: TrialOutcome::Failed { reason: TrialFailure::Lost },
    };
    let mut log = StudyEvent::of(&[lost]);
    log.push(StudyEvent::Ended { trial: 0, outcome: TrialOutcome::done(2.0) });
    let study_state = StudyState::of(&study, &log);
    assert!(study_state.is_tried(&study.first[0]));
    assert_eq!(study_state.ended().count(), 1);
    log.push(StudyEvent::Ended { trial: 0, outcome: TrialOutcome::done(9.0) });
    assert_eq!(StudyState::of(&study, &log), study_state, "an end is an end");
}

#[test]
fn a_study_in_which_everything_fails_goes_on_and_recommends_nothing() {
    let toy = Toy { failure: |_| Some(TrialFailure::OutOfMemory), ..toys::recipe(0) };
    let search = run(&Study { trials: Some(16), ..study(&toy) }, toy);
    assert_eq!((search.ended().len(), search.finish_reason()), (16, Some(FinishReason::Budget)));
    assert_eq!(search.recommend(), None);
}

#[test]
fn pruned_trials_teach_without_being_recommended() {
    let toy = toys::learning_rate(3);
    let search = run(&Study { trials: Some(8), ..study(&toy) }, toy);
    let (before, best) = (search.ended(), search.recommend().expect("some ended"));
    let pruned = TrialOutcome::Pruned { value: best.measured + 3.0 };
    let ended = [before.clone(), vec![TrialResult { values: best.values.clone(), outcome: pruned }]].concat();
    let after = study(&toy).recommend(&StudyEvent::of(&ended)).expect("some ended");
    assert!(after.trial < before.len() as u64, "a trial that did not end is not recommended");
    assert!(after.values != best.values || after.mean > best.mean, "{after:?}");
}

/// Data seen by an observer: numbers of trials, origins, and the best cost at the end.
type Seen = Arc<Mutex<(Vec<u64>, Vec<String>, f64)>>;

struct Watcher(Seen);

impl Observe<SolverState> for Watcher {
    fn observe_iter(&mut self, _: &SolverState, told: &KV) -> Result<(), Error> {
        let mut seen = self.0.lock().expect("one thread");
        seen.0.extend(told.get("trial").and_then(|trial| trial.get_uint()));
        seen.1.extend(told.get("source").and_then(|source| source.get_string()));
        Ok(())
    }

    fn observe_final(&mut self, state: &SolverState) -> Result<(), Error> {
        self.0.lock().expect("one thread").2 = state.get_best_cost();
        Ok(())
    }
}

#[test]
fn observers_are_told_of_every_trial_and_the_best_also_after_a_restart() {
    let toy = toys::learning_rate(5);
    let study = Study { trials: Some(8), ..study(&toy) };
    let whole = run(&study, toy);
    let lowest = whole.ended().iter().filter_map(TrialResult::value).fold(f64::INFINITY, f64::min);
    for already in [0, 5, 7] {
        let seen = Seen::default();
        let before = &whole.log()[..2 * already];
        let executor =
            StudySolver::new(study.clone(), before.to_vec()).executor(Runs::new(toy, 1).after(before));
        let result = executor.add_observer(Watcher(Arc::clone(&seen)), ObserverMode::Always).run();
        assert_eq!(result.expect("nothing fails").solver, whole);
        let (numbers, sources, best) = seen.lock().expect("one thread").clone();
        assert_eq!(numbers, (already as u64..8).collect::<Vec<_>>());
        assert_eq!(sources.last().map(String::as_str), Some("model"));
        assert!((best - lowest).abs() < 1e-15, "{best} {lowest}");
    }
}

#[test]
fn several_slots_are_kept_busy_with_different_trials() {
    let toy = toys::recipe(1);
    let mut runs = Runs::new(toy, 4);
    let search = StudySolver::new(study(&toy), Vec::new()).run(&mut runs);
    let proposed: Vec<&Proposal> = runs.proposed.iter().collect();
    assert_eq!(proposed.len() as u64, BUDGET);
    assert!((0..proposed.len()).all(|a| (0..a).all(|b| proposed[a].values != proposed[b].values)));
    let launched =
        |log: &[StudyEvent]| log.iter().filter(|e| matches!(e, StudyEvent::Launched { .. })).count();
    assert_eq!(launched(&search.log()[..4]), 4, "the first four begin before anything ends");
}
