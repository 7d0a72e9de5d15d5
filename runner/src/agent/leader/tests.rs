//! What the leader makes of what hosts say.

use super::*;
use crate::agent::peers::PeerAddress;
use crate::agent::sample;
use dtrain_protocol::{AttemptId, TrialId};
use dtrain_recipes::{Activation, Mlp, Model};
use std::path::PathBuf;

/// A leader of so many hosts with a rank each, all of which are started.
fn leading(hosts: u32) -> Leader {
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
    let (mut leader, _) = Leader::begin(settings, (0..hosts).map(host).collect(), false, now());
    for host in (1..hosts).chain([OWN]) {
        leader.step(now(), Input::Host(host, HostMessage::Started { outcome: Ok(()) }));
    }
    leader
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
