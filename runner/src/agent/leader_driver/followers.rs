//! The leader's connections to the agents of the other hosts.

use crate::agent::InboxMessage;
use crate::agent::messages::HostMessage;
use crate::agent::peers::heartbeat::LoopCounters;
use crate::agent::peers::link::{LinkEvent, PeerLink};
use crate::agent::peers::listener::PeerListener;
use crate::agent::peers::{Greeting, MutualTlsStream, TrialAttempt, connect};
use crate::control_protocol::{AgentIdentity, AgentOrder, LaunchError};
use crate::fault_attribution::unreached_hosts;
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
    let needed = order.others.iter().filter(|other| !other.only_lends()).count();
    unreached_hosts(needed, &unreached).map_or(Ok((Some(listener), links, lost)), Err)
}
