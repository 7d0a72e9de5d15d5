//! Trials on remote hosts that end while no controller runs.

use crate::world::{RANKS, World, kill, wait};
use dtrain_protocol::{AttemptId, Event, StepId, frame};
use dtrain_runner::ledger::TrialActivity;
use dtrain_runner::spool::SpoolRecord;
use dtrain_runner::{ControllerStatus, DriveError, DriveOutcome, Fact, History, Home, checkpoints, driver};
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Returns a trial on hosts that ended after its controller had left.
fn ended_unseen() -> World {
    let mut world = World::new().on_hosts(RANKS);
    world.options.detach = true;
    let outcome = world.drive(driver::start).0.expect("driven");
    assert!(matches!(outcome, DriveOutcome::Detached { .. }), "{outcome:?}");
    world.assert_nothing_lives();
    world.options.detach = false;
    let is_end = |fact: &Fact| matches!(fact, Fact::AttemptEnded { .. });
    assert!(!world.facts().iter().any(is_end), "no controller looked");
    world
}

/// Repeats the spool of the leader's host until it is as long as that of many steps.
fn lengthen_spool(world: &World, times: usize) -> u64 {
    let path = Home::at(world.host(0)).trial(&world.trial).spool(AttemptId(1));
    let bytes = fs::read(&path).expect("it trained");
    let (mut rest, mut longer) = (bytes.as_slice(), Vec::new());
    let mut is_found = false;
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let record: SpoolRecord = frame::read(&mut rest).expect("as it was written");
        let record_bytes = &bytes[begin..bytes.len() - rest.len()];
        let is_step = matches!(&record, SpoolRecord::Event(said) if matches!(said.event, Event::Step(_)));
        let times = if is_step && !is_found { times } else { 1 };
        is_found |= is_step;
        longer.extend(record_bytes.repeat(times));
    }
    fs::write(&path, &longer).expect("room on disk");
    longer.len() as u64
}

pub(crate) fn what_ended_unseen_is_read_however_long_it_takes() {
    let world = ended_unseen();
    // At 6 MB/s it takes longer than the time limit for an answer of a host.
    let bytes = lengthen_spool(&world, 80_000);
    assert!(bytes > 20 << 20, "{bytes}");
    world.slow_down(0);
    let outcome = world.drive(driver::attach).0.expect("it is read");
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
}

pub(crate) fn what_ended_on_a_host_that_is_away_is_not_taken_for_lost() {
    let mut world = ended_unseen();
    let mirror = Home::at(world.host(1)).trial(&world.trial).mirror(AttemptId(1));
    fs::remove_file(mirror).expect("the other host has the record too");
    world.switch(0, false);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::attach).0);
        wait("a word about it", || {
            world.seen().iter().any(|seen| matches!(seen, ControllerStatus::SpoolUnavailable { .. }))
        });
        world.interrupts.add();
        driven.join().expect("it does not panic")
    });
    assert!(matches!(&outcome, Err(DriveError::Unread { .. })), "{outcome:?}");
    let is_end = |fact: &Fact| matches!(fact, Fact::AttemptEnded { .. });
    assert!(!world.facts().iter().any(is_end), "its end is unknown: {:?}", world.facts());
    world.switch(0, true);
    world.interrupts = Arc::default();
    let outcome = world.drive(driver::attach).0.expect("now it is read");
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
}

/// Checks that the result of a trial is known without the disk of the leader's host, which may answer or not.
fn ended_without_the_disk_of_the_leader(answers: bool) {
    let world = ended_unseen();
    if !answers {
        world.switch(0, false);
    }
    fs::remove_dir_all(world.host(0)).expect("no process writes there");
    let outcome = world.drive(driver::attach).0.expect("the other host has the record");
    let DriveOutcome::Ended { verdict, attempts: 1, checkpoint: Some(point) } = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(*verdict, dtrain_runner::Verdict::Completed(dtrain_protocol::StopReason::Complete));
    let checkpoints = Home::at(world.host(1)).trial(&world.trial).checkpoints();
    let kept = checkpoints::committed(&checkpoints).expect("it trained").pop().expect("the last state");
    assert_eq!(kept.folder.file_name(), point.folder.file_name());
    checkpoints::verify(&kept.folder).expect("with what the other host wrote");
    let history = History::open(&world.home.history()).expect("opens");
    let trial = history.trial(&world.trial, &|_| TrialActivity::Running).expect("known");
    assert_eq!(trial.row.step, crate::world::STEPS, "every figure is kept");
    world.assert_nothing_lives();
}

pub(crate) fn how_a_trial_ended_outlives_the_host_that_led() {
    ended_without_the_disk_of_the_leader(false);
}

pub(crate) fn how_a_trial_ended_outlives_the_disk_of_the_host_that_led() {
    ended_without_the_disk_of_the_leader(true);
}

pub(crate) fn what_a_lost_leader_committed_is_found_on_the_others() {
    let mut world = World::new().on_hosts(RANKS);
    world.pace = 0.05;
    world.options.detach = true;
    world.drive(driver::start).0.expect("driven");
    let disk = |host| Home::at(world.host(host)).trial(&world.trial).checkpoints();
    let newest = |host| {
        let found = checkpoints::committed(&disk(host)).unwrap_or_default();
        found.last().map_or(0, |point| point.step.0)
    };
    wait("checkpoints on the other host", || newest(1) >= 30);
    // The host that leads is lost with its disk, which has the only record.
    let leader = world.card_of(0).expect("it runs").agent;
    world.switch(0, false);
    kill(&leader);
    world.assert_nothing_lives();
    fs::remove_dir_all(world.host(0)).expect("no process writes there");
    let is_checkpoint = |fact: &Fact| matches!(fact, Fact::CheckpointCommitted { .. });
    assert!(!world.facts().iter().any(is_checkpoint), "no record has one");
    let known = newest(1);
    world.options.detach = false;
    world.options.patience = Duration::from_millis(1);
    let outcome = world.drive(driver::resume).0.expect("driven");
    world.assert_completed(&outcome);
    let from = world.facts().into_iter().find_map(|fact| match fact {
        Fact::AttemptStarted { attempt: AttemptId(2), from } => Some(from),
        _ => None,
    });
    assert_eq!(from, Some(Some(StepId(known))), "what the other host has is gone on from");
    let is_lost = |seen: &ControllerStatus| matches!(seen, ControllerStatus::SpoolLost { .. });
    assert!(world.seen().iter().any(is_lost), "it is said that the record is lost");
    world.assert_nothing_lives();
}
