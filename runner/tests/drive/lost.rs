//! Hosts that stay away: they are given up after a while or by the user, and fenced when they are back.

use crate::world::{World, signal, wait};
use dtrain_protocol::{AttemptId, Failure};
use dtrain_runner::launch::{AvailableHosts, HostList};
use dtrain_runner::{AttemptEnd, ControllerStatus, DriveOutcome, Fact, TrialEvent, Verdict, driver};
use rustix::process::Signal;
use std::thread;
use std::time::Duration;

/// Returns two hosts, the first of which has all ranks. The first attempt is slow, so that it still runs when its host is
/// back.
fn world_with_a_spare() -> World {
    let mut world = World::new().on_hosts(2).paced(0.12);
    (world.spread, world.first_pace) = (1, Some(2.0));
    world
}

/// Drives a trial whose only host is cut off after its ranks started; returns the outcome.
fn cut_off(world: &World, then: impl Fn() + Sync) -> DriveOutcome {
    thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("agents", || world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Attached { .. })));
        world.switch(0, false);
        then();
        driven.join().expect("it does not panic")
    })
}

fn assert_lost(world: &World) {
    let lost = world.facts().into_iter().find_map(|fact| match fact {
        Fact::AttemptEnded { attempt: AttemptId(1), ended: AttemptEnd::Lost(failure) } => Some(failure),
        _ => None,
    });
    assert!(matches!(&lost, Some(Failure::HostLost { host, .. }) if host == "node0"), "{lost:?}");
}

pub(crate) fn the_only_host_of_an_attempt_is_given_up_and_ends_it_when_it_is_back() {
    let mut world = world_with_a_spare();
    world.options.lost_after = Duration::from_secs(1);
    let outcome = cut_off(&world, || {
        wait("the end of patience", || {
            world
                .seen()
                .iter()
                .any(|seen| matches!(seen, ControllerStatus::HostLost { attempt: AttemptId(1), .. }))
        });
        wait("the next attempt", || world.card_of(1).is_some());
        let orphan = world.card_of(0).expect("it still runs");
        assert!(orphan.agent.is_alive(), "no host could end it");
        world.switch(0, true);
        wait("word of it", || {
            world
                .seen()
                .iter()
                .any(|seen| matches!(seen, ControllerStatus::Fenced { host, .. } if host == "node0"))
        });
        assert!(!orphan.agent.is_alive(), "it found a newer attempt");
    });
    assert_lost(&world);
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 2, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

/// The answer to the first launch does not arrive, and then the host is lost.
pub(crate) fn a_host_that_is_lost_during_the_first_launch_is_given_up() {
    let mut world = world_with_a_spare();
    world.options.lost_after = Duration::from_secs(1);
    world.lose_answers(0, true);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("the agent", || world.card_of(0).is_some());
        world.switch(0, false);
        wait("the next attempt", || world.card_of(1).is_some());
        world.lose_answers(0, false);
        world.switch(0, true);
        driven.join().expect("it does not panic")
    });
    let waits = |seen: &ControllerStatus| matches!(seen, ControllerStatus::SpoolUnavailable { .. });
    assert!(!world.seen().iter().any(waits), "nothing of its record is worth a wait");
    assert_lost(&world);
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

/// The system asks the only host of an attempt to end, as at a reboot: another host takes its place.
pub(crate) fn the_only_host_of_an_attempt_that_is_asked_to_end_is_replaced() {
    let world = world_with_a_spare();
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("agents", || world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Attached { .. })));
        signal(&world.card_of(0).expect("it was started").agent, Signal::TERM);
        wait("the next attempt", || world.card_of(1).is_some());
        driven.join().expect("it does not panic")
    });
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 2, .. }), "{outcome:?}");
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

/// The only host that answers is cut off and given up, and the user stops the trial before another attempt begins.
/// Whether the host is back by then or not, nobody is left to train without a word.
pub(crate) fn a_trial_that_ends_leaves_no_attempt_that_was_given_up_without_a_word() {
    for is_back in [true, false] {
        let mut world = world_with_a_spare();
        world.options.lost_after = Duration::from_secs(1);
        world.switch(1, false);
        let has_seen = |what: fn(&ControllerStatus) -> bool| world.seen().iter().any(what);
        // In the thread of the controller, before it pauses.
        let mut observe = |seen: &TrialEvent| match seen {
            TrialEvent::Status(ControllerStatus::Attached { .. }) => world.switch(0, false),
            TrialEvent::Status(ControllerStatus::SpoolLost { .. }) => {
                world.switch(0, is_back);
                world.interrupts.add();
            }
            _ => {}
        };
        let outcome = world.drive_and(driver::start, &mut observe).expect("driven");
        assert!(has_seen(|seen| matches!(seen, ControllerStatus::HostLost { .. })), "it was given up");
        assert!(matches!(outcome, DriveOutcome::Ended { verdict: Verdict::Stopped, .. }), "{outcome:?}");
        let card = world.card_of(0).expect("it was started");
        if is_back {
            assert!(!card.agent.is_alive(), "it trains on after the end of the trial");
        } else {
            assert!(has_seen(|seen| matches!(seen, ControllerStatus::Unfenced { host } if host == "node0")));
            world.switch(0, true);
            assert_eq!(world.remote(0).fence(&world.trial, AttemptId(9)), Ok(Some(AttemptId(1))));
        }
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_fenced_host_is_given_up_at_once_and_not_used_again() {
    let world = world_with_a_spare();
    let folder = world.home.trial(&world.trial);
    let outcome = cut_off(&world, || {
        wait("a word about it", || {
            world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Unreachable { .. }))
        });
        assert!(world.card_of(1).is_none(), "it may go on where it is");
        HostList::add(&folder.fenced(), "node0").expect("room on disk");
        wait("the next attempt", || world.card_of(1).is_some());
        world.switch(0, true);
    });
    assert_lost(&world);
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
    let mut launcher = world.launcher(2);
    assert_eq!(AvailableHosts::of(launcher.as_mut()).away, ["node0: it is fenced"]);
    assert!(HostList::remove(&folder.fenced(), "node0").expect("room on disk"));
    assert_eq!(AvailableHosts::of(launcher.as_mut()).hosts, 2);
}

pub(crate) fn an_interrupt_ends_a_launch_whose_answer_does_not_come() {
    let world = World::new().on_hosts(2);
    world.lose_answers(0, true);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("the agent that leads", || world.card_of(0).is_some());
        world.interrupts.add();
        wait("a word about it", || {
            world.seen().iter().any(|seen| matches!(seen, ControllerStatus::Interrupted))
        });
        driven.join().expect("it does not panic")
    });
    let DriveOutcome::Ended { verdict, attempts: 1, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(verdict, dtrain_runner::Verdict::Stopped);
    world.assert_nothing_lives();
}
