//! The simulated ranks of attempts: they start, connect, train in lockstep, save, and fail if one of them is
//! missing.

use super::World;
use super::bugs::Bug;
use super::grid::AttemptOnMachine;
use super::promises::TrainingDigest;
use super::reports::{self, Reporting};
use crate::agent::fixtures;
use crate::agent::follower;
use crate::agent::messages::RankExit;
use dtrain_protocol::checkpoint::folder_name;
use dtrain_protocol::{
    Assignment, AttemptId, Event, Failure, Order, StepId, StopReason, TrialId, WaitLimits,
};
use dtrain_recipes::{Mlp, MlpActivation, Model};
use std::path::Path;

/// Milliseconds that a rank takes to load.
const TO_LOAD: u64 = 300;

/// Milliseconds that ranks wait for a silent rank, and for a rank with a closed connection.
const SILENT: u64 = 5_000;
const CLOSED: u64 = 150;

/// State of a simulated rank.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RankStage {
    /// The rank waits for the addresses of the others.
    Connecting,
    Loading(u64),
    Ready,
    /// The rank does nothing and does not end by itself.
    Hung,
    /// The rank ends at this time, with this exit.
    Ending(u64, RankExit),
    Gone,
}

/// The simulated process of a rank.
#[derive(Clone, Debug)]
pub(super) struct RankActor {
    stage: RankStage,
    is_stopping: bool,
}

/// The training of one attempt by its ranks.
#[derive(Clone, Debug)]
pub(super) struct AttemptTraining {
    /// Machines of the attempt, each with its ranks.
    machines: Vec<(usize, std::ops::Range<u32>)>,
    pub(super) step: u64,
    learned: TrainingDigest,
    pub(super) next_at: u64,
    /// True if all ranks are training.
    pub(super) is_ready: bool,
    /// Time since which a rank has been missing, if one is.
    missed_since: Option<u64>,
}

impl AttemptTraining {
    pub(super) fn new(
        machines: &[(usize, std::ops::Range<u32>)],
        step: u64,
        learned: TrainingDigest,
    ) -> Self {
        Self { machines: machines.to_vec(), step, learned, next_at: 0, is_ready: false, missed_since: None }
    }
}

impl World<'_> {
    pub(super) fn start_ranks(&mut self, attempt: AttemptId, machine: usize) {
        let Some(training) = self.training.get(&attempt) else { return };
        let ranks = training.machines.iter().find(|(on, _)| *on == machine).map(|(_, ranks)| ranks.clone());
        for rank in ranks.unwrap_or_default() {
            let agent = self.agents.get_mut(&(attempt, machine)).expect("it starts them");
            agent.ranks.insert(rank, RankActor { stage: RankStage::Connecting, is_stopping: false });
            self.say(attempt, machine, rank, Event::Listening(reports::address_of(machine, rank)));
        }
    }

    fn say(&mut self, attempt: AttemptId, machine: usize, rank: u32, event: Event) {
        self.tell_follower(attempt, machine, follower::HostInput::Event(dtrain_protocol::Rank(rank), event));
    }

    fn rank(&mut self, attempt: AttemptId, machine: usize, rank: u32) -> Option<&mut RankActor> {
        self.agents.get_mut(&(attempt, machine))?.ranks.get_mut(&rank)
    }

    pub(super) fn order(
        &mut self,
        attempt: AttemptId,
        machine: usize,
        rank: dtrain_protocol::Rank,
        order: &Order,
    ) {
        let until = self.now + TO_LOAD;
        let Some(rank) = self.rank(attempt, machine, rank.0) else { return };
        match order {
            Order::Peers(_) if rank.stage == RankStage::Connecting => rank.stage = RankStage::Loading(until),
            Order::Peers(_) => {}
            Order::Stop => rank.is_stopping = true,
        }
    }

    /// Ends the process of a rank.
    pub(super) fn end_rank(
        &mut self,
        attempt: AttemptId,
        machine: usize,
        rank: dtrain_protocol::Rank,
        exit: RankExit,
    ) {
        let Some(known) = self.rank(attempt, machine, rank.0).filter(|known| known.stage != RankStage::Gone)
        else {
            return;
        };
        known.stage = RankStage::Gone;
        self.tell_follower(attempt, machine, follower::HostInput::Exited { rank, exit, failure: None });
        let closed = follower::HostInput::OutputClosed { rank, garbled: None, last: Vec::new() };
        self.tell_follower(attempt, machine, closed);
    }

    /// Kills a random rank, or lets it hang.
    pub(super) fn kill_a_rank(&mut self) {
        let of = |((attempt, machine), agent): (AttemptOnMachine, &super::Agent)| {
            let lives = agent.ranks.iter().filter(|(_, rank)| rank.stage == RankStage::Ready);
            lives.map(|(rank, _)| (attempt, machine, *rank)).collect::<Vec<_>>()
        };
        let all: Vec<(AttemptId, usize, u32)> = self.agents.iter().flat_map(of).collect();
        if all.is_empty() {
            return;
        }
        let (attempt, machine, rank) = all[self.draw(all.len() as u64) as usize];
        self.note_fault([machine], self.now);
        if self.draw(2) == 0 {
            self.reached.note("rank killed");
            let exit = RankExit { code: None, signal: Some(9) };
            self.end_rank(attempt, machine, dtrain_protocol::Rank(rank), exit);
        } else {
            self.reached.note("rank hung");
            self.rank(attempt, machine, rank).expect("it was just listed").stage = RankStage::Hung;
        }
    }

    /// Carries out the pending work of all ranks.
    pub(super) fn train(&mut self) {
        let attempts: Vec<AttemptId> = self.training.keys().copied().collect();
        for attempt in attempts {
            if !self.agents.has_attempt(attempt) {
                // No process is alive; the last step stays known.
                continue;
            }
            let machines = self.training[&attempt].machines.clone();
            for (machine, ranks) in &machines {
                if self.is_up(*machine) {
                    ranks.clone().for_each(|rank| self.rank_goes_on(attempt, *machine, rank));
                }
            }
            self.step_together(attempt, &machines);
        }
    }

    fn rank_goes_on(&mut self, attempt: AttemptId, machine: usize, rank: u32) {
        let now = self.now;
        let Some(known) = self.rank(attempt, machine, rank) else { return };
        match known.stage {
            RankStage::Loading(until) if now >= until => {
                known.stage = RankStage::Ready;
                self.say(attempt, machine, rank, reports::ready());
            }
            RankStage::Ending(until, exit) if now >= until => {
                self.end_rank(attempt, machine, dtrain_protocol::Rank(rank), exit);
            }
            _ => {}
        }
    }

    /// Trains one step of an attempt, which needs all ranks.
    fn step_together(&mut self, attempt: AttemptId, machines: &[(usize, std::ops::Range<u32>)]) {
        let stage = |world: &Self, machine: usize, rank: u32| {
            let agent = world.agents.get(&(attempt, machine));
            agent.and_then(|agent| agent.ranks.get(&rank)).map(|rank| rank.stage)
        };
        let all: Vec<(usize, u32)> =
            machines.iter().flat_map(|(machine, ranks)| ranks.clone().map(|rank| (*machine, rank))).collect();
        let is_ready = |world: &Self| {
            all.iter().all(|(machine, rank)| stage(world, *machine, *rank) == Some(RankStage::Ready))
                && world.all_talk(machines)
        };
        let is_ready = is_ready(self);
        self.training.get_mut(&attempt).expect("it trains").is_ready = is_ready;
        if is_ready {
            self.training.get_mut(&attempt).expect("it trains").missed_since = None;
            if self.now >= self.training[&attempt].next_at {
                self.step(attempt, &all);
            }
            return;
        }
        let waiting: Vec<(usize, u32)> =
            all.iter().copied().filter(|(m, r)| stage(self, *m, *r) == Some(RankStage::Ready)).collect();
        if waiting.is_empty() {
            return;
        }
        let is_closed = all.iter().any(|(machine, rank)| {
            matches!(stage(self, *machine, *rank), None | Some(RankStage::Gone | RankStage::Ending(..)))
        });
        let (now, ends) = (self.now, self.now + self.setup.beat);
        let training = self.training.get_mut(&attempt).expect("it trains");
        let since = *training.missed_since.get_or_insert(now);
        if now < since + if is_closed { CLOSED } else { SILENT } {
            return;
        }
        for (machine, rank) in
            waiting.into_iter().filter(|(machine, _)| self.is_up(*machine)).collect::<Vec<_>>()
        {
            let lost = Failure::PeerLost { peer: None, detail: "it is silent".into() };
            self.say(attempt, machine, rank, Event::Failed(lost));
            if let Some(known) = self.rank(attempt, machine, rank) {
                known.stage = RankStage::Ending(ends, RankExit { code: Some(1), signal: None });
            }
        }
    }

    fn step(&mut self, attempt: AttemptId, all: &[(usize, u32)]) {
        let is_over = self.controller.launched.keys().next_back().is_some_and(|newest| *newest > attempt);
        if is_over && !self.controller.given_up.contains(&attempt) {
            return self.breaks(|| format!("NL-6: a fenced attempt trains no step: {attempt} does"));
        }
        if is_over {
            self.reached.note("trained while given up");
        }
        let (last, now, setup) = (self.last, self.now, self.setup);
        let training = self.training.get_mut(&attempt).expect("it trains");
        training.step += 1;
        training.learned = training.learned.step(training.step);
        let learned = training.learned;
        training.next_at = now + setup.step;
        let step = training.step;
        let is_stopping = all.iter().all(|(machine, rank)| {
            self.agents[&(attempt, *machine)].ranks.get(rank).is_some_and(|rank| rank.is_stopping)
        });
        let is_last = step >= last || is_stopping;
        let reporting = match setup.reporting {
            Reporting::Full | Reporting::WithoutTensors => all,
            Reporting::FirstRank => &all[..1],
        };
        for (machine, rank) in reporting {
            self.say(attempt, *machine, *rank, reports::step(step));
        }
        if is_last || step.is_multiple_of(setup.validate_every) {
            for (machine, rank) in reporting {
                self.say(attempt, *machine, *rank, reports::validated(step));
            }
        }
        if is_last || step.is_multiple_of(setup.save_every) {
            self.held.learned.insert((attempt, StepId(step)), learned);
            for (machine, rank) in all {
                self.save(attempt, *machine, (*rank, all.len()), StepId(step));
            }
        }
        if is_last {
            let reason = if step >= last { StopReason::Complete } else { StopReason::Ordered };
            for (machine, rank) in all {
                self.say(attempt, *machine, *rank, Event::Finished { step: StepId(step), reason });
                if let Some(rank) = self.rank(attempt, *machine, *rank) {
                    rank.stage =
                        RankStage::Ending(now + setup.beat, RankExit { code: Some(0), signal: None });
                }
            }
        }
    }

    /// Saves the part of a rank of so many ranks.
    fn save(&mut self, attempt: AttemptId, machine: usize, (rank, ranks): (u32, usize), step: StepId) {
        if self.now < self.places[machine].disk.full_until {
            self.reached.note("a rank could not save");
            let failed = Event::SaveFailed { step, reason: "no room".into(), retries: false };
            return self.say(attempt, machine, rank, failed);
        }
        if let Some(cost) = &mut self.cost {
            cost.disk_fsyncs += 1;
        }
        if !self.has(Bug::SavedBeforeWritten) {
            self.places[machine].disk.write((attempt, step), rank);
        }
        let saved = match self.setup.reporting {
            Reporting::Full => {
                reports::saved_file_with_tensors(rank, u32::try_from(ranks).expect("few ranks"))
            }
            Reporting::WithoutTensors | Reporting::FirstRank => reports::saved_file(rank),
        };
        let folder = Path::new(reports::CHECKPOINTS).join(format!("{}.partial", folder_name(step, attempt)));
        self.say(
            attempt,
            machine,
            rank,
            Event::Saved { step, folder, files: vec![saved], stall_seconds: 0.000_412_873 },
        );
    }
}

/// Returns the assignment of rank 0 of an attempt.
pub(super) fn assignment(attempt: AttemptId, world: u32, save_every: u64) -> Assignment {
    let model = Model::Mlp(Mlp { inputs: 1, hidden: vec![1], classes: 2, activation: MlpActivation::Relu });
    let mut assignment = fixtures::assignment(TrialId("01M8H6ZJK8VGKFNBW9HPH08S5J".into()), attempt, model);
    assignment.training.batch = u64::from(world);
    assignment.save_every = save_every;
    assignment.waits = WaitLimits { silence_seconds: 5.0, idle_seconds: 30.0, step_seconds: None };
    assignment
}
