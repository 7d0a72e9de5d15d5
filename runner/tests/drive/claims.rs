//! Two controllers with copies of one history: the one that took over last drives the trial, and the other one ends.

use crate::world::{RANKS, World, kill, wait};
use dtrain_runner::{ControllerStatus, DriveError, DriveOutcome, Fact, History, Home, Ledger as _, driver};
use rusqlite::Connection;
use std::fs;
use std::thread;

/// Returns the trial as another machine has it, on which a copy of the history and of the trial's folder was made now.
fn copied(world: &World) -> World {
    let mut copy = World::at(&world.root, world.trial.clone());
    (copy.home, copy.hosts) = (Home::at(world.root.join("copy")), world.hosts);
    let (from, to) = (world.home.trial(&world.trial), copy.home.trial(&world.trial));
    to.create().expect("room on disk");
    for (from, to) in [(from.remote_hosts_file(), to.remote_hosts_file()), (from.claim(), to.claim())] {
        fs::copy(from, to).expect("an attempt was launched");
    }
    let history = Connection::open(world.home.history()).expect("opens");
    let to = copy.home.history().to_str().expect("plain text").to_owned();
    history.execute("VACUUM INTO ?1", [to]).expect("room on disk");
    copy
}

/// Drives a trial with a controller until another one, with a copy of the history, has taken over. Calls `then` and
/// waits for the ends of both. Returns the outcome of the second one, and its machine.
fn taken_over(world: &World, then: impl Fn()) -> (DriveOutcome, World) {
    thread::scope(|scope| {
        let first = scope.spawn(|| world.drive(driver::start).0);
        let is_known = |fact: &Fact| matches!(fact, Fact::CheckpointCommitted { .. });
        wait("a checkpoint", || world.facts().iter().any(is_known));
        let copy = copied(world);
        let outcome = thread::scope(|scope| {
            let second = scope.spawn(|| copy.drive(driver::resume).0);
            wait("the other controller", || {
                copy.seen().iter().any(|seen| matches!(seen, ControllerStatus::Attached { .. }))
            });
            then();
            let ended = first.join().expect("it does not panic");
            let process = std::process::id();
            assert!(
                matches!(&ended, Err(DriveError::Superseded { process: other, .. }) if *other == process),
                "{ended:?}"
            );
            second.join().expect("it does not panic").expect("driven")
        });
        let is_end = |fact: &Fact| matches!(fact, Fact::AttemptEnded { .. } | Fact::TrialEnded { .. });
        assert_eq!(world.facts().into_iter().find(is_end), None, "the first one recorded nothing more");
        assert_eq!(strikes(world), 0);
        (outcome, copy)
    })
}

fn strikes(world: &World) -> usize {
    let history = History::open(&world.home.history()).expect("opens");
    history.strikes().expect("readable").len()
}

pub(crate) fn of_two_controllers_with_copies_of_a_history_the_first_one_ends() {
    let world = World::new().on_hosts(RANKS).paced(0.15);
    let (outcome, copy) = taken_over(&world, || {});
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 1, .. }), "nothing was killed: {outcome:?}");
    copy.assert_completed(&outcome);
    assert_eq!(strikes(&copy), 0);
    copy.assert_nothing_lives();
}

/// The attempt is lost after the other controller took over, and before the first one has asked for claims.
pub(crate) fn a_loss_after_another_controller_took_over_is_recorded_by_that_one_alone() {
    let world = World::new().on_hosts(RANKS).paced(0.05);
    let (outcome, copy) = taken_over(&world, || kill(&world.card_of(1).expect("it runs").agent));
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 2, .. }), "{outcome:?}");
    copy.assert_completed(&outcome);
    assert_eq!(strikes(&copy), 1, "the host was lost");
    copy.assert_nothing_lives();
}
