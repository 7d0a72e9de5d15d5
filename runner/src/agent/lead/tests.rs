//! The real leader before many hosts: doors and connections as they are, followers that only answer.
//!
//! `DTRAIN_FLEET=1000` is their number in the longer test.

use super::super::Message;
use super::super::order::{AgentOrder, LinkChoice, OtherHost, Program};
use super::super::peers::cord::{Cord, Heard};
use super::super::peers::door::Door;
use super::super::peers::{Names, PeerAddress, Said, Seat, Told};
use super::{Others, TO_START};
use crate::agent::{agent_identities, files};
use crate::home::TrialFolder;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use dtrain_skip::skip;
use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A figure of this process, in KiB, from `/proc/self/status`.
fn kibi(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("it tells");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Seconds of processor time that this process took.
fn cpu() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = text.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / 100.0
}

/// Answers what the leader asks, until it is told to leave.
fn follower(door: Door) -> Arc<Door> {
    door.open(move |stream| {
        let own: Arc<Mutex<Option<Cord>>> = Arc::default();
        let answering = Arc::clone(&own);
        let mut slot = own.lock().expect("whole");
        let cord = Cord::start::<Told>(stream, move |heard| {
            let mut own = answering.lock().expect("whole");
            match (heard, own.as_ref()) {
                (Heard::Said(Told::Reserve { ranks }), Some(cord)) => {
                    let addresses = (0..ranks).map(|rank| format!("10.0.0.1:{rank}")).collect();
                    cord.tell(&Said::Reserved { addresses });
                }
                (Heard::Said(Told::Leave) | Heard::Lost(_), _) => *own = None,
                (Heard::Said(_), _) => {}
            }
        });
        *slot = Some(cord.expect("a thread"));
    })
}

#[test]
fn a_leader_of_many_hosts_asks_them_all_and_misses_each() {
    let hosts: u32 = std::env::var("DTRAIN_FLEET").map_or(60, |text| text.parse().expect("a number"));
    if let Err(words) = files::suffice(0, 4 * hosts as usize, 0) {
        return skip(words);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trial = TrialFolder::at(folder.path());
    let names = Names { trial: TrialId("01JZX".into()), attempt: AttemptId(1) };
    let made = agent_identities(&names.trial, names.attempt, hosts).expect("keys");
    let seat = |host: u32| {
        let identity = made[host as usize].clone();
        Seat { host, bind: "127.0.0.1".into(), identity, is_shared: false }
    };
    let doors: Vec<_> = (1..hosts)
        .map(|host| follower(Door::bind(&seat(host), names.clone(), &trial).expect("a port")))
        .collect();
    let other = |(door, host): (&Arc<Door>, u32)| OtherHost {
        peer: PeerAddress { host, name: format!("node{host}"), address: door.address.clone() },
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
    };
    let (before, processor, begun) = (kibi("VmRSS:"), cpu(), Instant::now());
    let (sender, inbox) = channel();
    let mut others = Others::meet(&order, &seat(0), &trial, &sender).expect("all are at their doors");
    let (met, meeting) = (begun.elapsed(), cpu() - processor);

    let begun = Instant::now();
    let addresses = others.reserve(&inbox).expect("all answer");
    let asked = begun.elapsed();
    assert_eq!(addresses.len(), hosts as usize - 1);
    assert!(asked < TO_START / 2, "{asked:?}");

    // Beats both ways, and nothing else.
    let (processor, begun) = (cpu(), Instant::now());
    thread::sleep(Duration::from_secs(1));
    let idle = (cpu() - processor) / begun.elapsed().as_secs_f64();
    assert!(inbox.try_recv().is_err(), "nobody is lost");

    // The ranks of hosts are found whatever their number.
    for host in 0..hosts {
        assert_eq!((others.host_of(Rank(host)), others.peer(host).host), (host, host));
    }
    let victims = [1, hosts / 2, hosts - 1];
    let begun = Instant::now();
    for victim in victims {
        others.hosts[victim as usize - 1].agent.tell(&Told::Leave);
        match inbox.recv_timeout(Duration::from_secs(5)) {
            Ok(Message::Follower(host, Heard::Lost(_))) => {
                assert_eq!(host, victim);
                assert_eq!(others.lose(host).map(|lost| lost.ranks.clone()), Some(host..host + 1));
                assert!(others.lose(host).is_none(), "once");
            }
            _ => panic!("host {victim} should be missed"),
        }
    }
    println!(
        "{hosts} hosts met in {met:.2?} ({meeting:.2} s of processor), asked and heard in {asked:.2?}; with their own ends in \
         the same process {:.0} % of a core for beats and {} MiB; three lost hosts noticed in {:.2?}",
        100.0 * idle,
        kibi("VmRSS:").saturating_sub(before) >> 10,
        begun.elapsed()
    );
    others.dismiss();
}
