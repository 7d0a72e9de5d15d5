//! Hosts that fail repeatedly are left out.

use crate::world::{RANKS, World, kill, wait};
use dtrain_protocol::AttemptId;
use dtrain_runner::strikes::{ExcludedHost, StrikeCause};
use dtrain_runner::{ControllerStatus, Fact, History, Ledger, driver};
use std::thread;

pub(crate) fn a_host_that_is_lost_twice_is_left_out_and_named() {
    let world = World::new().paced(0.02).on_hosts(RANKS);
    let outcome = thread::scope(|scope| {
        let driven = scope.spawn(|| world.drive(driver::start).0.expect("driven"));
        for attempt in [1, 2] {
            wait("agents of the attempt", || {
                let is_up =
                    |fact: &Fact| matches!(fact, Fact::AttemptStarted { attempt: a, .. } if a.0 == attempt);
                let attached = world.seen().into_iter().any(
                    |seen| matches!(seen, ControllerStatus::Attached { attempt: a, .. } if a == AttemptId(attempt)),
                );
                attached && world.facts().iter().any(is_up)
            });
            kill(&world.card_of(1).expect("it runs").agent);
        }
        driven.join().expect("it does not panic")
    });
    world.assert_completed(&outcome);
    let named: Vec<ExcludedHost> = world
        .seen()
        .into_iter()
        .flat_map(|seen| match seen {
            ControllerStatus::HostsExcluded { hosts } => hosts,
            _ => Vec::new(),
        })
        .collect();
    let [ExcludedHost { host, cause: StrikeCause::Lost, detail, .. }] = named.as_slice() else {
        panic!("one host, at the third launch: {named:?}, {:?}", world.facts())
    };
    assert!(detail.contains(host.as_str()), "{detail}");
    let history = History::open(&world.home.history()).expect("opens");
    let held = history.strikes().expect("readable");
    assert_eq!(held.iter().map(|strike| strike.host.as_str()).collect::<Vec<_>>(), [host, host]);
    assert_eq!(history.hosts().expect("readable").len(), RANKS as usize);
    world.assert_nothing_lives();
}
