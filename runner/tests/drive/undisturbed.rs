//! Trials without any disturbance.

use crate::world::{RANKS, STEPS, World};
use dtrain_protocol::{AttemptId, Event, Rank};
use dtrain_runner::{DriveError, Fact, History, TrialEvent, checkpoints, driver};
use std::fs;

pub(crate) fn a_trial_completes_and_everything_seen_was_kept() {
    let world = World::new();
    let (outcome, seen) = world.drive(driver::start);
    world.assert_completed(&outcome.expect("driven"));
    let facts: Vec<Fact> = seen
        .iter()
        .filter_map(|s| if let TrialEvent::Record(f) = s { Some(f.clone()) } else { None })
        .collect();
    assert_eq!(facts, world.facts());
    let history = History::open(&world.home.history()).expect("opens");
    let load = history.series(&world.trial, "system.resident_bytes", Rank(0)).expect("readable");
    assert!(load.iter().all(|sample| sample.value > 0.0), "{load:?}");
    let steps = seen
        .iter()
        .filter(|s| matches!(s, TrialEvent::Event(e) if matches!(e.event, Event::Step(_))))
        .count();
    assert_eq!(steps as u64, STEPS * u64::from(RANKS), "every step of every rank was seen once");
    assert!(matches!(driver::start, f if matches!(world.drive(f).0, Err(DriveError::Launched(_)))));
    let again = world.drive(driver::resume).0.expect("a completed trial is returned as it ended");
    world.assert_completed(&again);
    world.assert_nothing_lives();
}

pub(crate) fn only_the_newest_checkpoints_are_kept() {
    let mut world = World::new();
    world.options.keep = 1;
    world.assert_completed(&world.drive(driver::start).0.expect("driven"));
    let kept = checkpoints::committed(&world.home.trial(&world.trial).checkpoints()).expect("a folder");
    let steps: Vec<u64> = kept.iter().map(|point| point.step.0).collect();
    assert_eq!(steps, [STEPS - 10, STEPS], "never fewer than two");
}

pub(crate) fn ranks_meet_over_tls() {
    let world = World::new().over_tls();
    let (outcome, _) = world.drive(driver::start);
    world.assert_completed(&outcome.expect("driven"));
    let spool = fs::read(world.home.trial(&world.trial).spool(AttemptId(1))).expect("it is kept");
    assert!(!String::from_utf8_lossy(&spool).contains("PRIVATE"), "keys stay out of what is written");
}
