//! Two ends of a connection, with a cable that is cut, slow, unsteady or corrupting.

use super::super::super::messages::{HostMessage, LeaderMessage};
use super::super::heartbeat::{HEARTBEAT_TIMEOUT, LoopCounters};
use super::super::listener::PeerListener;
use super::super::{Greeting, TrialAttempt, connect};
use super::{LinkEvent, PeerLink};
use crate::certificates::agent_certificates;
use crate::control_protocol::{AgentIdentity, PeerAddress};
use crate::home::TrialFolder;
use dtrain_protocol::{AttemptId, TrialId};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The effect of a cable on bytes in one direction.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Way {
    /// Passes them on.
    Open,
    /// Drops them silently.
    Cut,
    /// Corrupts them.
    Bad,
}

/// A cable between two agents.
struct Cable {
    /// Leader to follower, and back.
    ways: [Arc<AtomicU8>; 2],
    /// Bytes per second in each direction; 0 means no limit.
    pace: Arc<AtomicU64>,
    address: String,
}

impl Cable {
    fn to(far: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let cable = Self { ways: [Arc::default(), Arc::default()], pace: Arc::default(), address };
        let (ways, pace, far) = (cable.ways.clone(), Arc::clone(&cable.pace), far.to_owned());
        thread::spawn(move || {
            let Ok((near, _)) = listener.accept() else { return };
            let Ok(far) = TcpStream::connect(far) else { return };
            let back = (far.try_clone().expect("a socket"), near.try_clone().expect("a socket"));
            let [there, here] = ways;
            let other = Arc::clone(&pace);
            thread::spawn(move || carry(near, far, &there, &pace));
            carry(back.0, back.1, &here, &other);
        });
        cable
    }

    fn set(&self, ways: [Way; 2]) {
        self.ways.iter().zip(ways).for_each(|(own, way)| own.store(way as u8, Ordering::SeqCst));
    }
}

/// Carries bytes one way until either end is closed.
fn carry(mut from: TcpStream, mut to: TcpStream, way: &AtomicU8, pace: &AtomicU64) {
    let mut room = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut room) {
        while way.load(Ordering::SeqCst) == Way::Cut as u8 {
            thread::sleep(Duration::from_millis(5));
        }
        if way.load(Ordering::SeqCst) == Way::Bad as u8 {
            room[length - 1] ^= 1;
        }
        if let Some(pace) = std::num::NonZeroU64::new(pace.load(Ordering::SeqCst)) {
            thread::sleep(Duration::from_secs(length as u64) / u32::try_from(pace.get()).unwrap_or(u32::MAX));
        }
        if to.write_all(&room[..length]).is_err() {
            break;
        }
    }
    drop(to.shutdown(std::net::Shutdown::Both));
    drop(from.shutdown(std::net::Shutdown::Both));
}

/// Two agents connected by a cable.
struct Pair {
    cable: Cable,
    leader: PeerLink,
    follower: PeerLink,
    /// Events of each end other than heartbeats, with their times.
    by_leader: Receiver<(Instant, LinkEvent<HostMessage>)>,
    by_follower: Receiver<(Instant, LinkEvent<LeaderMessage>)>,
    /// Progress counters of both ends.
    loop_counters: [Arc<LoopCounters>; 2],
    /// The last heartbeat that the leader received.
    heartbeat: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let trial = TrialFolder::at(folder.path());
        let names = TrialAttempt { trial: TrialId("01JZX".into()), attempt: AttemptId(1) };
        let made = agent_certificates(&names.trial, names.attempt, 2).expect("keys");
        let seat = |host: u32| {
            let identity = made[host as usize].clone();
            AgentIdentity { host, bind: "127.0.0.1".into(), identity, is_shared: false }
        };
        let (came, visitor) = channel();
        let listener = PeerListener::bind(&seat(1), names.clone(), &trial).expect("a free port");
        let listener = listener.open(move |stream| drop(came.send(stream)));
        let cable = Cable::to(&listener.address);
        let peer = PeerAddress { host: 1, name: "node1".into(), address: cable.address.clone() };
        let own = PeerListener::bind(&seat(0), names, &trial).expect("a free port");
        let stream = connect(&own.tls, &own.names, &peer, &Greeting::Lead).expect("it is let in");
        let loop_counters = [Arc::<LoopCounters>::default(), Arc::default()];
        let heartbeat = Arc::<AtomicU64>::default();
        let (to, by_leader) = channel();
        let beaten = Arc::clone(&heartbeat);
        let leader = PeerLink::start(stream, &loop_counters[0], move |heard| match heard {
            LinkEvent::Beat(heartbeat) => beaten.store(heartbeat.turns, Ordering::SeqCst),
            heard => drop(to.send((Instant::now(), heard))),
        });
        let stream = visitor.recv_timeout(Duration::from_secs(10)).expect("the leader came");
        let (to, by_follower) = channel();
        let follower = PeerLink::start(stream, &loop_counters[1], move |heard| {
            if !matches!(heard, LinkEvent::Beat(_)) {
                drop(to.send((Instant::now(), heard)));
            }
        });
        let (leader, follower) = (leader.expect("a thread"), follower.expect("a thread"));
        let pair = Self {
            cable,
            leader,
            follower,
            by_leader,
            by_follower,
            loop_counters,
            heartbeat,
            _folder: folder,
        };
        pair.talk();
        pair
    }

    /// Checks that each end receives the other's messages.
    fn talk(&self) {
        self.leader.send(&LeaderMessage::Dismiss);
        self.follower.send(&HostMessage::Terminated);
        let patience = Duration::from_secs(10);
        assert!(matches!(
            self.by_follower.recv_timeout(patience),
            Ok((_, LinkEvent::Message(LeaderMessage::Dismiss)))
        ));
        assert!(matches!(
            self.by_leader.recv_timeout(patience),
            Ok((_, LinkEvent::Message(HostMessage::Terminated)))
        ));
    }

    /// Returns the time since `began` at which each end counted the other as lost, the leader first, and the
    /// reasons.
    fn lost_after(&self, began: Instant) -> ([Duration; 2], [String; 2]) {
        let patience = Duration::from_secs(60);
        let follower = self.by_follower.recv_timeout(patience).expect("the follower notices");
        let leader = self.by_leader.recv_timeout(patience).expect("the leader notices");
        match (leader, follower) {
            ((leader, LinkEvent::Lost(by_leader)), (follower, LinkEvent::Lost(by_follower))) => {
                ([leader, follower].map(|at| at.saturating_duration_since(began)), [by_leader, by_follower])
            }
            said => panic!("nothing was said: {said:?}"),
        }
    }

    fn nobody_is_lost(&self) {
        assert!(self.by_leader.try_recv().is_err() && self.by_follower.try_recv().is_err());
    }
}

#[test]
fn a_cut_in_either_direction_or_both_is_noticed_at_both_ends() {
    let lost = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for ways in [[Way::Cut, Way::Cut], [Way::Cut, Way::Open], [Way::Open, Way::Cut]] {
            let lost = &lost;
            scope.spawn(move || {
                let pair = Pair::new();
                pair.cable.set(ways);
                let (after, words) = pair.lost_after(Instant::now());
                // An end that still receives learns it from the other, which closes the connection.
                assert!(words[0].contains("no heartbeat for") || words[0].contains("closed"), "{words:?}");
                assert!(words.iter().any(|words| words.contains("no heartbeat for")), "{words:?}");
                lost.lock().expect("whole").extend(after);
            });
        }
    });
    let lost = lost.into_inner().expect("whole");
    println!("noticed after {lost:.2?}");
    let bounds = HEARTBEAT_TIMEOUT / 2..10 * HEARTBEAT_TIMEOUT;
    assert!(lost.iter().all(|after| bounds.contains(after)), "{lost:?}");
}

#[test]
fn a_byte_that_arrives_altered_ends_the_connection_at_once() {
    let pair = Pair::new();
    pair.cable.set([Way::Bad, Way::Open]);
    let began = Instant::now();
    pair.leader.send(&LeaderMessage::ReservePorts { ranks: 1, is_meeting: false });
    let ([leader, follower], words) = pair.lost_after(began);
    println!("noticed after {follower:.2?} and {leader:.2?}: {words:?}");
    assert!(!words.iter().any(|words| words.contains("no heartbeat")), "no silence ended it: {words:?}");
}

#[test]
fn a_slow_cable_loses_nobody() {
    let pair = Pair::new();
    pair.cable.pace.store(100_000, Ordering::SeqCst);
    let long = "x".repeat(300_000);
    pair.leader.send(&LeaderMessage::ListCheckpoint { folder: long.clone() });
    let told = pair.by_follower.recv_timeout(Duration::from_secs(20)).expect("it arrives");
    assert!(matches!(told.1, LinkEvent::Message(LeaderMessage::ListCheckpoint { folder }) if folder == long));
    pair.talk();
}

/// The size of the manifest of a checkpoint of a terabyte.
#[test]
fn a_message_of_many_megabytes_arrives_and_loses_nobody() {
    let pair = Pair::new();
    let long = "x".repeat(20 << 20);
    pair.leader.send(&LeaderMessage::ListCheckpoint { folder: long.clone() });
    let told = pair.by_follower.recv_timeout(Duration::from_secs(60)).expect("it arrives");
    assert!(matches!(told.1, LinkEvent::Message(LeaderMessage::ListCheckpoint { folder }) if folder == long));
    pair.talk();
}

#[test]
fn a_cable_that_fails_for_a_moment_again_and_again_loses_nobody() {
    let pair = Pair::new();
    for _ in 0..3 {
        pair.cable.set([Way::Cut, Way::Cut]);
        thread::sleep(HEARTBEAT_TIMEOUT / 2);
        pair.cable.set([Way::Open, Way::Open]);
        thread::sleep(HEARTBEAT_TIMEOUT / 4);
        pair.nobody_is_lost();
    }
    pair.talk();
}

#[test]
fn a_heartbeat_says_how_far_the_loop_of_its_agent_has_come() {
    let pair = Pair::new();
    for turns in 1..=3 {
        pair.loop_counters[1].turn();
        while pair.heartbeat.load(Ordering::SeqCst) < turns {
            pair.nobody_is_lost();
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn every_door_has_a_port_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let trial = TrialFolder::at(folder.path());
    let names = TrialAttempt { trial: TrialId("01JZX".into()), attempt: AttemptId(1) };
    let made = agent_certificates(&names.trial, names.attempt, 1).expect("keys");
    let seat =
        AgentIdentity { host: 0, bind: "127.0.0.1".into(), identity: made[0].clone(), is_shared: false };
    let doors: Vec<_> =
        (0..100).map(|_| PeerListener::bind(&seat, names.clone(), &trial).expect("a port")).collect();
    let ports: std::collections::BTreeSet<_> = doors.iter().map(|listener| &listener.address).collect();
    assert_eq!(ports.len(), 100);
}
