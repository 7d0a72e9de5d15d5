//! The processes that serve controllers on hosts: when they end, and what they leave.

use crate::launches::order;
use crate::world::{World, wait};
use dtrain_protocol::{AttemptId, frame};
use dtrain_runner::control_protocol::AgentRequest;
use dtrain_runner::launch::{AgentContact, AvailableHosts, ConnectedAgent, Launcher};
use std::fs;
use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

/// Silence after which relays end here.
const IDLE: Duration = Duration::from_secs(1);

const ATTEMPT: AttemptId = AttemptId(1);

/// Launches an attempt on one host, which trains for a while.
fn launched(idle_timeout: Duration) -> (World, Box<dyn Launcher>) {
    let mut world = World::new().on_hosts(1).paced(0.5);
    world.relay_idle_timeout = idle_timeout;
    world.home.trial(&world.trial).create().expect("room on disk");
    let mut launcher = world.launcher(1);
    assert_eq!(AvailableHosts::of(launcher.as_mut()).hosts, 1);
    launcher.launch(&order(&world, ATTEMPT, 1)).expect("it starts");
    (world, launcher)
}

fn connected(launcher: &mut dyn Launcher) -> ConnectedAgent {
    match launcher.reach(ATTEMPT, 0) {
        AgentContact::Connected(agent) => agent,
        _ => panic!("the agent does not answer"),
    }
}

/// The stream to the relay stays open, so that no end of file reaches it.
pub(crate) fn a_relay_ends_when_its_controller_is_silent() {
    let mut world = World::new().on_hosts(1);
    world.relay_idle_timeout = IDLE;
    let mut host = world.remote(0);
    host.facts().expect("it answers");
    let first = world.relays(0);
    assert_eq!(first.len(), 1, "it waits for the next request");
    wait("the end of the relay", || world.relays(0).is_empty());
    host.facts().expect("another relay answers");
    assert_ne!(world.relays(0), first);
    world.assert_nothing_lives();
    drop(host);
}

pub(crate) fn an_agent_outlives_the_relay_of_a_silent_controller() {
    let (world, mut launcher) = launched(IDLE);
    let mut silent = connected(launcher.as_mut());
    thread::spawn(move || drop(silent.spool.read_to_end(&mut Vec::new())));
    let _open = silent.requests;
    wait("the end of all relays", || world.relays(0).is_empty());
    let agent = world.card_of(0).expect("it was launched").agent;
    assert!(agent.is_alive(), "it trains without a controller");

    let ConnectedAgent { mut spool, mut requests, .. } = connected(launcher.as_mut());
    let relay = world.relays(0);
    assert_eq!(relay.len(), 1);
    thread::spawn(move || drop(spool.read_to_end(&mut Vec::new())));
    let since = Instant::now();
    while since.elapsed() < 3 * IDLE {
        frame::write(&mut requests, &AgentRequest::Heartbeat).expect("the relay is there");
        thread::sleep(IDLE / 10);
    }
    assert_eq!(world.relays(0), relay, "it hears of its controller");
    assert!(agent.is_alive());
    assert!(launcher.kill(ATTEMPT));
    world.assert_nothing_lives();
}

pub(crate) fn a_relay_reaps_what_it_started() {
    let (world, mut launcher) = launched(Duration::from_secs(60));
    let relay = world.relays(0);
    assert_eq!(relay.len(), 1, "one connection is enough for a launch");
    assert_eq!(zombies(relay[0]), [0; 0]);
    assert!(launcher.kill(ATTEMPT));
    assert_eq!(world.relays(0), relay);
    assert_eq!(zombies(relay[0]), [0; 0]);
    drop(launcher);
    world.assert_nothing_lives();
}

/// Returns the child processes of `parent` that have ended and were not reaped.
fn zombies(parent: u32) -> Vec<u32> {
    let of = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let is_zombie = fields.next()? == "Z" && fields.next()?.parse() == Ok(parent);
        is_zombie.then_some(id)
    };
    fs::read_dir("/proc").expect("Linux").flatten().filter_map(of).collect()
}
