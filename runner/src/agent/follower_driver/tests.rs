//! Tests of the orders that a follower carries out and those that it refuses.

use super::super::peers::{Greeting, connect};
use super::*;
use crate::agent::fixtures;
use crate::certificates::agent_certificates;
use crate::control_protocol::{AgentIdentity, PeerAddress, Program};
use dtrain_protocol::tls::Tls;
use dtrain_protocol::{Assignment, AttemptId, Rank, TrialId};
use dtrain_recipes::{ForeignCommand, Framework, Model};
use serde_json::{Value, json};
use std::path::Path;
use std::thread;
use std::time::Duration;

fn names() -> TrialAttempt {
    TrialAttempt { trial: TrialId("01JZX0000000000000000000AB".into()), attempt: AttemptId(1) }
}

/// Returns the assignment of rank 1, which runs `script` in `folder`.
fn assignment(folder: &Path, script: &str) -> Assignment {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let env = std::collections::BTreeMap::new();
    let command = ForeignCommand { argv, env, framework: Framework::Pytorch, progress: Vec::new() };
    let TrialAttempt { trial, attempt } = names();
    let mut assignment = fixtures::assignment(trial, attempt, Model::Command(command));
    (assignment.rank, assignment.placement.host) = (Rank(1), 1);
    assignment.data_root = folder.into();
    assignment
}

/// A host whose controller ordered one rank, and the connection of its leader.
struct Host {
    root: tempfile::TempDir,
    leader: PeerLink,
    heard: Receiver<LinkEvent<HostMessage>>,
    ended: thread::JoinHandle<Result<(), String>>,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let identities = agent_certificates(&names().trial, names().attempt, 2).expect("keys");
        let identity = identities[1].clone();
        let order = FollowerOrder {
            trial: names().trial,
            attempt: names().attempt,
            folder: root.path().join("trial"),
            worker: Program::new("worker", []),
            seat: AgentIdentity { host: 1, bind: "127.0.0.1".into(), identity, is_shared: false },
            assignments: vec![assignment(root.path(), "echo ordered > ran")],
            notice: None,
        };
        let (to, listener) = channel();
        let ended = thread::spawn(move || {
            let (sender, inbox) = channel();
            let mut follower = FollowerDriver::begin(&order, &sender)?;
            drop(to.send(follower.address.clone()));
            follower.serve(&inbox)
        });
        let peer =
            PeerAddress { host: 1, name: "node1".into(), address: listener.recv().expect("a listener") };
        let tls = Tls::new(&identities[0]).expect("an identity");
        let stream = connect(&tls, &names(), &peer, &Greeting::Lead).expect("the leader is let in");
        let (to, heard) = channel();
        let loop_counters = Arc::default();
        let leader =
            PeerLink::start(stream, &loop_counters, move |heard| drop(to.send(heard))).expect("a thread");
        Self { root, leader, heard, ended }
    }

    /// Checks that the connection has ended.
    fn is_refused(&self) {
        let lost = |heard: LinkEvent<HostMessage>| matches!(heard, LinkEvent::Lost(_));
        assert!(self.heard.iter().any(lost), "the follower ends the connection");
    }

    /// Returns the names of the files that ranks wrote.
    fn written(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.path()).expect("a folder").flatten();
        let files = entries.filter(|entry| entry.path().is_file());
        files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn start() -> Value {
    json!({ "start": { "rendezvous": { "address": "127.0.0.1", "port": 1, "hosts": 2, "peers": ["a:1", "b:2"] } } })
}

#[test]
fn the_leader_starts_what_the_controller_ordered() {
    let host = Host::new();
    host.leader.send(&start());
    let ran = host.root.path().join("ran");
    while !ran.exists() {
        assert!(!host.ended.is_finished(), "{:?}", host.ended.join());
        thread::sleep(Duration::from_millis(10));
    }
    host.leader.send(&json!("dismiss"));
    assert_eq!(host.ended.join().expect("no panic"), Ok(()));
}

#[test]
fn a_leader_that_orders_another_program_is_refused() {
    let host = Host::new();
    let other = assignment(host.root.path(), "echo stolen > stolen");
    let mut order = start();
    order["start"]["assignments"] = json!([other]);
    host.leader.send(&order);
    host.is_refused();
    assert_eq!(host.written(), Vec::<String>::new());
    let reason = host.ended.join().expect("no panic").expect_err("it was refused");
    assert!(reason.contains("unknown field `assignments`"), "{reason}");
}

#[test]
fn a_leader_that_speaks_for_ranks_of_others_is_refused() {
    for order in [json!({ "kill": { "rank": 0 } }), json!({ "order": { "order": "stop" } })] {
        let host = Host::new();
        host.leader.send(&order);
        host.is_refused();
        let reason = host.ended.join().expect("no panic").expect_err("it was refused");
        assert!(reason.contains("not started here"), "{reason}");
    }
}
