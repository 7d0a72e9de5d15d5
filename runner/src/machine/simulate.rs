//! A seeded world of stale messages, lost ranks, failed launches, lost agents and controllers that crash between
//! any two effects. It knows the truth, and holds every effect of the machine against it.

use super::{ATTEMPTS_WITHOUT_PROGRESS, Effect, Input, Machine, Moment, Promise, graver};
use crate::fact::{Ended, Fact, Verdict};
use dtrain_protocol::order::mix;
use dtrain_protocol::{
    AttemptId, Event, Failure, PhaseTimes, Rank, ResumePoint, Stamped, StepFigures, StepId, StopReason,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// The step after which the training of this world is complete.
const LAST: u64 = 12;

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Machine(Promise),
    /// The newest fact is missing after a crash.
    LedgerForgets,
}

/// How often the chaos reached what it is meant to reach.
#[derive(Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// The processes of one attempt.
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
    machine: Machine,
    ledger: Vec<Fact>,
    live: Option<Live>,
    /// What each attempt spooled; the open one's is read from the start after a crash.
    spools: BTreeMap<AttemptId, Vec<Input>>,
    read: usize,
    /// Answers to launches and kills that the driver owes the machine.
    owed: VecDeque<Input>,
    saved: BTreeSet<(AttemptId, StepId, Rank)>,
    committed: BTreeSet<(AttemptId, StepId)>,
    /// What a faulty agent claimed to have committed; its ranks never save it whole.
    claimed: BTreeSet<(AttemptId, StepId)>,
    finished: BTreeSet<AttemptId>,
    /// Checkpoints the ledger counts, oldest first.
    counted: Vec<ResumePoint>,
    chaos: bool,
    reached: &'a mut Reached,
}

/// A promise that did not hold, or a crash of the controller inside a list of effects.
enum Broke {
    Promise(String),
    Crash,
}

fn promise(holds: bool, words: impl FnOnce() -> String) -> Result<(), Broke> {
    if holds { Ok(()) } else { Err(Broke::Promise(words())) }
}

fn folder(attempt: AttemptId, step: StepId) -> PathBuf {
    dtrain_protocol::checkpoint::folder_name(step, attempt).into()
}

/// Runs one seed. `Err` says in words which promise did not hold.
fn run(seed: u64, fault: Fault, reached: &mut Reached) -> Result<(), String> {
    let (mut machine, _) = Machine::replay(&[]);
    if let Fault::Machine(promise) = fault {
        machine.broken = Some(promise);
    }
    let mut world = World {
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
        chaos: true,
        reached,
    };
    world.tell(Input::Resume)?;
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

impl World<'_> {
    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        mix(self.seed, self.draws) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.chaos && self.draw(100) < percent
    }

    /// Feeds the machine and carries out what it says; the controller may crash between any two effects.
    fn tell(&mut self, input: Input) -> Result<(), String> {
        let effects = self.machine.step(Moment(self.now), input);
        self.carry_out(effects)
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let mut effects = effects;
        loop {
            let crashed = effects
                .drain(..)
                .try_for_each(|effect| if self.chance(3) { Err(Broke::Crash) } else { self.perform(effect) });
            match crashed {
                Ok(()) => return Ok(()),
                Err(Broke::Promise(words)) => return Err(words),
                Err(Broke::Crash) => effects = self.replay(),
            }
        }
    }

    fn replay(&mut self) -> Vec<Effect> {
        self.reached.note("controller crash");
        if self.fault == Fault::LedgerForgets {
            self.ledger.pop();
        }
        let (mut machine, effects) = Machine::replay(&self.ledger);
        machine.broken = self.machine.broken;
        self.machine = machine;
        (self.read, self.now) = (0, 0);
        self.owed.clear();
        effects
    }

    fn perform(&mut self, effect: Effect) -> Result<(), Broke> {
        match effect {
            Effect::Record(fact) => self.record(fact),
            Effect::Launch { attempt, from } => self.launch(attempt, from),
            Effect::SendStop { attempt } => {
                if let Some(live) = self.live.as_mut().filter(|live| live.attempt == attempt) {
                    live.asked_to_stop = true;
                    self.reached.note("asked to stop");
                }
                Ok(())
            }
            Effect::Kill { attempt } => {
                self.reached.note("kill");
                self.live.take_if(|live| live.attempt == attempt);
                Ok(())
            }
            Effect::WakeAt(_) => Ok(()),
            Effect::Done { verdict } => {
                let kept =
                    matches!(self.ledger.last(), Some(Fact::TrialEnded { verdict: v }) if *v == verdict);
                promise(kept, || format!("a trial ends with a reason: {verdict:?} was not recorded"))
            }
        }
    }

    fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) -> Result<(), Broke> {
        promise(self.live.is_none(), || {
            format!("at most one live attempt: {attempt} is launched beside another")
        })?;
        let recorded =
            matches!(self.ledger.last(), Some(Fact::AttemptStarted { attempt: a, .. }) if *a == attempt);
        promise(recorded, || format!("a launch is recorded before it happens: {attempt} was not"))?;
        let newest = self.counted.last();
        promise(from.as_ref() == newest, || {
            format!("an attempt goes on from the newest durable checkpoint {newest:?}, not from {from:?}")
        })?;
        self.read = 0;
        let ranks = 1 + self.draw(3) as u32;
        match &from {
            Some(point) if self.chance(20) => {
                self.reached.note("checkpoint refused at launch");
                let failure =
                    Failure::CorruptCheckpoint { folder: point.folder.clone(), detail: "file 0".into() };
                self.owed.push_back(Input::LaunchFailed { attempt, failure });
            }
            _ if self.chance(12) => {
                self.reached.note("failed launch");
                let failure = Failure::Other("no such host".into());
                self.owed.push_back(Input::LaunchFailed { attempt, failure });
            }
            _ => {
                self.reached.note(if from.is_some() { "resume" } else { "fresh start" });
                let step = from.as_ref().map_or(0, |point| point.step.0);
                self.spools.insert(attempt, vec![Input::Began { attempt, ranks }]);
                self.live = Some(Live { attempt, ranks, step, from, failed: None, asked_to_stop: false });
            }
        }
        Ok(())
    }

    /// Holds a fact against the truth, then keeps it.
    fn record(&mut self, fact: Fact) -> Result<(), Broke> {
        let over = self.ledger.iter().rev().find_map(|fact| match fact {
            Fact::TrialEnded { .. } => Some(true),
            Fact::Resumed => Some(false),
            _ => None,
        });
        let open = self.ledger.iter().rev().find_map(|fact| match fact {
            Fact::AttemptStarted { attempt, .. } => Some(Some(*attempt)),
            Fact::AttemptEnded { .. } => Some(None),
            _ => None,
        });
        let open = open.flatten();
        promise(over != Some(true) || fact == Fact::Resumed, || {
            format!("a trial ends once: {fact:?} came after")
        })?;
        match &fact {
            Fact::AttemptStarted { attempt, .. } => {
                promise(open.is_none(), || {
                    format!("at most one live attempt: {attempt} starts beside {open:?}")
                })?;
                let again = self
                    .ledger
                    .iter()
                    .any(|f| matches!(f, Fact::AttemptStarted { attempt: a, .. } if a >= attempt));
                promise(!again, || {
                    format!("the ledger alone is enough: attempt {attempt} is started again")
                })?;
            }
            Fact::CheckpointDurable { attempt, step, folder: at } => {
                promise(open == Some(*attempt), || {
                    format!("a message of an older attempt changes nothing: {attempt} is not open")
                })?;
                let ranks = match self.spools[attempt].first() {
                    Some(Input::Began { ranks, .. }) => *ranks,
                    _ => unreachable!("a spool begins so"),
                };
                let all = (0..ranks).all(|rank| self.saved.contains(&(*attempt, *step, Rank(rank))));
                promise(all, || format!("a checkpoint counts only when every rank saved it: {at:?}"))?;
                let committed = self.committed.contains(&(*attempt, *step));
                promise(committed, || {
                    format!("a checkpoint counts only when the agent committed it: {at:?}")
                })?;
                let point = ResumePoint { folder: at.clone(), step: *step };
                promise(!self.counted.contains(&point), || {
                    format!("a repeated message changes nothing: {at:?}")
                })?;
                self.counted.push(point);
                self.reached.note("durable checkpoint");
            }
            Fact::CheckpointRefused { folder, .. } => {
                self.reached.note("checkpoint refused");
                self.counted.retain(|point| point.folder != *folder);
            }
            Fact::AttemptEnded { attempt, .. } => {
                promise(open == Some(*attempt), || format!("an attempt ends once: {attempt} is not open"))?;
                promise(self.live.is_none(), || {
                    format!("an attempt that ended has no processes: {attempt}")
                })?;
                self.reached.note("attempt ended");
            }
            Fact::TrialEnded { verdict } => {
                promise(open.is_none(), || format!("a trial ends after its attempts: {open:?} is open"))?;
                let newest = self.spools.keys().next_back();
                let done = newest.is_some_and(|newest| self.finished.contains(newest));
                promise(done || !matches!(verdict, Verdict::Completed(_)), || {
                    "a trial ends with its reason: it is not complete".into()
                })?;
                self.reached.note(match verdict {
                    Verdict::Completed(_) => "completed",
                    Verdict::Pruned => "pruned",
                    Verdict::OutOfMemory => "out of memory",
                    Verdict::Diverged => "diverged",
                    Verdict::Failed(_) => "failed",
                    Verdict::Stopped => "stopped",
                });
            }
            Fact::Resumed => self.reached.note("resumed"),
        }
        self.ledger.push(fact);
        Ok(())
    }

    /// One thing happens.
    fn act(&mut self) -> Result<(), String> {
        match self.draw(16) {
            0..5 => self.train(),
            5 if self.chance(35) => self.fail(),
            6 if self.chance(30) => {
                self.reached.note("agent lost");
                self.live = None;
            }
            7 if self.chance(50) => return self.stale(),
            8 if self.chance(8) => return self.tell(Input::Stop),
            9 if self.chance(40) => return self.repeat(),
            10 => {
                self.now += self.draw(30_000);
                return self.tell(Input::Tick);
            }
            11 if self.chance(15) => {
                let effects = self.replay();
                return self.carry_out(effects);
            }
            12 if self.machine.open().is_none() && !self.waits_for_a_launch() => {
                return self.tell(Input::Resume);
            }
            _ => return self.deliver(),
        }
        Ok(())
    }

    /// Whether going on is the machine's turn: the user only resumes what stands still.
    fn waits_for_a_launch(&mut self) -> bool {
        matches!(self.machine.phase, super::Phase::Waiting(_)) && !self.chance(10)
    }

    /// The driver reads on: what it owes, then the spool of the open attempt, then that nothing is left of it.
    fn deliver(&mut self) -> Result<(), String> {
        if let Some(input) = self.owed.pop_front() {
            return self.tell(input);
        }
        let Some(open) = self.machine.open() else { return Ok(()) };
        if let Some(input) = self.spools.get(&open).and_then(|spool| spool.get(self.read)).cloned() {
            self.read += 1;
            return self.tell(input);
        }
        if self.live.as_ref().is_none_or(|live| live.attempt != open) {
            self.reached.note("found gone");
            return self.tell(Input::Gone { attempt: open });
        }
        Ok(())
    }

    /// A message of an attempt that is not the open one: nothing may change.
    fn stale(&mut self) -> Result<(), String> {
        let open = self.machine.open();
        let old: Vec<Input> =
            self.spools.iter().filter(|(a, _)| Some(**a) != open).flat_map(|(_, s)| s.clone()).collect();
        if old.is_empty() {
            return Ok(());
        }
        self.reached.note("stale message");
        let input = old[self.draw(old.len() as u64) as usize].clone();
        let before = self.machine.clone();
        let effects = self.machine.step(Moment(self.now), input.clone());
        if effects.is_empty() && before == self.machine {
            return Ok(());
        }
        Err(format!("a message of an older attempt changes nothing: {input:?} led to {effects:?}"))
    }

    /// A message that was already read comes again: nothing may come of it.
    fn repeat(&mut self) -> Result<(), String> {
        let Some(spool) = self.machine.open().and_then(|open| self.spools.get(&open)) else { return Ok(()) };
        let known = spool[..self.read.min(spool.len())].to_vec();
        if known.is_empty() {
            return Ok(());
        }
        self.reached.note("repeated message");
        let input = known[self.draw(known.len() as u64) as usize].clone();
        let effects = self.machine.step(Moment(self.now), input.clone());
        let harmless = effects.iter().all(|effect| matches!(effect, Effect::WakeAt(_)));
        if harmless {
            Ok(())
        } else {
            Err(format!("a repeated message changes nothing: {input:?} led to {effects:?}"))
        }
    }

    /// The ranks and the agent do some of their work.
    fn train(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let attempt = live.attempt;
        match self.draw(6) {
            _ if live.failed.is_some() => {
                // A hung agent never says so: the machine's own deadline must find it.
                if !self.chance(30) {
                    let cause = live.failed.clone().expect("it was just asked");
                    self.spool(attempt, Input::Over { attempt, ended: Ended::Lost(cause) });
                    return;
                }
                self.reached.note("hung agent");
            }
            0 | 1 if live.step < LAST => {
                live.step += 1;
                let figures = figures(live.step);
                self.say(attempt, Rank(0), Event::Step(figures));
            }
            2 => {
                let rank = Rank(self.draw(u64::from(live.ranks)) as u32);
                self.save(&live, rank);
            }
            3 => self.commit(&live),
            4 if self.chance(30) => self.claim(&live),
            _ if live.step >= LAST || live.asked_to_stop => {
                for rank in 0..live.ranks {
                    self.save(&live, Rank(rank));
                }
                self.commit(&live);
                let reason = if live.step >= LAST { StopReason::Complete } else { StopReason::Ordered };
                for rank in 0..live.ranks {
                    self.say(attempt, Rank(rank), Event::Finished { step: StepId(live.step), reason });
                }
                self.finished.insert(attempt);
                // An agent lost before its last word leaves the end to be guessed.
                if !self.chance(20) {
                    self.spool(attempt, Input::Over { attempt, ended: Ended::Finished(reason) });
                }
                return;
            }
            _ => {}
        }
        self.live = Some(live);
    }

    fn save(&mut self, live: &Live, rank: Rank) {
        let step = StepId(live.step);
        let claimed = self.claimed.contains(&(live.attempt, step));
        if live.step > 0 && !claimed && self.saved.insert((live.attempt, step, rank)) {
            let at = folder(live.attempt, step);
            self.say(
                live.attempt,
                rank,
                Event::Saved { step, folder: at, files: Vec::new(), stall_seconds: 0.0 },
            );
        }
    }

    fn commit(&mut self, live: &Live) {
        let (attempt, step) = (live.attempt, StepId(live.step));
        let all = (0..live.ranks).all(|rank| self.saved.contains(&(attempt, step, Rank(rank))));
        if all && self.committed.insert((attempt, step)) {
            self.spool(attempt, Input::Committed { attempt, step, folder: folder(attempt, step) });
        }
    }

    /// A faulty agent claims a checkpoint that not all ranks saved.
    fn claim(&mut self, live: &Live) {
        let (attempt, step) = (live.attempt, StepId(live.step));
        let all = (0..live.ranks).all(|rank| self.saved.contains(&(attempt, step, Rank(rank))));
        if !all && live.step < LAST && !live.asked_to_stop && self.claimed.insert((attempt, step)) {
            self.reached.note("false claim");
            self.spool(attempt, Input::Committed { attempt, step, folder: folder(attempt, step) });
        }
    }

    /// A rank fails, and perhaps the others say that they lost it.
    fn fail(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let lost = Failure::PeerLost { peer: None, detail: "closed".into() };
        let failure = match (self.draw(20), &live.from) {
            (0, _) => Failure::OutOfMemory { detail: "8 GiB".into() },
            (1, _) => Failure::NotFinite { step: StepId(live.step), figure: "loss".into() },
            (2, _) => Failure::Data("no such file".into()),
            (3..9, Some(point)) => {
                Failure::CorruptCheckpoint { folder: point.folder.clone(), detail: "hash of chunk 0".into() }
            }
            (9..12, _) => Failure::Other("worker".into()),
            _ => Failure::Exited { code: None, signal: Some(9) },
        };
        self.reached.note("rank lost");
        let rank = Rank(self.draw(u64::from(live.ranks)) as u32);
        for failure in [lost, failure] {
            live.failed = Some(graver(live.failed.take(), failure.clone()));
            self.say(live.attempt, rank, Event::Failed(failure));
        }
        self.live = Some(live);
    }

    fn say(&mut self, attempt: AttemptId, rank: Rank, event: Event) {
        let sequence = self.spools[&attempt].len() as u64;
        self.spool(attempt, Input::Event(Stamped { attempt, rank, sequence, at_ms: 0, event }));
    }

    fn spool(&mut self, attempt: AttemptId, input: Input) {
        self.spools.get_mut(&attempt).expect("a live attempt has a spool").push(input);
    }
}

fn figures(step: u64) -> StepFigures {
    StepFigures {
        step: StepId(step),
        loss: 1.0,
        gradient_norm: 1.0,
        learning_rate: 1e-3,
        tokens: 1,
        times: PhaseTimes::default(),
        memory_bytes: 1,
        sent_bytes: 0,
        held: dtrain_protocol::HeldBytes::default(),
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
        "checkpoint refused at launch",
        "checkpoint refused",
        "resume",
        "rank lost",
        "agent lost",
        "hung agent",
        "kill",
        "found gone",
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
        assert!(times >= 500, "the chaos reached `{what}` {times} times only: {:?}", reached.0);
    }
}

/// Asserts that the simulator notices a fault, and blames it on the promise.
fn is_caught(fault: Fault, words: &str) {
    let blamed = (0..5_000).find_map(|seed| run(seed, fault, &mut Reached::default()).err());
    let blamed = blamed.unwrap_or_else(|| panic!("nobody noticed that this is broken: {words}"));
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
fn a_ledger_that_forgets_is_caught() {
    let noticed = (0..5_000).any(|seed| run(seed, Fault::LedgerForgets, &mut Reached::default()).is_err());
    assert!(noticed, "a forgotten fact must break a promise");
}

#[test]
fn a_trial_that_makes_no_progress_fails_after_five_attempts() {
    let (mut machine, mut effects) = Machine::begin();
    for attempt in (1..=u64::from(ATTEMPTS_WITHOUT_PROGRESS)).map(AttemptId) {
        assert!(effects.iter().any(|e| matches!(e, Effect::Launch { attempt: a, .. } if *a == attempt)));
        effects = machine.step(Moment(0), Input::Gone { attempt });
        if attempt.0 < u64::from(ATTEMPTS_WITHOUT_PROGRESS) {
            assert_eq!(machine.step(Moment(0), Input::Tick), [], "the next attempt follows after a pause");
            effects = machine.step(Moment(100_000), Input::Tick);
        }
    }
    assert!(matches!(machine.verdict(), Some(Verdict::Failed(Failure::Other(_)))), "{effects:?}");
}

#[test]
fn the_second_stop_kills() {
    let (mut machine, _) = Machine::begin();
    let attempt = AttemptId(1);
    assert_eq!(machine.step(Moment(0), Input::Stop), [Effect::SendStop { attempt }]);
    assert_eq!(machine.step(Moment(0), Input::Stop), [Effect::Kill { attempt }]);
    machine.step(Moment(0), Input::Gone { attempt });
    assert_eq!(machine.verdict(), Some(&Verdict::Stopped));
}
