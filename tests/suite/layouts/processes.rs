//! Layouts whose ranks are processes train as one rank does, to the same bits over shared memory and over mutual TLS.
//!
//! A case goes the way of `dtrain run`: the driver starts the program as an agent, and the agent starts it as ranks. A run saves
//! after every step, so its first checkpoint gives the gradients of the first step, and its last the weights.

use super::parted::{Parted, Trained};
use super::world::{lowered, planned, trace, write_data};
use super::{Case, STEPS};
use dtrain_planner::AttemptSpec;
use dtrain_protocol::{Assignment, AttemptId, Event, StepId, StopReason};
use dtrain_runner::control_protocol::{LinkChoice, Program};
use dtrain_runner::ledger::NewTrial;
use dtrain_runner::provenance::Provenance;
use dtrain_runner::{
    Drive, DriveOutcome, History, Home, LaunchContext, Options, Programs, TrialEvent, Verdict, driver,
};
use dtrain_tests::{program, tensors};
use std::cell::RefCell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Layouts that are trained at a time.
const AT_A_TIME: usize = 2;

/// Each axis, each ZeRO stage, each schedule, unlike shares, and a few products.
fn layouts() -> Vec<Case> {
    let full = ("recompute", "\"full\"");
    let (gpipe, one_by_one) = (("schedule", "\"gpipe\""), ("schedule", "\"1f1b\""));
    let (interleaved, zero_bubble) = (("schedule", "\"interleaved\""), ("schedule", "\"zero_bubble\""));
    let layouts: [(&str, &[(&str, &str)]); 27] = [
        // Each axis.
        ("gpt", &[("data", "2")]),
        ("gpt", &[("data", "3")]),
        ("gpt", &[("tensor", "2"), ("sequence", "false")]),
        ("gpt", &[("tensor", "2"), ("sequence", "true")]),
        ("llama", &[("tensor", "4"), ("sequence", "true")]),
        ("gpt", &[("context", "2")]),
        ("moe", &[("context", "3")]),
        ("moe", &[("expert", "2")]),
        ("moe", &[("expert", "3")]),
        ("capacity", &[("expert", "2")]),
        // Each schedule.
        ("gpt", &[("pipeline", "2"), gpipe]),
        ("gpt", &[("pipeline", "3"), one_by_one]),
        ("gpt", &[("pipeline", "2"), interleaved, ("chunks", "2")]),
        ("llama", &[("pipeline", "2"), interleaved, ("chunks", "3")]),
        ("gpt", &[("pipeline", "2"), zero_bubble]),
        // Each ZeRO stage, among all replicas and in groups of some.
        ("gpt", &[("data", "2"), ("zero", "1"), ("shard", "2")]),
        ("gpt", &[("data", "3"), ("zero", "2"), ("shard", "3")]),
        ("gpt", &[("data", "2"), ("zero", "3"), ("shard", "2"), full]),
        ("llama", &[("data", "4"), ("zero", "2"), ("shard", "2")]),
        ("llama", &[("data", "4"), ("zero", "3"), ("shard", "2"), full]),
        // Unlike shares.
        ("gpt", &[("data", "2"), ("shares", "[3, 1]")]),
        ("mlp", &[("data", "2"), ("shares", "[3, 1]"), ("pipeline", "2"), one_by_one]),
        // Products.
        ("cnn", &[("data", "2"), ("pipeline", "2"), zero_bubble]),
        ("gpt", &[("data", "2"), ("tensor", "2"), ("pipeline", "2"), one_by_one, ("sequence", "true")]),
        ("llama", &[("data", "2"), ("context", "2"), ("zero", "3"), ("shard", "4"), full]),
        ("moe", &[("tensor", "3"), ("context", "2"), ("sequence", "true")]),
        SPREAD,
    ];
    layouts.iter().map(|(name, pins)| Case::new(name, pins)).collect()
}

/// Expert parallelism with sharded moments, those of the experts too.
const SPREAD: (&str, &[(&str, &str)]) =
    ("moe", &[("data", "2"), ("expert", "2"), ("zero", "1"), ("shard", "4")]);

fn over_tls() -> LinkChoice {
    LinkChoice::Tls { bind: "127.0.0.1".into() }
}

/// Prints one line for each layout: `tests/run processes --show-output`.
#[test]
fn processes_train_as_one_rank_does() {
    let layouts = layouts();
    let mut ones: Vec<Case> = Vec::new();
    for one in layouts.iter().map(Case::on_one_rank) {
        if ones.iter().all(|known| known.text() != one.text()) {
            ones.push(one);
        }
    }
    let alone = some_at_a_time(&ones, |one| {
        let trained = train(one, LinkChoice::SharedMemory).unwrap_or_else(|error| panic!("{error}"));
        (one.text(), trained)
    });
    let compared = some_at_a_time(&layouts, |case| {
        let one = case.on_one_rank().text();
        let expected = alone.iter().find(|(known, _)| *known == one).expect("it was trained");
        let found = compare(case, &expected.1);
        let (Ok(line) | Err(line)) = &found;
        println!("{line}");
        found
    });
    let wrong: Vec<_> = compared.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} of {} layouts:\n{}", wrong.len(), layouts.len(), wrong.join("\n"));
}

/// Over one link twice; the other test compares the links.
#[test]
fn the_same_processes_give_the_same_bits() {
    let sharded =
        Case::new("llama", &[("data", "3"), ("zero", "3"), ("shard", "3"), ("recompute", "\"full\"")]);
    let spread = Case::new(SPREAD.0, SPREAD.1);
    let links = [LinkChoice::SharedMemory, over_tls()];
    let runs: Vec<_> =
        [sharded, spread].iter().flat_map(|case| links.clone().map(|link| (case.clone(), link))).collect();
    let wrong: Vec<_> = some_at_a_time(&runs, |(case, link)| {
        let [first, again] = [(); 2].map(|()| train(case, link.clone()));
        let other = first.and_then(|first| Ok(first.other_bits(&again?)));
        match other {
            Ok(None) => None,
            Ok(Some(other)) => Some(format!("{case} over {link:?}: {other}")),
            Err(error) => Some(error),
        }
    });
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Trains `case` over both links and says how far it parts from one rank; `Err` where that is too far, or the links give
/// unlike bits.
fn compare(case: &Case, expected: &Trained) -> Result<String, String> {
    let shared = train(case, LinkChoice::SharedMemory)?;
    let tls = train(case, over_tls())?;
    let parted = Parted::of(expected, &shared);
    let other = shared.other_bits(&tls);
    let bits = other.as_deref().unwrap_or("the same bits over TLS");
    let line = format!("{case}: {bits}; {parted}");
    if parted.is_close() && other.is_none() { Ok(line) } else { Err(line) }
}

/// Trains `case` with processes as ranks that reach each other over `link`.
fn train(case: &Case, link: LinkChoice) -> Result<Trained, String> {
    let failed = |what: String| format!("{case}: {what}");
    let folder = tempfile::tempdir().expect("a folder for the case");
    write_data(folder.path());
    let home = Home::at(folder.path().join("state"));
    fs::create_dir_all(home.path()).expect("room on disk");
    let plan = planned(case, folder.path());
    let mut history = History::open(&home.history()).expect("a history");
    let new = NewTrial::of(&plan, plan.best(), Provenance::default());
    let trial = history.create_trial(&new).expect("a trial").id;
    let launched = RefCell::new(Vec::<Assignment>::new());
    let lower = |launching: &LaunchContext| -> Result<Vec<Assignment>, String> {
        let launch = AttemptSpec {
            trial: trial.clone(),
            attempt: launching.attempt,
            checkpoints: launching.checkpoints.clone(),
            resume: launching.from.clone(),
            spent_seconds: 0.0,
        };
        let assignments = lowered(&plan, &launch, STEPS).into_iter();
        let assignments: Vec<_> = assignments.map(|one| Assignment { save_every: 1, ..one }).collect();
        *launched.borrow_mut() = assignments.clone();
        Ok(assignments)
    };
    let mut events = vec![Vec::new(); case.ranks() as usize];
    let mut observer = |seen: &TrialEvent| {
        if let TrialEvent::Event(told) = seen {
            events[told.rank.0 as usize].push(told.event.clone());
        }
    };
    let program = program();
    let programs =
        Programs { agent: Program::new(&program, ["agent"]), worker: Program::new(&program, ["worker"]) };
    let keep = u32::try_from(STEPS).expect("steps are few");
    let options = Options { link, keep, ..Options::default() };
    let outcome = driver::start(Drive {
        home: &home,
        trial: &trial,
        lower: &lower,
        predict: &|_| None,
        programs: &programs,
        launcher: None,
        audit: None,
        options: &options,
        ledger: &mut history,
        observer: &mut observer,
        interrupts: Arc::default(),
    });
    let outcome = outcome.map_err(|error| failed(error.to_string()))?;
    let complete = Verdict::Completed(StopReason::Complete);
    if !matches!(&outcome, DriveOutcome::Ended { verdict, attempts: 1, .. } if *verdict == complete) {
        return Err(failed(format!(
            "one attempt should have completed over {:?}: {outcome:?}",
            options.link
        )));
    }
    // Only who is reached over the network listens there.
    let listening = events.iter().flatten().filter(|event| matches!(event, Event::Listening(_))).count();
    let expected = if options.link == over_tls() && events.len() > 1 { events.len() } else { 0 };
    if listening != expected {
        return Err(failed(format!("{listening} ranks listen over {:?}, not {expected}", options.link)));
    }
    let checkpoint = |step| tensors(&home.trial(&trial).checkpoint(StepId(step), AttemptId(1)));
    let launched = launched.into_inner();
    Ok(Trained::of(&launched[0], trace(case, STEPS, &events), checkpoint(1), checkpoint(STEPS)))
}

/// Does `work` for all `items`, some of them at a time; what it gave, in their order.
fn some_at_a_time<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work_on = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads = [(); AT_A_TIME].map(|()| scope.spawn(work_on));
        threads.into_iter().flat_map(|thread| thread.join().expect("it said why it panicked")).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
