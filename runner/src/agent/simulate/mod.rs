//! A seeded world that runs the code that ships: the machine of the controller, the leader and the followers of every attempt, on
//! machines that die, freeze and have full, slow or forgetful disks, over a network that delays messages and cuts either direction.
//!
//! Modelled are only what has no decision in it: disks, connections, processes and the training itself. What is promised is held
//! against the whole world after every beat of it.
//!
//! `DTRAIN_SEEDS=20000` is the number of worlds of the longer test, `DTRAIN_FLEET=200` that of machines in the largest one.

mod agents;
mod bugs;
mod controller;
mod disk;
mod fetch;
mod mirror;
mod network;
mod promises;
mod ranks;
mod tests;

use crate::agent::SpoolRecord;
use crate::fact::{Fact, Verdict};
use crate::machine::Input;
use agents::Agent;
use bugs::Bug;
use controller::Controller;
use disk::Disk;
use dtrain_protocol::order::mix;
use dtrain_protocol::{AttemptId, StepId};
use network::{Connection, Node};
use ranks::Training;
use std::collections::{BTreeMap, BTreeSet};

/// Simulated milliseconds between two looks at everything.
const BEAT: u64 = 50;

/// After how long without a message an end of a connection is lost, as in the connections that ship.
const SILENCE: u64 = 2_000;

/// Checkpoints that are kept.
const KEEP: u32 = 2;

/// Steps between two checkpoints.
const SAVE_EVERY: u64 = 4;

/// How a machine is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Health {
    Up,
    /// Its processes are gone; it is up again then.
    Dead(u64),
    /// It stands still until then.
    Frozen(u64),
}

/// A machine of the cluster.
struct Place {
    health: Health,
    disk: Disk,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
struct Setup {
    machines: usize,
    /// Machines of one attempt at most.
    most: usize,
    /// Simulated seconds with faults, before peace.
    seconds: u64,
    /// Mean seconds between two faults.
    every: u64,
    bug: Option<Bug>,
}

/// How often the chaos reached what it is meant to reach.
#[derive(Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

struct World<'a> {
    setup: Setup,
    seed: u64,
    draws: u64,
    now: u64,
    places: Vec<Place>,
    /// By attempt and machine.
    agents: BTreeMap<(AttemptId, usize), Agent>,
    connections: BTreeMap<(AttemptId, usize), Connection>,
    /// Nothing gets from the first to the second until then.
    cuts: BTreeMap<(Node, Node), u64>,
    controller: Controller,
    training: BTreeMap<AttemptId, Training>,
    /// The last step that training is to reach; it is chosen once there is peace.
    last: u64,
    /// Whether faults happen.
    is_chaos: bool,
    /// What the leaders of all attempts committed, whether anybody heard of it or not.
    committed: BTreeSet<(AttemptId, StepId)>,
    /// The first promise that did not hold.
    broken: Option<String>,
    messages: u64,
    reached: &'a mut Reached,
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    messages: u64,
    attempts: u64,
    milliseconds: u64,
}

/// Runs one seed. `Err` says in words which promise did not hold.
fn run(seed: u64, setup: Setup, reached: &mut Reached) -> Result<Spent, String> {
    let mut world = World::new(seed, setup, reached);
    world.user(Input::Resume);
    let chaos = setup.seconds * 1000;
    while world.now < chaos && world.broken.is_none() {
        if world.now.is_multiple_of(1000) && world.draw(setup.every) == 0 {
            world.strike();
        }
        world.beat();
    }
    world.make_peace();
    if seed.is_multiple_of(3) {
        world.stop();
    }
    world.choose_the_last_step();
    let until = world.now + 240_000;
    let mut ended_at = None;
    while world.broken.is_none() {
        world.beat();
        match (world.controller.machine.verdict(), ended_at) {
            (Some(Verdict::Completed(_)), None) => ended_at = Some(world.now),
            (Some(_), Some(at)) if world.now >= at + 15_000 => {
                world.holds_at_the_end();
                break;
            }
            (Some(_), Some(_)) => {}
            // Whatever ended it, the user resumes it.
            (Some(_), None) => world.user(Input::Resume),
            (None, _) => world.resume_what_stands_still(),
        }
        if world.now > until {
            let controller = &world.controller;
            let (open, verdict) = (controller.machine.open(), controller.machine.verdict().cloned());
            let (fact, agents) = (controller.ledger.last().cloned(), world.agents_in_words());
            world.breaks(|| {
                format!(
                    "a trial completes once the faults are over: {open:?} is open, {verdict:?}, last {fact:?}; {agents}"
                )
            });
        }
    }
    match world.broken {
        Some(words) => Err(words),
        None => {
            world.reached.note("end");
            let attempts = world.controller.machine.attempt().0;
            Ok(Spent { messages: world.messages, attempts, milliseconds: world.now })
        }
    }
}

impl<'a> World<'a> {
    fn new(seed: u64, setup: Setup, reached: &'a mut Reached) -> Self {
        let place = || Place { health: Health::Up, disk: Disk::default() };
        Self {
            setup,
            seed,
            draws: 0,
            now: 0,
            places: (0..setup.machines).map(|_| place()).collect(),
            agents: BTreeMap::new(),
            connections: BTreeMap::new(),
            cuts: BTreeMap::new(),
            controller: Controller::new(),
            training: BTreeMap::new(),
            last: u64::MAX,
            is_chaos: true,
            committed: BTreeSet::new(),
            broken: None,
            messages: 0,
            reached,
        }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        mix(self.seed, self.draws) % bound
    }

    fn has(&self, bug: Bug) -> bool {
        self.setup.bug == Some(bug)
    }

    /// A promise does not hold.
    fn breaks(&mut self, words: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(words());
        }
    }

    /// A twentieth of a second passes for everybody.
    fn beat(&mut self) {
        self.now += BEAT;
        self.recover();
        self.deliver();
        self.train();
        self.work();
        self.attend();
        self.holds();
    }

    /// Machines come back whose time has come, and cuts heal.
    fn recover(&mut self) {
        let now = self.now;
        self.cuts.retain(|_, until| now < *until);
        for place in &mut self.places {
            if let Health::Dead(until) | Health::Frozen(until) = place.health
                && now >= until
            {
                place.health = Health::Up;
            }
        }
    }

    fn is_up(&self, machine: usize) -> bool {
        self.places[machine].health == Health::Up
    }

    /// A fault.
    fn strike(&mut self) {
        let machine = self.draw(self.setup.machines as u64) as usize;
        let until = self.now + 500 + self.draw(30_000);
        match self.draw(12) {
            0 | 1 => self.kill_machine(machine, until),
            2 => {
                self.reached.note("machine froze");
                self.freeze(machine, until);
            }
            3 => {
                self.reached.note("machine cut off");
                for other in self.nodes() {
                    self.cuts.insert((Node::Machine(machine), other), until);
                    self.cuts.insert((other, Node::Machine(machine)), until);
                }
            }
            4 => {
                self.reached.note("cut in one direction");
                let nodes = self.nodes();
                let other = nodes[self.draw(nodes.len() as u64) as usize];
                self.cuts.insert((Node::Machine(machine), other), until);
            }
            5 => {
                self.reached.note("controller cut off");
                for other in self.nodes() {
                    self.cuts.insert((Node::Controller, other), until);
                    self.cuts.insert((other, Node::Controller), until);
                }
            }
            6 => {
                self.reached.note("disk full");
                self.places[machine].disk.full_until = until;
            }
            7 => {
                self.reached.note("disk slow");
                self.places[machine].disk.slow_until = until;
            }
            8 => self.kill_a_rank(),
            9 => self.kill_an_agent(),
            10 => {
                self.reached.note("controller crash");
                self.crash();
            }
            _ => {
                self.reached.note("controller away");
                self.controller.away_until = until;
            }
        }
    }

    fn nodes(&self) -> Vec<Node> {
        let machines = (0..self.setup.machines).map(Node::Machine);
        machines.chain([Node::Controller]).collect()
    }

    /// Power fails: processes are gone, and what was not flushed is lost.
    fn kill_machine(&mut self, machine: usize, until: u64) {
        self.reached.note("machine died");
        self.places[machine].health = Health::Dead(until);
        self.places[machine].disk.lose_unflushed();
        self.agents.retain(|(_, on), _| *on != machine);
    }

    /// The user stops the trial, which does so within a minute.
    fn stop(&mut self) {
        for _ in 0..60_000 / BEAT {
            if self.controller.machine.open().is_some() {
                break;
            }
            self.resume_what_stands_still();
            self.beat();
        }
        self.user(Input::Stop);
        for _ in 0..60_000 / BEAT {
            if self.controller.machine.verdict().is_some() {
                return;
            }
            self.beat();
        }
        self.breaks(|| "a trial stops when it is asked to".to_owned());
    }

    /// Nothing fails any more.
    fn make_peace(&mut self) {
        self.is_chaos = false;
        self.cuts.clear();
        self.controller.away_until = 0;
        for place in &mut self.places {
            place.health = Health::Up;
            (place.disk.full_until, place.disk.slow_until) = (0, 0);
        }
    }

    /// From now on training has an end.
    fn choose_the_last_step(&mut self) {
        self.last = self.training.values().map(|training| training.step).max().unwrap_or(0) + 10;
    }
}

/// Steps of a durable checkpoint.
fn durable(fact: &Fact) -> Option<(AttemptId, StepId)> {
    match fact {
        Fact::CheckpointDurable { attempt, step, .. } => Some((*attempt, *step)),
        _ => None,
    }
}

/// What the machine of the controller is told of a record.
fn input_of(record: SpoolRecord) -> Option<Input> {
    Some(match record {
        SpoolRecord::Began { attempt, ranks } => Input::Began { attempt, ranks },
        SpoolRecord::Event(stamped) => Input::Event(stamped),
        SpoolRecord::Committed { attempt, step, folder } => Input::Committed { attempt, step, folder },
        SpoolRecord::CommitFailed { attempt, step, .. } => Input::CommitFailed { attempt, step },
        SpoolRecord::Over { attempt, ended } => Input::Over { attempt, ended },
        SpoolRecord::Unreadable { .. } => return None,
    })
}
