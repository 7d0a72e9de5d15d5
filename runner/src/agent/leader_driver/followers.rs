//! The leader's connections to the agents of the other hosts.

use crate::agent::InboxMessage;
use crate::agent::messages::HostMessage;
use crate::agent::peers::heartbeat::LoopCounters;
use crate::agent::peers::link::{LinkEvent, PeerLink};
use crate::agent::peers::listener::PeerListener;
use crate::agent::peers::{Greeting, MutualTlsStream, TrialAttempt, connect};
use crate::control_protocol::{AgentIdentity, AgentOrder, LaunchError, PeerAddress};
use crate::home::TrialFolder;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

/// This host's listener, the connections to other hosts, and the lenders that could not be reached.
pub(super) type FollowerConnections = (Option<Arc<PeerListener>>, BTreeMap<u32, PeerLink>, Vec<u32>);

/// Opens this host's listener, and connects to the agents of all others at the same time.
pub(super) fn connect_followers(
    order: &AgentOrder,
    seat: &AgentIdentity,
    trial: &TrialFolder,
    loop_counters: &Arc<LoopCounters>,
    inbox: &Sender<InboxMessage>,
) -> Result<FollowerConnections, LaunchError> {
    let names = TrialAttempt { trial: order.trial.clone(), attempt: order.attempt };
    // The leader has no leader: drop such a connection.
    let listener = PeerListener::bind(seat, names, trial)?.open(drop);
    let connected: Vec<io::Result<MutualTlsStream>> = thread::scope(|scope| {
        let listener = &listener;
        let connecting = order.others.iter().map(|other| {
            scope.spawn(move || connect(&listener.tls, &listener.names, &other.peer, &Greeting::Lead))
        });
        let connecting: Vec<_> = connecting.collect();
        connecting.into_iter().map(|thread| thread.join().expect("connecting does not panic")).collect()
    });
    let (mut links, mut lost, mut unreached) = (BTreeMap::new(), Vec::new(), Vec::new());
    for (other, stream) in order.others.iter().zip(connected) {
        let (host, inbox) = (other.peer.host, inbox.clone());
        let hear = move |heard: LinkEvent<HostMessage>| drop(inbox.send(InboxMessage::Follower(host, heard)));
        match stream.and_then(|stream| PeerLink::start(stream, loop_counters, hear)) {
            Ok(link) => drop(links.insert(host, link)),
            Err(_) if other.only_lends() => lost.push(host),
            Err(error) => unreached.push((&other.peer, error)),
        }
    }
    launch_failure(order, &unreached).map_or(Ok((Some(listener), links, lost)), Err)
}

/// Returns the failure of a launch whose leader cannot reach these hosts. The fault is theirs, unless the leader reaches
/// none of several.
fn launch_failure(order: &AgentOrder, unreached: &[(&PeerAddress, io::Error)]) -> Option<LaunchError> {
    let (peer, error) = unreached.first()?;
    let needed = order.others.iter().filter(|other| !other.only_lends()).count();
    if needed > 1 && unreached.len() == needed {
        let reason =
            format!("the leader reaches none of {needed} hosts; {} at {}: {error}", peer.name, peer.address);
        return Some(LaunchError::Other(reason));
    }
    let reason = format!("the leader cannot connect to {}: {error}", peer.address);
    Some(LaunchError::OnHost { host: peer.name.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_protocol::{LinkChoice, OtherHost, Program};
    use dtrain_protocol::{AttemptId, TrialId};
    use std::path::PathBuf;

    #[test]
    fn the_host_that_cannot_be_reached_is_to_blame_unless_no_host_is_reached() {
        let peer =
            |host: u32| PeerAddress { host, name: format!("node{host}"), address: "10.0.0.9:7000".into() };
        let other = |host| OtherHost { peer: peer(host), ranks: host..host + 1 };
        let order = |hosts: u32| AgentOrder {
            trial: TrialId("01T".into()),
            attempt: AttemptId(1),
            folder: PathBuf::new(),
            worker: Program::new(PathBuf::new(), []),
            assignments: Vec::new(),
            link: LinkChoice::SharedMemory,
            keep: 1,
            seat: None,
            others: (1..hosts).map(other).collect(),
            notice: None,
        };
        let closed = || io::Error::from(io::ErrorKind::TimedOut);
        let peers: Vec<PeerAddress> = (0..4).map(peer).collect();
        let failed = |hosts, unreached: &[usize]| {
            let unreached: Vec<_> = unreached.iter().map(|host| (&peers[*host], closed())).collect();
            launch_failure(&order(hosts), &unreached)
        };
        assert_eq!(failed(4, &[]), None);
        let blamed = |failure: Option<LaunchError>| match failure {
            Some(LaunchError::OnHost { host, .. }) => Some(host),
            _ => None,
        };
        assert_eq!(blamed(failed(4, &[2])), Some("node2".into()));
        assert_eq!(blamed(failed(2, &[1])), Some("node1".into()), "it is one against one");
        assert!(
            matches!(failed(4, &[1, 2, 3]), Some(LaunchError::Other(_))),
            "the leader, which its controller names"
        );
    }
}
