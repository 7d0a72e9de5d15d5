//! One trial on many hosts in simulated time. Every second has a fault: hosts die, freeze, are cut off and
//! come back, and the controller crashes or is cut off. The promises are checked after every event.
//!
//! The longer test takes its number of hosts from `DTRAIN_FLEET=1000` and prints the machine's cost.

mod crew;
mod faults;

use super::{Fault, Reached, World};
use crate::machine::{Phase, Promise, TrialInput};
use dtrain_protocol::{AttemptId, Failure, StopReason};
use std::time::{Duration, Instant};

/// Milliseconds of simulated time in one tick.
const BEAT: u64 = 50;

/// Milliseconds of silence after which a host counts as lost, and after which followers without a leader end.
const SILENCE: u64 = 2_000;

/// Maximum number of messages that the controller reads in one tick.
const READ: usize = 4_096;

/// State of a simulated host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Health {
    Up,
    /// The host's processes are gone; it is up again at this time.
    Dead(u64),
    /// The network does not reach the host until this time.
    Cut(u64),
    /// The host does nothing until this time.
    Frozen(u64),
}

/// State of the ranks of the live attempt.
#[derive(Clone, Debug)]
enum Stage {
    /// The ranks start and load until this time.
    Loading(u64),
    /// The ranks complete their next step at this time.
    Training(u64),
    /// The agent saw a failure or the end and reports it at this time; `None` if it hangs.
    Ending(Option<u64>, Result<StopReason, Failure>),
}

struct Fleet<'a> {
    world: World<'a>,
    /// True time in milliseconds; it does not restart with a new controller.
    clock: u64,
    hosts: Vec<Health>,
    /// Index of the host of each rank of `attempt`.
    members: Vec<usize>,
    attempt: AttemptId,
    stage: Stage,
    /// Time since which a host of the attempt has not been up, if one is not.
    sick_since: Option<u64>,
    /// Time until which the controller can reach no host.
    away_until: u64,
    /// Time until which no host can be reached from anywhere.
    outage_until: u64,
    /// Index of the host whose disk is full, if any.
    full: Option<usize>,
    /// Number of the step after which training is complete.
    last: u64,
    spent: Spent,
}

/// Cost of the trial's state machine in a simulation.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    messages: u64,
    time: Duration,
    /// The largest number of ranks that the state machine stored at once, over all incomplete checkpoints.
    remembered: usize,
}

/// Runs a trial on `hosts` hosts with faults for `seconds` simulated seconds, then without.
fn run(seed: u64, hosts: usize, seconds: u64, fault: Fault, reached: &mut Reached) -> Result<Spent, String> {
    let mut world = World::new(seed, fault, reached);
    world.calm = 10;
    let mut fleet = Fleet::new(world, hosts);
    fleet.world.tell(TrialInput::Resume)?;
    for beat in 1..=seconds * 1000 / BEAT {
        if (beat * BEAT).is_multiple_of(1000) {
            fleet.strike()?;
        }
        fleet.beat()?;
    }
    fleet.world.chaos = false;
    (fleet.away_until, fleet.full) = (0, None);
    fleet.last = fleet.world.ledger.iter().filter_map(super::truth::step_of).max().unwrap_or(0) + 10;
    for _ in 0..180_000 / BEAT {
        if fleet.is_complete() {
            fleet.world.reached.note("end");
            return Ok(fleet.spent);
        }
        fleet.beat()?;
    }
    Err("the ledger alone is enough to go on: the trial never completes once the chaos is over".into())
}

impl<'a> Fleet<'a> {
    fn new(mut world: World<'a>, hosts: usize) -> Self {
        world.crew = u32::try_from(hosts).ok();
        Self {
            world,
            clock: 0,
            hosts: vec![Health::Up; hosts],
            members: Vec::new(),
            attempt: AttemptId(0),
            stage: Stage::Loading(0),
            sick_since: None,
            away_until: 0,
            outage_until: 0,
            full: None,
            last: u64::MAX,
            spent: Spent::default(),
        }
    }
}

impl Fleet<'_> {
    fn is_complete(&self) -> bool {
        matches!(self.world.machine.verdict(), Some(crate::fact::Verdict::Completed(_)))
    }

    /// Advances the simulation by one tick of 50 ms.
    fn beat(&mut self) -> Result<(), String> {
        self.clock += BEAT;
        self.world.now += BEAT;
        self.recover();
        self.work();
        let up = self.hosts.iter().filter(|host| **host == Health::Up).count();
        self.world.crew = u32::try_from(up).ok();
        self.measured(|world| world.tell(TrialInput::Tick))?;
        if self.clock >= self.away_until {
            self.measured(|world| if world.idles() { world.tell(TrialInput::Resume) } else { Ok(()) })?;
            self.attend()?;
        }
        self.board();
        Ok(())
    }

    /// Brings back the hosts whose outage is over.
    fn recover(&mut self) {
        if self.clock < self.outage_until {
            self.hosts.fill(Health::Cut(self.outage_until));
        }
        let (clock, is_peace) = (self.clock, !self.world.chaos && self.clock >= self.outage_until);
        for host in &mut self.hosts {
            if let Health::Dead(until) | Health::Cut(until) | Health::Frozen(until) = *host
                && (clock >= until || is_peace)
            {
                *host = Health::Up;
                self.world.reached.note("host came back");
            }
        }
    }

    /// Lets the controller read the reachable messages of the open attempt.
    fn attend(&mut self) -> Result<(), String> {
        let Some(open) = self.world.machine.open_attempt() else {
            return self.measured(|world| world.deliver());
        };
        let is_ours = open == self.attempt && self.world.owed.is_empty();
        if is_ours && !self.is_up(0) {
            // The spool on the leader's host is out of reach; no other rank outlives the leader.
            if self.world.live.is_some() {
                return Ok(());
            }
            self.world.reached.note("spool out of reach");
            return self.measured(|world| world.tell(TrialInput::Gone { attempt: open, lost: None }));
        }
        self.measured(|world| {
            for _ in 0..READ {
                let unread =
                    world.spools.get(&open).map_or(0, |spool| spool.len() - world.read.min(spool.len()));
                let is_over = world.live.as_ref().is_none_or(|live| live.attempt != open);
                if world.machine.open_attempt() != Some(open)
                    || (unread == 0 && !is_over && world.owed.is_empty())
                {
                    break;
                }
                world.deliver()?;
            }
            Ok(())
        })
    }

    /// Runs `work` on the state machine and adds the time it takes to the cost.
    fn measured(&mut self, work: impl FnOnce(&mut World<'_>) -> Result<(), String>) -> Result<(), String> {
        let (read, began) = (self.world.read, Instant::now());
        let done = work(&mut self.world);
        self.spent.time += began.elapsed();
        self.spent.messages += self.world.read.saturating_sub(read) as u64;
        self.spent.remembered = self.spent.remembered.max(self.world.machine.remembered());
        done
    }
}

impl World<'_> {
    /// Returns `true` if the trial waits for the user.
    fn idles(&self) -> bool {
        self.machine.open_attempt().is_none() && !matches!(self.machine.phase, Phase::Waiting(_))
    }
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn no_promise_is_broken_on_many_hosts_with_a_fault_every_second() {
    let hosts = std::env::var("DTRAIN_FLEET").ok().map(|text| text.parse::<usize>().expect("a number"));
    let (seeds, seconds) = if hosts.is_some() { (5, 600) } else { (40, 120) };
    let hosts = hosts.unwrap_or(60);
    let (mut reached, mut spent, begun) = (Reached::default(), Spent::default(), Instant::now());
    for seed in 0..seeds {
        let one = run(seed, hosts, seconds, Fault::None, &mut reached);
        let one = one.unwrap_or_else(|words| panic!("seed {seed} of {hosts} hosts: {words}"));
        spent.messages += one.messages;
        spent.time += one.time;
        spent.remembered = spent.remembered.max(one.remembered);
    }
    let simulated = (seeds * seconds) as f64;
    println!(
        "{hosts} hosts, {simulated} s with a fault every second in {:.1} s: {} messages; machine and truth took {:.2} s, \
         {:.2} % of a core, {:.2} us a message; {} ranks remembered at most; {:?}",
        begun.elapsed().as_secs_f64(),
        spent.messages,
        spent.time.as_secs_f64(),
        100.0 * spent.time.as_secs_f64() / simulated,
        1e6 * spent.time.as_secs_f64() / spent.messages as f64,
        spent.remembered,
        reached.0
    );
    for what in [
        "host died",
        "host cut off",
        "host froze",
        "the leader was hit",
        "a fault healed before it was noticed",
        "rank lost",
        "controller crash",
        "controller away",
        "spool out of reach",
        "hung agent",
        "kill",
        "disk full",
        "checkpoint refused",
        "stale message",
        "repeated message",
        "durable checkpoint",
        "resume",
        "fault while loading",
        "host came back",
    ] {
        assert!(
            reached.0.get(what).is_some_and(|times| *times >= 2),
            "`{what}` is too rare: {:?}",
            reached.0
        );
    }
}

/// Runs a trial on six hosts that trains for a minute, is unreachable for `outage_ms`, and trains on.
fn cut_off(seed: u64, outage_ms: u64) -> Result<(), String> {
    let mut reached = Reached::default();
    let mut fleet = Fleet::new(World::new(seed, Fault::None, &mut reached), 6);
    (fleet.world.chaos, fleet.last) = (false, 1_200);
    fleet.world.tell(TrialInput::Resume)?;
    let until = 60_000 + outage_ms;
    while fleet.clock < until + 600_000 && !fleet.is_complete() {
        if fleet.clock == 60_000 {
            fleet.outage_until = until;
        }
        fleet.beat()?;
        if let Some(verdict) = fleet.world.machine.verdict().filter(|_| !fleet.is_complete()) {
            return Err(format!("after {} s without its hosts: {verdict:?}", (fleet.clock - 60_000) / 1000));
        }
    }
    if fleet.is_complete() { Ok(()) } else { Err("it does not go on after the outage".into()) }
}

#[test]
fn an_outage_of_the_network_of_ten_minutes_ends_no_trial() {
    for seed in 0..20 {
        cut_off(seed, 600_000 + seed * 7_000).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
}

#[test]
fn a_fleet_notices_what_is_broken() {
    for (promise, words) in [
        (Promise::OneLiveAttempt, "at most one live attempt"),
        (Promise::StaleChangesNothing, "a message of an older attempt changes nothing"),
        (Promise::NewestCheckpoint, "an attempt goes on from the newest durable checkpoint"),
        (Promise::RefusedIsForgotten, "an attempt goes on from the newest durable checkpoint"),
    ] {
        let blamed = (0..20)
            .find_map(|seed| run(seed, 20, 60, Fault::Machine(promise), &mut Reached::default()).err());
        let blamed = blamed.unwrap_or_else(|| panic!("no check noticed that this is broken: {words}"));
        assert!(blamed.contains(words), "the fault should be blamed on `{words}`, not on `{blamed}`");
    }
}
