//! A seeded simulation of stale messages, lost ranks, failed launches, lost agents and controllers that crash
//! between any two effects. It checks every effect of the machine against the true state.

mod budgets;
mod controller;
mod fleet;
mod ranks;
mod truth;

use super::{Millis, Phase, Promise, TrialEffect, TrialInput, TrialMachine};
use crate::fact::{Fact, Verdict};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{AttemptId, Failure, Rank, ResumePoint, StepId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// Number of the step after which training is complete.
const LAST: u64 = 12;

/// A fault that is injected on purpose, to prove that the simulation notices it.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Machine(Promise),
    /// The newest fact is missing from the ledger after a crash.
    LedgerForgets,
    /// A launch is carried out although its attempt was reported gone.
    LateLaunch,
}

/// Number of times that each kind of event happened in a simulation.
#[derive(Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// The living processes of one attempt.
struct Live {
    attempt: AttemptId,
    ranks: u32,
    step: u64,
    from: Option<ResumePoint>,
    failed: Option<Failure>,
    asked_to_stop: bool,
}

struct World<'a> {
    seed: u64,
    draws: u64,
    now: u64,
    fault: Fault,
    machine: TrialMachine,
    ledger: Vec<Fact>,
    live: Option<Live>,
    /// Messages that each attempt spooled; those of the open one are read from the start after a crash.
    spools: BTreeMap<AttemptId, Vec<TrialInput>>,
    read: usize,
    /// Answers that the driver has yet to give to the state machine.
    owed: VecDeque<TrialInput>,
    saved: BTreeSet<(AttemptId, StepId, Rank)>,
    committed: BTreeSet<(AttemptId, StepId)>,
    /// Checkpoints that a faulty agent claimed to have committed; its ranks never save them completely.
    claimed: BTreeSet<(AttemptId, StepId)>,
    finished: BTreeSet<AttemptId>,
    /// Checkpoints that the ledger counts, oldest first.
    counted: Vec<ResumePoint>,
    /// Paths of the folders of refused checkpoints.
    refused: BTreeSet<PathBuf>,
    /// The newest checkpoint that the last search of the disks found.
    shown: Option<PathBuf>,
    /// Attempts that were reported gone: none of their processes will live again.
    buried: BTreeSet<AttemptId>,
    /// A launch whose order is still in transit.
    late: Option<Live>,
    chaos: bool,
    /// Factor by which chance events are rarer than in a small world.
    calm: u64,
    /// Number of ranks of the next launch; `None` to draw it at random.
    crew: Option<u32>,
    reached: &'a mut Reached,
}

/// Simulates one seed. `Err` names the promise that was broken.
fn run(seed: u64, fault: Fault, reached: &mut Reached) -> Result<(), String> {
    let mut world = World::new(seed, fault, reached);
    world.tell(TrialInput::Resume)?;
    for _ in 0..150 {
        world.act()?;
    }
    world.chaos = false;
    for _ in 0..5_000 {
        if world.machine.verdict().is_some() {
            world.reached.note("end");
            return Ok(());
        }
        world.act()?;
    }
    Err("the ledger alone is enough to go on: the trial never ends once the chaos is over".into())
}

impl<'a> World<'a> {
    /// Creates a world before its first launch.
    fn new(seed: u64, fault: Fault, reached: &'a mut Reached) -> Self {
        let (mut machine, _) = TrialMachine::replay(&[]);
        if let Fault::Machine(promise) = fault {
            machine.broken = Some(promise);
        }
        Self {
            seed,
            draws: 0,
            now: 0,
            fault,
            machine,
            ledger: Vec::new(),
            live: None,
            spools: BTreeMap::new(),
            read: 0,
            owed: VecDeque::new(),
            saved: BTreeSet::new(),
            committed: BTreeSet::new(),
            claimed: BTreeSet::new(),
            finished: BTreeSet::new(),
            counted: Vec::new(),
            refused: BTreeSet::new(),
            shown: None,
            buried: BTreeSet::new(),
            late: None,
            chaos: true,
            calm: 1,
            crew: None,
            reached,
        }
    }
}

impl World<'_> {
    /// Returns a random number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        splitmix64(self.seed, self.draws) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.chaos && self.draw(100 * self.calm) < percent
    }

    /// Performs one random action.
    fn act(&mut self) -> Result<(), String> {
        match self.draw(16) {
            0..5 => self.train(),
            5 if self.chance(35) => self.fail(),
            6 if self.chance(30) => {
                self.reached.note("agent lost");
                self.live = None;
            }
            7 if self.chance(50) => return self.stale(),
            8 if self.chance(8) => return self.tell(TrialInput::Stop),
            8 => return self.arrive(),
            9 if self.chance(40) => return self.repeat(),
            10 => {
                self.now += self.draw(30_000);
                return self.tell(TrialInput::Tick);
            }
            11 if self.chance(15) => {
                let effects = self.replay();
                return self.carry_out(effects);
            }
            13 if self.chance(50) => self.lose_record(),
            12 if self.machine.open_attempt().is_none() && !self.waits_for_a_launch() => {
                return self.tell(TrialInput::Resume);
            }
            _ => return self.deliver(),
        }
        Ok(())
    }

    /// Returns `true` if the state machine launches the next attempt by itself; the user resumes only a trial
    /// that is idle.
    fn waits_for_a_launch(&mut self) -> bool {
        matches!(self.machine.phase, Phase::Waiting(_)) && !self.chance(10)
    }
}

#[test]
fn all_promises_hold_in_twenty_thousand_worlds() {
    let mut reached = Reached::default();
    for seed in 0..20_000 {
        run(seed, Fault::None, &mut reached).unwrap_or_else(|words| panic!("seed {seed}: {words}"));
    }
    for what in [
        "controller crash",
        "failed launch",
        "no data on one host",
        "checkpoint refused at launch",
        "checkpoint refused",
        "resume",
        "rank lost",
        "agent lost",
        "hung agent",
        "kill",
        "found gone",
        "record lost",
        "checkpoint found",
        "late launch",
        "late launch refused",
        "stale message",
        "repeated message",
        "false claim",
        "asked to stop",
        "durable checkpoint",
        "resumed",
        "completed",
        "stopped",
        "out of memory",
        "diverged",
        "failed",
    ] {
        let times = reached.0.get(what).copied().unwrap_or(0);
        // Few trials fail: machine failures have a budget of a day.
        let least = if what == "failed" { 200 } else { 500 };
        assert!(times >= least, "the chaos reached `{what}` {times} times only: {:?}", reached.0);
    }
}

/// Asserts that the simulation notices a fault and blames it on the promise in `words`.
fn is_caught(fault: Fault, words: &str) {
    let blamed = (0..5_000).find_map(|seed| run(seed, fault, &mut Reached::default()).err());
    let blamed = blamed.unwrap_or_else(|| panic!("no check noticed that this is broken: {words}"));
    assert!(blamed.contains(words), "the fault should be blamed on `{words}`, not on `{blamed}`");
}

#[test]
fn a_second_live_attempt_is_caught() {
    is_caught(Fault::Machine(Promise::OneLiveAttempt), "at most one live attempt");
}

#[test]
fn a_launch_that_was_not_recorded_is_caught() {
    is_caught(Fault::Machine(Promise::RecordBeforeLaunch), "a launch is recorded before it happens");
}

#[test]
fn heeding_an_older_attempt_is_caught() {
    is_caught(Fault::Machine(Promise::StaleChangesNothing), "a message of an older attempt changes nothing");
}

#[test]
fn counting_a_checkpoint_that_lacks_a_rank_is_caught() {
    is_caught(Fault::Machine(Promise::EveryRankSaved), "a checkpoint counts only when every rank saved it");
}

#[test]
fn counting_a_checkpoint_that_was_not_committed_is_caught() {
    is_caught(
        Fault::Machine(Promise::AgentCommitted),
        "a checkpoint counts only when the agent committed it",
    );
}

#[test]
fn ending_twice_is_caught() {
    is_caught(Fault::Machine(Promise::EndsOnce), "a trial ends once");
}

#[test]
fn going_on_from_an_older_checkpoint_is_caught() {
    is_caught(
        Fault::Machine(Promise::NewestCheckpoint),
        "an attempt goes on from the newest durable checkpoint",
    );
}

#[test]
fn going_on_from_a_refused_checkpoint_is_caught() {
    is_caught(
        Fault::Machine(Promise::RefusedIsForgotten),
        "an attempt goes on from the newest durable checkpoint",
    );
}

#[test]
fn going_on_from_a_checkpoint_that_was_refused_and_found_again_is_caught() {
    is_caught(Fault::Machine(Promise::RefusedStaysRefused), "a refused checkpoint is not counted again");
}

#[test]
fn forgetting_what_a_disk_has_is_caught() {
    is_caught(Fault::Machine(Promise::FoundIsAdopted), "what a disk has is not forgotten");
}

#[test]
fn a_launch_that_comes_too_late_is_caught() {
    is_caught(Fault::LateLaunch, "at most one live attempt");
}

#[test]
fn a_ledger_that_forgets_is_caught() {
    let noticed = (0..5_000).any(|seed| run(seed, Fault::LedgerForgets, &mut Reached::default()).is_err());
    assert!(noticed, "a forgotten fact must break a promise");
}

/// Returns a trial whose first attempt was launched.
fn begun() -> (TrialMachine, Vec<TrialEffect>) {
    let (mut machine, effects) = TrialMachine::begin();
    assert_eq!(effects, [TrialEffect::Discover]);
    let effects = machine.step(Millis(0), TrialInput::DiscoveryDone);
    (machine, effects)
}

#[test]
fn the_second_stop_kills() {
    let (mut machine, _) = begun();
    let attempt = AttemptId(1);
    assert_eq!(machine.step(Millis(0), TrialInput::Stop), [TrialEffect::SendStop { attempt }]);
    assert_eq!(machine.step(Millis(0), TrialInput::Stop), [TrialEffect::Kill { attempt }]);
    machine.step(Millis(0), TrialInput::Gone { attempt, lost: None });
    assert_eq!(machine.verdict(), Some(&Verdict::Stopped));
}
