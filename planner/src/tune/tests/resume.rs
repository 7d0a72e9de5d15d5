//! Studies that are interrupted, and go on as if they had not been.

use super::toys::{self, Toy, dimension};
use crate::tune::search::{Finish, Progress};
use crate::tune::{
    Ended, Failure, Outcome, Proposal, Sampler, Scale, Search, Source, Space, Study, Trials, Value,
};
use argmin::core::observers::{Observe, ObserverMode};
use argmin::core::{Error, KV};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const BUDGET: u64 = 14;

/// A toy that is told to stop in the middle of a trial, and keeps what was proposed to it.
struct Interrupted {
    toy: Toy,
    /// Number of the trial that does not end.
    at: u64,
    proposed: Rc<RefCell<Vec<Proposal>>>,
}

impl Trials for Interrupted {
    fn run(&mut self, proposal: &Proposal) -> Option<Outcome> {
        self.proposed.borrow_mut().push(proposal.clone());
        if proposal.index == self.at { None } else { self.toy.run(proposal) }
    }
}

fn interrupted(search: Search, toy: Toy, at: u64) -> (Search, Vec<Proposal>) {
    let proposed = Rc::new(RefCell::new(Vec::new()));
    let search = search.run(Interrupted { toy, at, proposed: Rc::clone(&proposed) });
    (search, proposed.take())
}

fn study(toy: &Toy) -> Study {
    Study::new((toy.space)(), 9)
}

/// Through text, as a ledger would keep it.
fn kept<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it is plain");
    serde_json::from_str(&text).expect("it was just written")
}

#[test]
fn a_study_killed_in_any_trial_goes_on_to_the_last_bit() {
    for toy in [toys::recipe(2), toys::learning_rate(2)] {
        let (whole, proposals) = interrupted(Search::new(study(&toy), Vec::new(), BUDGET), toy, u64::MAX);
        assert_eq!(whole.finish(), Some(Finish::Budget));
        assert!(proposals.iter().any(|p| matches!(p.source, Source::Model { .. })), "the model was asked");
        for at in 0..BUDGET {
            let (first, before) = interrupted(Search::new(study(&toy), Vec::new(), BUDGET), toy, at);
            assert_eq!(first.finish(), Some(Finish::Stopped));
            assert_eq!(first.ended().len() as u64, at, "the trial that did not end is not noted");
            let again = Search::new(kept(first.study()), kept(&first.ended().to_vec()), BUDGET);
            let (second, after) = interrupted(again, toy, u64::MAX);
            assert_eq!(before.last(), after.first(), "the unfinished trial is proposed again");
            let all: Vec<Proposal> = before.into_iter().chain(after.into_iter().skip(1)).collect();
            assert_eq!(serde_json::to_string(&all).ok(), serde_json::to_string(&proposals).ok(), "at {at}");
            assert_eq!(kept(&second), whole);
        }
    }
}

#[test]
fn a_raised_budget_goes_on_where_the_old_one_ended() {
    let toy = toys::recipe(4);
    let whole = Search::new(study(&toy), Vec::new(), BUDGET).run(toy);
    let short = Search::new(study(&toy), Vec::new(), BUDGET - 4).run(toy);
    assert_eq!(short.ended(), &whole.ended()[..10]);
    let raised = Search::new(short.study().clone(), short.ended().to_vec(), BUDGET).run(toy);
    assert_eq!(raised, whole);
    let lowered = Search::new(whole.study().clone(), whole.ended().to_vec(), 3);
    assert_eq!(lowered.finish(), Some(Finish::Budget));
    assert_eq!(lowered.run(toy).ended(), whole.ended(), "nothing is run and nothing is lost");
}

#[test]
fn a_proposal_is_a_function_of_seed_and_trials() {
    let toy = toys::recipe(0);
    let ended = Search::new(study(&toy), Vec::new(), BUDGET).run(toy).ended().to_vec();
    let seeded = |seed| Study { seed, ..study(&toy) };
    assert_eq!(seeded(9).propose(&ended), seeded(9).propose(&ended));
    assert!(seeded(9).propose(&[]) != seeded(10).propose(&[]));
    assert!(study(&toy).propose(&ended) != study(&toy).propose(&ended[1..]));
}

fn few() -> Space {
    let batches = Scale::Levels([8, 16, 32].map(Value::Whole).to_vec());
    let names = Scale::Names(["f32", "bf16"].map(|word| Value::Word(word.into())).to_vec());
    Space::new(vec![dimension("train.batch", batches), dimension("train.precision", names)])
}

fn easy(seed: u64) -> Toy {
    Toy { space: few, truth: |point| point[0] + point[1], noise: 0.0, failure: |_| None, seed }
}

#[test]
fn nothing_is_tried_twice_and_all_of_a_small_space_once() {
    for sampler in [Sampler::Random, Sampler::Sobol, Sampler::Gaussian { start: 3 }] {
        let study = Study { sampler, ..Study::new(few(), 1) };
        let search = Search::new(study, Vec::new(), 100).run(easy(1));
        assert_eq!(search.finish(), Some(Finish::Exhausted), "{sampler:?}");
        let tried: Vec<&Vec<Value>> = search.ended().iter().map(|trial| &trial.values).collect();
        assert_eq!(tried.len(), 6, "{sampler:?}");
        assert!((0..6).all(|a| !tried[..a].contains(&tried[a])), "{sampler:?}: {tried:?}");
        let best = search.study().recommend(search.ended()).expect("six ended");
        assert_eq!(best.values, [Value::Whole(8), Value::Word("f32".into())], "{sampler:?}");
    }
}

#[test]
fn what_was_asked_for_comes_first_and_again_when_it_was_lost() {
    let first = vec![few().values(&[0.9, 0.1]), few().values(&[0.1, 0.9])];
    let study = Study { first: first.clone(), ..Study::new(few(), 1) };
    let trial = |values: &Vec<Value>, outcome| Ended { values: values.clone(), outcome };
    let lost = trial(&first[0], Outcome::Failed { why: Failure::Lost });
    let failed = trial(&first[0], Outcome::Failed { why: Failure::OutOfMemory });
    let proposed = |ended: &[Ended]| study.propose(ended).expect("six places");
    assert_eq!(proposed(&[]).values, first[0]);
    assert_eq!(proposed(&[lost]).values, first[0]);
    let second = proposed(std::slice::from_ref(&failed));
    assert_eq!((second.index, &second.values, second.source), (1, &first[1], Source::Given));
    let third = proposed(&[failed, trial(&first[1], Outcome::done(1.0))]);
    assert!(third.source != Source::Given && !first.contains(&third.values));
}

#[test]
fn a_study_in_which_everything_fails_goes_on_and_recommends_nothing() {
    let toy = Toy { failure: |_| Some(Failure::OutOfMemory), ..toys::recipe(0) };
    let search = Search::new(study(&toy), Vec::new(), 16).run(toy);
    assert_eq!((search.ended().len(), search.finish()), (16, Some(Finish::Budget)));
    assert_eq!(search.study().recommend(search.ended()), None);
}

#[test]
fn pruned_trials_teach_without_being_recommended() {
    let toy = toys::learning_rate(3);
    let mut ended = Search::new(study(&toy), Vec::new(), 8).run(toy).ended().to_vec();
    let (before, best) = (ended.clone(), study(&toy).recommend(&ended).expect("some ended"));
    ended
        .push(Ended { values: best.values.clone(), outcome: Outcome::Pruned { value: best.measured + 3.0 } });
    let after = study(&toy).recommend(&ended).expect("some ended");
    assert!(after.trial < before.len(), "a trial that did not end is not recommended");
    assert!(after.values != best.values || after.mean > best.mean, "{after:?}");
}

/// What an observer was shown: numbers of trials, sources, and the best cost at the end.
type Seen = Arc<Mutex<(Vec<u64>, Vec<String>, f64)>>;

struct Watcher(Seen);

impl Observe<Progress> for Watcher {
    fn observe_iter(&mut self, _: &Progress, told: &KV) -> Result<(), Error> {
        let mut seen = self.0.lock().expect("one thread");
        seen.0.extend(told.get("trial").and_then(|trial| trial.get_uint()));
        seen.1.extend(told.get("source").and_then(|source| source.get_string()));
        Ok(())
    }

    fn observe_final(&mut self, state: &Progress) -> Result<(), Error> {
        self.0.lock().expect("one thread").2 = state.get_best_cost();
        Ok(())
    }
}

#[test]
fn observers_are_told_of_every_trial_and_the_best_also_after_a_restart() {
    let toy = toys::learning_rate(5);
    let whole = Search::new(study(&toy), Vec::new(), 8).run(toy);
    let lowest = whole.ended().iter().filter_map(Ended::value).fold(f64::INFINITY, f64::min);
    for already in [0, 5, 7] {
        let seen = Seen::default();
        let search = Search::new(study(&toy), whole.ended()[..already].to_vec(), 8);
        let executor = search.executor(toy).add_observer(Watcher(Arc::clone(&seen)), ObserverMode::Always);
        let result = executor.run().expect("nothing fails");
        assert_eq!(result.solver, whole);
        let (numbers, sources, best) = seen.lock().expect("one thread").clone();
        assert_eq!(numbers, (already as u64..8).collect::<Vec<_>>());
        assert_eq!(sources.last().map(String::as_str), Some("model"));
        assert!((best - lowest).abs() < 1e-15, "{best} {lowest}");
    }
}
