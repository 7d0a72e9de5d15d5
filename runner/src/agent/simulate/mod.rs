//! A seeded simulation of the real code: the controller's state machine, and the leader and followers of
//! every attempt. Machines die, freeze and have full, slow or forgetful disks; the network delays messages,
//! repeats the controller's requests and cuts either direction. A connection keeps its order, as TCP does;
//! different ones do not.
//!
//! Only parts without decisions are modelled: disks, connections, processes and the training. `promises`
//! lists the promises, which are checked against the whole world.
//!
//! The longer test runs `DTRAIN_SEEDS=20000` worlds; the largest world has `DTRAIN_FLEET=200` machines.

mod agents;
mod attend;
mod bugs;
mod controller;
mod cost;
mod cost_table;
mod disk;
mod faults;
mod fencing;
mod fetch;
mod grid;
mod mirror;
mod network;
mod promises;
mod ranks;
mod reports;
mod strikes;
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
use reports::Reporting;
use std::collections::{BTreeMap, BTreeSet};

/// Silence in milliseconds after which a connection counts as lost, as in the real code.
const SILENCE: u64 = 2_000;

/// Number of checkpoints to keep.
const KEEP: u32 = 2;

/// Maximum length of one tick in milliseconds, when only training is going on.
const LONGEST_BEAT: u64 = 5_000;

/// State of a simulated machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MachineHealth {
    Up,
    /// The machine's processes are gone; it is up again at this time.
    Dead(u64),
    /// The machine does nothing until this time.
    Frozen(u64),
}

/// A machine of the simulated cluster.
struct MachineState {
    health: MachineHealth,
    disk: CrashableDisk,
}

/// Settings of a simulated run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    machines: usize,
    /// Maximum number of machines in one attempt.
    most: usize,
    /// Number of simulated seconds with faults, before the faults stop.
    seconds: u64,
    /// Mean seconds between two faults.
    every: u64,
    /// Milliseconds of a tick while more than training is going on.
    beat: u64,
    /// Milliseconds of a training step.
    step: u64,
    /// Number of steps between two checkpoints.
    save_every: u64,
    /// Number of steps between two validations.
    validate_every: u64,
    reporting: Reporting,
    /// Milliseconds after which the controller gives up an unreachable host.
    lost_after: u64,
    /// Number of effects, at one of which on average the controller crashes.
    crash: u64,
    bug: Option<Bug>,
}

/// Number of times that each kind of event happened during a simulated run.
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
    /// Agents by attempt and machine.
    agents: Grid<Agent>,
    /// Connections by attempt and machine of the follower.
    connections: Grid<FollowerConnection>,
    /// Directions that are cut, from the first to the second endpoint, each until a time.
    cuts: BTreeMap<(Endpoint, Endpoint), u64>,
    /// Endpoints that are cut off, each until a time.
    cut_off: BTreeMap<Endpoint, u64>,
    /// Endpoints with slow delivery, each until a time.
    slow: BTreeMap<Endpoint, u64>,
    /// Delayed or duplicated requests of the controller.
    late: Vec<Late>,
    controller: Controller,
    training: BTreeMap<AttemptId, AttemptTraining>,
    /// The last step of the training; set after the faults have stopped.
    last: u64,
    strike_at: u64,
    /// Faults of the machines, for the check of strikes.
    faults: strikes::FaultLog,
    /// State of the checks of all promises.
    held: promises::PromiseTracker,
    /// True while faults happen.
    is_chaos: bool,
    /// Checkpoints committed by the leaders of all attempts, reported to a controller or not.
    committed: BTreeSet<(AttemptId, StepId)>,
    /// Description of the first promise that was broken, if any.
    broken: Option<String>,
    messages: u64,
    /// Real cost of the run; `None` if it is not measured.
    cost: Option<ResourceUsage>,
    reached: &'a mut Coverage,
}

/// Cost of a simulated run.
#[derive(Clone, Copy, Debug, Default)]
struct RunCost {
    messages: u64,
    attempts: u64,
    milliseconds: u64,
}

/// Simulates one seed. `Err` names the promise that was broken.
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
    if seed % 5 == 1 {
        world.end_amid_faults();
    }
    world.make_peace();
    if seed.is_multiple_of(3) {
        world.stop();
    }
    let steps = world.choose_the_last_step();
    // The pause after machine failures is up to a minute.
    let until = world.now + 600_000 + steps * setup.step;
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
            // Whatever ended the trial, the user resumes it.
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
            faults: strikes::FaultLog::default(),
            held: promises::PromiseTracker::default(),
            is_chaos: true,
            committed: BTreeSet::new(),
            broken: None,
            messages: 0,
            cost: None,
            reached,
        }
    }

    /// Returns a random number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        splitmix64(self.seed, self.draws) % bound
    }

    fn has(&self, bug: Bug) -> bool {
        self.setup.bug == Some(bug)
    }

    /// Records a broken promise, unless one was recorded before.
    fn breaks(&mut self, words: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(words());
        }
    }

    /// Advances the simulation by one tick, or to the next step if only training is going on.
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

    /// Returns the time until which only heartbeats happen; `None` if anything else may.
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

    /// Brings machines back whose outage is over, and heals cut connections.
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

    /// Stops the trial as a user, and checks that it ends within a minute.
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

    /// Sets the last step of the training, and returns the number of steps from the newest attempt to it. One that was
    /// given up may have trained for long.
    fn choose_the_last_step(&mut self) -> u64 {
        let newest = self.training.values().next_back().map_or(0, |training| training.step);
        self.last = self.training.values().map(|training| training.step).max().unwrap_or(0) + 10;
        self.last - newest
    }
}
