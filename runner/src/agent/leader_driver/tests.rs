//! The real leader with many hosts: real listeners and connections, and followers that only answer.
//!
//! The longer test takes its number of hosts from `DTRAIN_FLEET=1000`.

use super::super::InboxMessage;
use super::super::messages::{HostMessage, LeaderMessage};
use super::super::peers::TrialAttempt;
use super::super::peers::link::{LinkEvent, PeerLink};
use super::super::peers::listener::PeerListener;
use super::connect_followers;
use crate::certificates::agent_certificates;
use crate::control_protocol::{AgentIdentity, AgentOrder, LinkChoice, OtherHost, PeerAddress, Program};
use crate::home::TrialFolder;
use crate::open_file_limit;
use dtrain_protocol::{AttemptId, TrialId};
use dtrain_skip::skip;
use std::collections::BTreeSet;
use std::fs;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns a value in KiB of `/proc/self/status`.
fn kibi(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("it tells");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Returns the seconds of CPU time that this process used.
fn cpu() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = text.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// Answers the leader until it is dismissed.
fn follower(listener: PeerListener) -> Arc<PeerListener> {
    listener.open(move |stream| {
        let own: Arc<Mutex<Option<PeerLink>>> = Arc::default();
        let answering = Arc::clone(&own);
        let mut slot = own.lock().expect("whole");
        let link = PeerLink::start::<LeaderMessage>(stream, &Arc::default(), move |heard| {
            let mut own = answering.lock().expect("whole");
            match (heard, own.as_ref()) {
                (LinkEvent::Message(LeaderMessage::ReservePorts { ranks, .. }), Some(link)) => {
                    let addresses = Ok((0..ranks).map(|rank| format!("10.0.0.1:{rank}")).collect());
                    link.send(&HostMessage::Reserved { addresses });
                }
                (LinkEvent::Message(LeaderMessage::Dismiss) | LinkEvent::Lost(_), _) => *own = None,
                (LinkEvent::Message(_) | LinkEvent::Beat(_), _) => {}
            }
        });
        *slot = Some(link.expect("a thread"));
    })
}

/// Returns the next message that is not a heartbeat.
fn next(inbox: &Receiver<InboxMessage>, patience: Duration) -> Option<InboxMessage> {
    let until = Instant::now() + patience;
    loop {
        match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(InboxMessage::Follower(_, LinkEvent::Beat(_))) => {}
            Ok(message) => return Some(message),
            Err(_) => return None,
        }
    }
}

#[test]
fn a_leader_of_many_hosts_asks_them_all_and_misses_each() {
    let hosts: u32 = std::env::var("DTRAIN_FLEET").map_or(60, |text| text.parse().expect("a number"));
    if let Err(words) = open_file_limit::ensure_open_file_limit(0, 4 * hosts as usize, 0) {
        return skip(words);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trial = TrialFolder::at(folder.path());
    let names = TrialAttempt { trial: TrialId("01JZX".into()), attempt: AttemptId(1) };
    let made = agent_certificates(&names.trial, names.attempt, hosts).expect("keys");
    let seat = |host: u32| {
        let identity = made[host as usize].clone();
        AgentIdentity { host, bind: "127.0.0.1".into(), identity, is_shared: false }
    };
    let doors: Vec<_> = (1..hosts)
        .map(|host| follower(PeerListener::bind(&seat(host), names.clone(), &trial).expect("a port")))
        .collect();
    let other = |(listener, host): (&Arc<PeerListener>, u32)| OtherHost {
        peer: PeerAddress { host, name: format!("node{host}"), address: listener.address.clone() },
        ranks: host..host + 1,
    };
    let order = AgentOrder {
        trial: names.trial.clone(),
        attempt: names.attempt,
        folder: folder.path().into(),
        worker: Program::new("worker", []),
        assignments: Vec::new(),
        link: LinkChoice::SharedMemory,
        keep: 2,
        seat: Some(seat(0)),
        others: doors.iter().zip(1..).map(other).collect(),
        notice: None,
    };
    let (before, processor, begun) = (kibi("VmRSS:"), cpu(), Instant::now());
    let (sender, inbox) = channel();
    let loop_counters = Arc::default();
    let (_, mut links, lost) =
        connect_followers(&order, &seat(0), &trial, &loop_counters, &sender).expect("all are listening");
    let (met, meeting) = (begun.elapsed(), cpu() - processor);
    assert_eq!((links.len(), lost), (hosts as usize - 1, Vec::new()));

    let begun = Instant::now();
    links.values().for_each(|link| link.send(&LeaderMessage::ReservePorts { ranks: 1, is_meeting: false }));
    let mut answers = BTreeSet::new();
    while answers.len() < links.len() {
        match next(&inbox, Duration::from_secs(30)) {
            Some(InboxMessage::Follower(
                host,
                LinkEvent::Message(HostMessage::Reserved { addresses: Ok(_) }),
            )) => {
                answers.insert(host);
            }
            _ => panic!("all answer"),
        }
    }
    let asked = begun.elapsed();

    // Heartbeats both ways, and nothing else.
    let (processor, begun) = (cpu(), Instant::now());
    assert!(next(&inbox, Duration::from_secs(1)).is_none(), "no host is lost");
    let idle = (cpu() - processor) / begun.elapsed().as_secs_f64();

    let begun = Instant::now();
    for victim in [1, hosts / 2, hosts - 1] {
        links[&victim].send(&LeaderMessage::Dismiss);
        match next(&inbox, Duration::from_secs(5)) {
            Some(InboxMessage::Follower(host, LinkEvent::Lost(_))) => assert_eq!(host, victim),
            _ => panic!("host {victim} should be missed"),
        }
        links.remove(&victim);
    }
    println!(
        "{hosts} hosts met in {met:.2?} ({meeting:.2} s of processor), asked and heard in {asked:.2?}; with their own ends in \
         the same process {:.0} % of a core for heartbeats and {} MiB; three lost hosts noticed in {:.2?}",
        100.0 * idle,
        kibi("VmRSS:").saturating_sub(before) >> 10,
        begun.elapsed()
    );
}
