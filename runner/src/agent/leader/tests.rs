//! What the leader makes of what hosts say.

use super::*;
use crate::agent::messages::Exit;
use crate::agent::peers::PeerAddress;
use crate::agent::sample;
use crate::fact::Ended;
use dtrain_protocol::{AttemptId, TrialId};
use dtrain_recipes::{Activation, Mlp, Model};
use std::path::PathBuf;

/// A leader of so many hosts with a rank each, all of which are started.
fn leading(hosts: u32) -> Leader {
    let mut leader = begun(hosts, false);
    for host in (1..hosts).chain([OWN]) {
        leader.step(now(), Input::Host(host, HostMessage::Started { outcome: Ok(()) }));
    }
    leader
}

/// A leader of a foreign program with one rank, which is started.
fn leading_foreign() -> Leader {
    let mut leader = begun(1, true);
    let addresses = Ok(vec!["127.0.0.1:7000".to_owned(), "127.0.0.1:7001".to_owned()]);
    for message in [HostMessage::Reserved { addresses }, HostMessage::Started { outcome: Ok(()) }] {
        leader.step(now(), Input::Host(OWN, message));
    }
    leader
}

/// A leader of so many hosts with a rank each that has asked for the first things.
fn begun(hosts: u32, are_foreign: bool) -> Leader {
    let model = Model::Mlp(Mlp { inputs: 1, hidden: Vec::new(), classes: 1, activation: Activation::Relu });
    let settings = Settings {
        attempt: AttemptId(1),
        keep: 2,
        gathers: false,
        checkpoints: PathBuf::new(),
        resume: None,
        first: sample::assignment(TrialId("01T".into()), AttemptId(1), model),
        address: String::new(),
    };
    let host = |index| {
        let peer = PeerAddress { host: index, name: format!("node{index}"), address: String::new() };
        (index, Host::new(peer, index..index + 1, Moment(0)))
    };
    Leader::begin(settings, (0..hosts).map(host).collect(), are_foreign, now()).0
}

fn now() -> Now {
    Now { moment: Moment(0), wall_ms: 0 }
}

/// What is spooled when the rank of `host`, of so many hosts, says that it cannot use its data.
fn without_data(hosts: u32, host: u32) -> Vec<Failure> {
    let event = Event::Failed(Failure::Data("no such file".into()));
    let said = HostMessage::Event { rank: Rank(host), event };
    let effects = leading(hosts).step(now(), Input::Host(host, said));
    let spooled = effects.into_iter().filter_map(|effect| match effect {
        Effect::Spool(SpoolRecord::Event(Stamped { event: Event::Failed(failure), .. })) => Some(failure),
        _ => None,
    });
    spooled.collect()
}

#[test]
fn data_that_cannot_be_used_is_told_with_its_host_where_there_are_several() {
    let detail = || "no such file".to_owned();
    assert_eq!(without_data(1, 0), [Failure::Data(detail())]);
    assert_eq!(without_data(2, 1), [Failure::DataOn { host: Some("node1".into()), detail: detail() }]);
    assert_eq!(
        without_data(2, 0),
        [Failure::DataOn { host: None, detail: detail() }],
        "its controller knows"
    );
}

/// When the only rank is killed after an order to stop that it does not answer, in milliseconds, and how the attempt ends then.
fn deaf(mut leader: Leader, limit_ms: u64) -> Option<Ended> {
    let at = |milliseconds| Now { moment: Moment(milliseconds), wall_ms: milliseconds };
    let kills = |effects: Vec<Effect>| {
        effects.iter().filter(|effect| matches!(effect, Effect::Ask(OWN, LeaderMessage::Kill { .. }))).count()
    };
    let asked = leader.step(at(1_000), Input::Stop);
    let stop = LeaderMessage::Order { order: Arc::new(Order::Stop) };
    assert!(asked.contains(&Effect::Ask(OWN, stop)), "{asked:?}");
    // Its agent turns meanwhile.
    let pulse = Pulse { turns: 1, ..Pulse::default() };
    leader.step(at(999 + limit_ms), Input::Beat(OWN, pulse));
    assert_eq!(kills(leader.step(at(999 + limit_ms), Input::Tick)), 0, "it may still stop by itself");
    let first = kills(leader.step(at(1_000 + limit_ms), Input::Tick));
    assert_eq!(first + kills(leader.step(at(1_000 + limit_ms), Input::Tick)), 1);
    let exit = Exit { code: None, signal: Some(9) };
    leader.step(at(1_000 + limit_ms), Input::Host(OWN, HostMessage::Exited { rank: Rank(0), exit }));
    let closed = HostMessage::OutputClosed { rank: Rank(0), garbled: None, last: Vec::new() };
    let effects = leader.step(at(1_000 + limit_ms), Input::Host(OWN, closed));
    effects.into_iter().find_map(|effect| match effect {
        Effect::Spool(SpoolRecord::Over { ended, .. }) => Some(ended),
        _ => None,
    })
}

#[test]
fn a_program_that_ignores_the_order_to_stop_is_killed_and_has_stopped() {
    assert_eq!(deaf(leading_foreign(), TO_STOP_MS), Some(Ended::Finished(StopReason::Ordered)));
}

#[test]
fn a_rank_that_says_nothing_after_the_order_to_stop_is_killed_and_has_stopped() {
    let leader = leading(1);
    let seconds = leader.settings.first.waits.idle_seconds;
    let limit = u64::try_from(Duration::from_secs_f64(seconds).as_millis()).expect("minutes");
    assert_eq!(deaf(leader, limit), Some(Ended::Finished(StopReason::Ordered)));
}
