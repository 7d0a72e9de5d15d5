//! A seeded world that runs the code that ships: the machine of the controller, the leader and the followers of every attempt, on
//! machines that die, freeze and have full, slow or forgetful disks, over a network that delays messages, repeats requests of the
//! controller and cuts either direction. A connection keeps its order, as TCP does; messages of different ones overtake each other.
//!
//! Modelled are only what has no decision in it: disks, connections, processes and the training itself. What is promised is held
//! against the whole world; `promises` names it.
//!
//! `DTRAIN_SEEDS=20000` is the number of worlds of the longer test, `DTRAIN_FLEET=200` that of machines in the largest one.

mod agents;
mod attend;
mod bugs;
mod controller;
mod cost;
mod disk;
mod fetch;
mod grid;
mod mirror;
mod network;
mod promises;
mod ranks;
mod tests;

use crate::fact::Verdict;
use crate::machine::TrialInput;
use agents::Agent;
use bugs::Bug;
use controller::{Controller, Late};
use cost::ResourceUsage;
use disk::CrashableDisk;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, StepId};
use grid::Grid;
use network::{Endpoint, FollowerConnection};
use ranks::AttemptTraining;
use std::collections::{BTreeMap, BTreeSet};

/// After how long without a message an end of a connection is lost, as in the connections that ship.
const SILENCE: u64 = 2_000;

/// Checkpoints that are kept.
const KEEP: u32 = 2;

/// The longest that time jumps while nothing is going on but training, in milliseconds.
const LONGEST_BEAT: u64 = 5_000;

/// How a machine is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MachineHealth {
    Up,
    /// Its processes are gone; it is up again then.
    Dead(u64),
    /// It stands still until then.
    Frozen(u64),
}

/// A machine of the cluster.
struct MachineState {
    health: MachineHealth,
    disk: CrashableDisk,
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
    /// Milliseconds between two looks at everything, while anything but training is going on.
    beat: u64,
    /// Milliseconds of a step.
    step: u64,
    /// Steps between two checkpoints.
    save_every: u64,
    /// After how many milliseconds the controller gives up a host that cannot be asked.
    lost_after: u64,
    /// One in how many effects of the controller's machine kills the controller.
    crash: u64,
    bug: Option<Bug>,
}

/// How often the chaos reached what it is meant to reach.
#[derive(Default)]
struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

struct World<'a> {
    setup: Setup,
    seed: u64,
    draws: u64,
    now: u64,
    places: Vec<MachineState>,
    /// By attempt and machine.
    agents: Grid<Agent>,
    /// By attempt and machine of the follower.
    connections: Grid<FollowerConnection>,
    /// Nothing gets from the first to the second until then.
    cuts: BTreeMap<(Endpoint, Endpoint), u64>,
    /// Nothing gets from or to it until then.
    cut_off: BTreeMap<Endpoint, u64>,
    /// What is sent to it takes long until then.
    slow: BTreeMap<Endpoint, u64>,
    /// Requests of the controller that are still on their way, or come a second time.
    late: Vec<Late>,
    controller: Controller,
    training: BTreeMap<AttemptId, AttemptTraining>,
    /// The last step that training is to reach; it is chosen once there is peace.
    last: u64,
    strike_at: u64,
    /// When the promises are held against the world again, and how the disks were then.
    held: promises::PromiseTracker,
    /// Whether faults happen.
    is_chaos: bool,
    /// What the leaders of all attempts committed, whether anybody heard of it or not.
    committed: BTreeSet<(AttemptId, StepId)>,
    /// The first promise that did not hold.
    broken: Option<String>,
    messages: u64,
    /// What it would cost for real; `None` where nobody asked.
    cost: Option<ResourceUsage>,
    reached: &'a mut Coverage,
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
struct RunCost {
    messages: u64,
    attempts: u64,
    milliseconds: u64,
}

/// Runs one seed. `Err` says in words which promise did not hold.
fn run(seed: u64, setup: Setup, reached: &mut Coverage) -> Result<RunCost, String> {
    let mut world = World::new(seed, setup, reached);
    world.user(TrialInput::Resume);
    let chaos = setup.seconds * 1000;
    while world.now < chaos && world.broken.is_none() {
        if world.now >= world.strike_at {
            world.strike_at = world.now + 1000 * (1 + world.draw(2 * setup.every - 1));
            world.strike();
        }
        world.beat();
    }
    world.make_peace();
    if seed.is_multiple_of(3) {
        world.stop();
    }
    world.choose_the_last_step();
    // The pauses after failures of machines last up to a minute.
    let until = world.now + 600_000;
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
            (Some(_), None) => world.user(TrialInput::Resume),
            (None, _) => world.resume_what_stands_still(),
        }
        if world.now > until {
            let controller = &world.controller;
            let (open, verdict) = (controller.machine.open_attempt(), controller.machine.verdict().cloned());
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
            Ok(RunCost { messages: world.messages, attempts, milliseconds: world.now })
        }
    }
}

impl<'a> World<'a> {
    fn new(seed: u64, setup: Setup, reached: &'a mut Coverage) -> Self {
        let place = || MachineState { health: MachineHealth::Up, disk: CrashableDisk::default() };
        Self {
            setup,
            seed,
            draws: 0,
            now: 0,
            places: (0..setup.machines).map(|_| place()).collect(),
            agents: Grid::new(),
            connections: Grid::new(),
            cuts: BTreeMap::new(),
            cut_off: BTreeMap::new(),
            slow: BTreeMap::new(),
            late: Vec::new(),
            controller: Controller::new(),
            training: BTreeMap::new(),
            last: u64::MAX,
            strike_at: 1000 * setup.every,
            held: promises::PromiseTracker::default(),
            is_chaos: true,
            committed: BTreeSet::new(),
            broken: None,
            messages: 0,
            cost: None,
            reached,
        }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        splitmix64(self.seed, self.draws) % bound
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

    /// Time passes for everybody: a beat, or until the next step where nothing but training is going on.
    fn beat(&mut self) {
        let quiet = self.quiet_until().map_or(0, |until| until.saturating_sub(self.now));
        self.now += quiet.clamp(self.setup.beat, LONGEST_BEAT.max(self.setup.beat));
        self.recover();
        self.arrive_late();
        self.deliver();
        self.train();
        self.work();
        self.attend();
        self.holds();
    }

    /// Until when nothing happens but heartbeats; `None` while anything else may.
    fn quiet_until(&self) -> Option<u64> {
        let is_calm = self.cuts.is_empty() && self.cut_off.is_empty() && self.late.is_empty();
        let is_well = |place: &MachineState| {
            place.health == MachineHealth::Up && self.now >= place.disk.full_until.max(place.disk.slow_until)
        };
        let mut training = self.training.iter().filter(|(attempt, _)| self.agents.has_attempt(**attempt));
        let (only, None) = (training.next()?, training.next()) else { return None };
        let is_quiet = is_calm
            && self.is_chaos
            && only.1.is_ready
            && self.controller.is_idle(self.now)
            && self.places.iter().all(is_well)
            && self.agents.iter().all(|(_, agent)| agent.is_idle())
            && self.connections.iter().all(|(_, connection)| connection.is_idle());
        is_quiet.then_some(only.1.next_at.min(self.strike_at))
    }

    /// Machines come back whose time has come, and cuts heal.
    fn recover(&mut self) {
        let now = self.now;
        self.cuts.retain(|_, until| now < *until);
        self.cut_off.retain(|_, until| now < *until);
        self.slow.retain(|_, until| now < *until);
        for place in &mut self.places {
            if let MachineHealth::Dead(until) | MachineHealth::Frozen(until) = place.health
                && now >= until
            {
                place.health = MachineHealth::Up;
            }
        }
    }

    fn is_up(&self, machine: usize) -> bool {
        self.places[machine].health == MachineHealth::Up
    }

    /// A fault.
    fn strike(&mut self) {
        let machine = self.draw(self.setup.machines as u64) as usize;
        // Now and then it takes longer than anybody waits.
        let until =
            self.now + 500 + self.draw(30_000) + self.setup.lost_after * u64::from(self.draw(12) == 0);
        match self.draw(14) {
            0 | 1 => self.kill_machine(machine, until),
            2 => {
                self.reached.note("machine froze");
                self.freeze(machine, until);
            }
            3 => {
                self.reached.note("machine cut off");
                self.cut_off.insert(Endpoint::Machine(machine), until);
            }
            4 => {
                self.reached.note("cut in one direction");
                let other = match self.draw(self.setup.machines as u64 + 1) as usize {
                    other if other < self.setup.machines => Endpoint::Machine(other),
                    _ => Endpoint::Controller,
                };
                self.cuts.insert((Endpoint::Machine(machine), other), until);
            }
            5 => {
                self.reached.note("controller cut off");
                self.cut_off.insert(Endpoint::Controller, until);
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
            11 => {
                self.reached.note("controller away");
                self.controller.away_until = until;
            }
            12 => {
                self.reached.note("slow link");
                self.slow.insert(Endpoint::Machine(machine), until);
            }
            _ => {
                self.reached.note("the leader is cut off from the controller");
                if let Some(leader) =
                    self.controller.machine.open_attempt().and_then(|open| self.leader_of(open))
                {
                    self.cuts.insert((Endpoint::Machine(leader), Endpoint::Controller), until);
                }
            }
        }
    }

    /// Power fails: processes are gone, and what was not flushed is lost.
    fn kill_machine(&mut self, machine: usize, until: u64) {
        self.reached.note("machine died");
        self.places[machine].health = MachineHealth::Dead(until);
        self.places[machine].disk.lose_unflushed();
        self.agents.retain(|(_, on)| on != machine);
    }

    /// The user stops the trial, which does so within a minute.
    fn stop(&mut self) {
        for _ in 0..60_000 / self.setup.beat {
            if self.controller.machine.open_attempt().is_some() {
                break;
            }
            self.resume_what_stands_still();
            self.beat();
        }
        self.user(TrialInput::Stop);
        for _ in 0..60_000 / self.setup.beat {
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
        self.cut_off.clear();
        self.slow.clear();
        self.controller.away_until = 0;
        for place in &mut self.places {
            place.health = MachineHealth::Up;
            (place.disk.full_until, place.disk.slow_until) = (0, 0);
        }
    }

    /// From now on training has an end.
    fn choose_the_last_step(&mut self) {
        self.last = self.training.values().map(|training| training.step).max().unwrap_or(0) + 10;
    }
}
