//! Attempts whose hosts change: a host that is back takes part again, and a drained one leaves.

use crate::world::{RANKS, World, wait};
use dtrain_protocol::Failure;
use dtrain_runner::driver::HostLimits;
use dtrain_runner::launch::HostList;
use dtrain_runner::{AttemptEnd, ControllerStatus, DriveOutcome, Fact, History, Ledger as _, driver};
use std::thread;
use std::time::Duration;

/// Returns a trial on two hosts that takes some 20 s.
fn world() -> World {
    let mut world = World::new().on_hosts(2).paced(0.3);
    world.options.hosts = HostLimits { least: 1, most: 2, grows: true };
    world
}

fn has_seen(world: &World, what: fn(&ControllerStatus) -> bool) -> bool {
    world.seen().iter().any(what)
}

/// Waits until the attempt with this number runs on the hosts with these indices, and on no other.
fn wait_for_hosts(world: &World, attempt: u64, hosts: &[u32]) {
    // A host that only lends its part of a checkpoint has no ranks.
    let runs = |host: u32| {
        let card = world.card_of(host).filter(|card| card.agent.is_alive() && !card.ranks.is_empty());
        card.is_some_and(|card| card.attempt.0 == attempt)
    };
    wait("an attempt on these hosts", || (0..RANKS).all(|host| runs(host) == hosts.contains(&host)));
}

/// Asserts that every attempt but the last one ended because the hosts changed, and that no host is blamed.
fn assert_regrouped(world: &World) {
    for fact in world.facts() {
        if let Fact::AttemptEnded { ended: AttemptEnd::Lost(failure), .. } = fact {
            assert_eq!(failure, Failure::Regrouped);
        }
    }
    assert!(!has_seen(world, |seen| matches!(seen, ControllerStatus::Backoff { .. })), "{:?}", world.seen());
    let history = History::open(&world.home.history()).expect("opens");
    assert_eq!(history.strikes().expect("readable"), []);
}

pub(crate) fn a_host_that_is_back_takes_part_again_after_a_checkpoint() {
    let world = world();
    world.switch(1, false);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait_for_hosts(&world, 1, &[0]);
        world.switch(1, true);
        wait_for_hosts(&world, 2, &[0, 1]);
        driven.join().expect("it does not panic")
    });
    assert!(matches!(outcome, DriveOutcome::Ended { attempts: 2, .. }), "{outcome:?}");
    let growth = world.seen().into_iter().find_map(|seen| match seen {
        ControllerStatus::Growing { added, hosts, .. } => Some((added, hosts)),
        _ => None,
    });
    assert_eq!(growth, Some((vec!["node1".to_owned()], (1, 2))));
    assert_regrouped(&world);
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

pub(crate) fn a_drained_host_leaves_and_takes_part_again_when_the_drain_is_lifted() {
    for host in 0..RANKS {
        let (world, name) = (world().paced(0.6), format!("node{host}"));
        let outcome = thread::scope(|scope| {
            let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
            wait_for_hosts(&world, 1, &[0, 1]);
            let is_saved = |fact: &Fact| matches!(fact, Fact::CheckpointCommitted { .. });
            wait("a checkpoint", || world.facts().iter().any(is_saved));
            HostList::add(&world.home.drained(), &name).expect("room on disk");
            wait_for_hosts(&world, 2, &[1 - host]);
            assert!(HostList::remove(&world.home.drained(), &name).expect("room on disk"));
            wait_for_hosts(&world, 3, &[0, 1]);
            driven.join().expect("it does not panic")
        });
        assert!(matches!(outcome, DriveOutcome::Ended { attempts: 3, .. }), "{outcome:?}");
        assert!(has_seen(&world, |seen| matches!(seen, ControllerStatus::Draining { .. })));
        assert_regrouped(&world);
        world.assert_completed(&outcome);
        world.assert_nothing_lives();
    }
}

pub(crate) fn a_spare_stands_by_and_takes_the_place_of_a_host_that_is_lost() {
    let mut world = world().paced(0.1);
    world.first_pace = Some(2.0);
    world.options.hosts.most = 1;
    world.options.lost_after = Duration::from_secs(1);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait_for_hosts(&world, 1, &[0]);
        world.switch(0, false);
        wait_for_hosts(&world, 2, &[1]);
        world.switch(0, true);
        driven.join().expect("it does not panic")
    });
    assert!(!has_seen(&world, |seen| matches!(seen, ControllerStatus::Growing { .. })), "one host is enough");
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}

pub(crate) fn no_attempt_is_launched_on_fewer_hosts_than_the_recipe_asks_for() {
    let mut world = world().paced(0.05);
    world.options.hosts.least = 2;
    world.switch(1, false);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        wait("a pause", || has_seen(&world, |seen| matches!(seen, ControllerStatus::Backoff { .. })));
        assert!((0..RANKS).all(|host| world.card_of(host).is_none()), "one host is too few");
        world.switch(1, true);
        driven.join().expect("it does not panic")
    });
    world.assert_completed(&outcome);
    world.assert_nothing_lives();
}
