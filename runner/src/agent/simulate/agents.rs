//! The simulated agents: the real state machines of leader and follower, with modeled disks and processes.

use super::bugs::{follower_effects, leader_effects};
use super::disk::State;
use super::fencing::name_of;
use super::grid::AttemptOnMachine;
use super::network::FollowerConnection;
use super::ranks::{RankActor, assignment};
use super::reports::{CHECKPOINTS, EPOCH_MS, address_of};
use super::{KEEP, World};
use crate::agent::follower::{self, Follower, HostTask};
use crate::agent::leader::{self, AttemptEffect, ClockReading, HostState, LEADER_HOST, Leader};
use crate::agent::messages::{FetchSummary, HostMessage, RankExit};
use crate::agent::peers::heartbeat::Heartbeat;
use crate::checkpoints::retention;
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::machine::Millis;
use crate::spool::SpoolRecord;
use dtrain_protocol::AttemptId;
use dtrain_protocol::checkpoint::{folder_name, parse_folder_name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Milliseconds that a unit of work takes on a disk that is not slow.
const WORK: u64 = 100;

/// The simulated agent of an attempt on one machine.
pub(super) struct Agent {
    pub(super) began: u64,
    pub(super) follower: Follower,
    leader: Option<Leader>,
    /// The machine of each host of the attempt, if this agent leads.
    machines: BTreeMap<u32, usize>,
    /// True if the agent's spool must be on disk before any later effect is carried out.
    pub(super) must_sync: bool,
    /// Records not yet sent to the machine that mirrors the agent's spool.
    pub(super) unmirrored: Vec<SpoolRecord>,
    pub(super) ranks: BTreeMap<u32, RankActor>,
    pub(super) heartbeat: Heartbeat,
    /// The name of the checkpoint that the agent's ranks resume from, if any.
    pub(super) resume: Option<String>,
    work: VecDeque<HostTask>,
    busy_until: u64,
    /// True if the agent ends once its work is done.
    ended: bool,
}

impl Agent {
    /// Returns the machine that mirrors the spool of this agent.
    pub(super) fn mirror(&self) -> Option<usize> {
        let host = self.leader.as_ref()?.mirror()?;
        self.machines.get(&host).copied()
    }

    pub(super) fn leads(&self) -> bool {
        self.leader.is_some()
    }

    /// Returns `true` if the agent only waits for inputs.
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_empty() && !self.ended
    }
}

impl World<'_> {
    /// Starts the agents of an attempt on reachable machines, with the ranks of each.
    pub(super) fn launch_on(
        &mut self,
        attempt: AttemptId,
        machines: &[(usize, Range<u32>)],
        resume: Option<String>,
    ) {
        // The launching controller knows that earlier attempts are over.
        let launched: BTreeSet<usize> = machines.iter().map(|(machine, _)| *machine).collect();
        self.agents.retain(|(of, on)| of >= attempt || !launched.contains(&on));
        let own = machines[0].0;
        self.places[own].disk.spools.entry(attempt).or_default();
        if let Some(reason) = self.unreached(machines) {
            // The followers have no ranks yet, and end without a leader.
            self.reached.note("leader cannot connect");
            return self.refused(attempt, own, reason);
        }
        for (index, (machine, ranks)) in machines.iter().enumerate() {
            let is_remote = index > 0;
            let settings = follower::HostConfig { ranks: ranks.clone(), resume: resume.clone(), is_remote };
            let agent = Agent {
                began: self.now,
                follower: Follower::new(settings, Millis(0)),
                leader: None,
                machines: BTreeMap::new(),
                must_sync: false,
                unmirrored: Vec::new(),
                ranks: BTreeMap::new(),
                heartbeat: Heartbeat::default(),
                resume: resume.clone(),
                work: VecDeque::new(),
                busy_until: 0,
                ended: false,
            };
            self.agents.insert((attempt, *machine), agent);
        }
        let hosts = (0u32..).zip(machines).map(|(host, (machine, ranks))| {
            let name = name_of(*machine);
            let peer = PeerAddress { host, name, address: address_of(*machine, 0) };
            (host, HostState::new(peer, ranks.clone(), Millis(0)))
        });
        let world = machines.last().map_or(0, |(_, ranks)| ranks.end);
        let settings = leader::AttemptConfig {
            attempt,
            keep: KEEP,
            gathers: true,
            checkpoints: CHECKPOINTS.into(),
            resume,
            first: assignment(attempt, world, self.setup.save_every),
            address: "127.0.0.1".into(),
        };
        let now = ClockReading { moment: Millis(0), wall_ms: EPOCH_MS + self.now };
        let (leader, effects) = Leader::begin(settings, hosts.collect(), false, now);
        for (host, (machine, _)) in (0u32..).zip(machines).skip(1) {
            self.connections.insert((attempt, *machine), FollowerConnection::new(own, host, self.now));
            self.tell_follower(attempt, *machine, follower::HostInput::LeaderConnected);
        }
        if let Some(agent) = self.agents.get_mut(&(attempt, own)) {
            agent.leader = Some(leader);
            agent.machines = (0..).zip(machines.iter().map(|(machine, _)| *machine)).collect();
        }
        self.carry_out(attempt, own, effects);
    }

    /// Feeds an input to the leader on a machine.
    pub(super) fn tell_leader(&mut self, attempt: AttemptId, machine: usize, input: leader::AttemptInput) {
        let Some(agent) = self.agents.get_mut(&(attempt, machine)) else { return };
        let now = ClockReading { moment: Millis(self.now - agent.began), wall_ms: EPOCH_MS + self.now };
        let Some(leader) = &mut agent.leader else { return };
        let effects = leader.step(now, input);
        self.carry_out(attempt, machine, effects);
    }

    fn carry_out(&mut self, attempt: AttemptId, machine: usize, effects: Vec<AttemptEffect>) {
        for effect in leader_effects(self.setup.bug, effects) {
            match effect {
                AttemptEffect::Spool(record) => self.spool(attempt, machine, record),
                AttemptEffect::Ask(LEADER_HOST, message) => {
                    self.sync(attempt, machine);
                    self.tell_follower(attempt, machine, follower::HostInput::Leader(message));
                }
                AttemptEffect::Ask(host, message) => {
                    self.sync(attempt, machine);
                    let to = self.agents.get(&(attempt, machine)).and_then(|agent| agent.machines.get(&host));
                    if let Some(to) = to.copied() {
                        self.send_to_follower(attempt, to, message);
                    }
                }
                AttemptEffect::Note(_) => {}
                AttemptEffect::Announce => self.launched(attempt, machine),
                AttemptEffect::Refuse(reason) => {
                    self.refused(attempt, machine, reason);
                    self.close(attempt, machine);
                }
                AttemptEffect::End => self.close(attempt, machine),
            }
        }
    }

    /// Ends the process of an agent and its ranks, once its queued work is done.
    fn close(&mut self, attempt: AttemptId, machine: usize) {
        if let Some(agent) = self.agents.get_mut(&(attempt, machine)) {
            agent.ended = true;
        }
    }

    /// Feeds an input to the follower on a machine.
    pub(super) fn tell_follower(&mut self, attempt: AttemptId, machine: usize, input: follower::HostInput) {
        let Some(agent) = self.agents.get_mut(&(attempt, machine)) else { return };
        let effects = agent.follower.step(Millis(self.now - agent.began), input);
        for effect in follower_effects(self.setup.bug, effects) {
            match effect {
                follower::HostEffect::Tell(message) => self.told(attempt, machine, message),
                follower::HostEffect::CheckSaved { rank, step, folder, files, stall_seconds } => {
                    let saved = dtrain_protocol::Event::Saved { step, folder, files, stall_seconds };
                    self.told(attempt, machine, HostMessage::Event { rank, event: saved });
                }
                follower::HostEffect::Mirror { from, records } => {
                    self.mirrored(attempt, machine, from, &records);
                }
                follower::HostEffect::Work(work) => {
                    let agent = self.agents.get_mut(&(attempt, machine)).expect("it is at work");
                    agent.work.push_back(work);
                }
                follower::HostEffect::StartRanks(_) => {
                    self.places[machine].disk.remove_partial(attempt);
                    self.has_what_it_reads(attempt, machine);
                    self.start_ranks(attempt, machine);
                    let done = HostMessage::Started { outcome: Ok(()) };
                    self.tell_follower(attempt, machine, follower::HostInput::Done(done));
                }
                follower::HostEffect::Order(rank, order) => self.order(attempt, machine, rank, &order),
                follower::HostEffect::Kill(rank) => {
                    self.end_rank(attempt, machine, rank, RankExit { code: None, signal: Some(9) });
                }
                follower::HostEffect::End(outcome) => {
                    if outcome.is_err()
                        && let Some(agent) = self.agents.get_mut(&(attempt, machine))
                    {
                        agent.work.clear();
                    }
                    self.close(attempt, machine);
                }
            }
        }
    }

    /// Delivers a host's message to the leader of its attempt.
    fn told(&mut self, attempt: AttemptId, machine: usize, message: HostMessage) {
        let leads = self.agents.get(&(attempt, machine)).is_some_and(Agent::leads);
        if leads {
            self.tell_leader(attempt, machine, leader::AttemptInput::Host(LEADER_HOST, message));
        } else {
            self.send_to_leader(attempt, machine, message);
        }
    }

    /// Runs one turn of every agent's loop, and the work that is due.
    pub(super) fn work(&mut self) {
        let all: Vec<(AttemptId, usize)> = self.agents.keys().collect();
        for (attempt, machine) in all {
            if !self.is_up(machine) {
                continue;
            }
            let Some(agent) = self.agents.get_mut(&(attempt, machine)) else { continue };
            if agent.ended && agent.work.is_empty() {
                self.agents.remove(&(attempt, machine));
                continue;
            }
            agent.heartbeat.turns += 1;
            let (heartbeat, is_free) = (agent.heartbeat, self.now >= agent.busy_until);
            if is_free && let Some(work) = agent.work.pop_front() {
                let is_slow = self.now < self.places[machine].disk.slow_until;
                let agent = self.agents.get_mut(&(attempt, machine)).expect("it is at work");
                agent.busy_until = self.now + if is_slow { 30 * WORK } else { WORK };
                agent.heartbeat.work += 1;
                if let Some(cost) = &mut self.cost {
                    cost.worked(&work);
                }
                if let Some(done) = self.do_work(attempt, machine, work) {
                    self.tell_follower(attempt, machine, follower::HostInput::Done(done));
                }
            }
            self.tell_follower(attempt, machine, follower::HostInput::Tick);
            if self.agents.get(&(attempt, machine)).is_some_and(Agent::leads) {
                self.tell_leader(attempt, machine, leader::AttemptInput::Beat(LEADER_HOST, heartbeat));
                self.tell_leader(attempt, machine, leader::AttemptInput::Tick);
                self.sync(attempt, machine);
            }
        }
    }

    fn do_work(&mut self, attempt: AttemptId, machine: usize, work: HostTask) -> Option<HostMessage> {
        let is_full = self.now < self.places[machine].disk.full_until;
        let room = || if is_full { Err("no room".to_owned()) } else { Ok(()) };
        Some(match work {
            HostTask::List { folder } => {
                let found = self.places[machine].disk.named(&folder);
                let found = found.filter(|copy| copy.state > State::Partial);
                let manifest = found.map(|copy| Arc::clone(&copy.manifest));
                let files = found.map_or_else(Vec::new, |copy| copy.files.names());
                HostMessage::Listed { manifest, files }
            }
            HostTask::Fetch { folder, files, manifest } => {
                let outcome = self
                    .fetch(machine, &folder, &files)
                    .and_then(|()| room().map_err(|reason| LaunchError::Other(reason).into()));
                if outcome.is_ok() {
                    self.finish(machine, &folder, Some(manifest), State::Committed);
                }
                HostMessage::Fetched { outcome: outcome.map(|()| FetchSummary::default()) }
            }
            HostTask::FetchParts { folder, files, manifest, keep } => {
                let kept: Vec<_> =
                    files.iter().filter(|(file, _)| keep.contains(&file.name)).cloned().collect();
                let outcome = self
                    .fetch(machine, &folder, &kept)
                    .and_then(|()| room().map_err(|reason| LaunchError::Other(reason).into()))
                    .and_then(|()| self.fetch_parts(machine, &folder, &files));
                let is_here = self.places[machine].disk.named(&folder).is_some();
                if outcome.is_ok() && !kept.is_empty() {
                    self.reached.note("copied for a second host");
                }
                if outcome.is_ok() && is_here {
                    self.finish(machine, &folder, Some(manifest), State::Committed);
                }
                HostMessage::Fetched { outcome: outcome.map(|()| FetchSummary::default()) }
            }
            HostTask::ReservePorts { .. } => HostMessage::Reserved { addresses: Ok(Vec::new()) },
            HostTask::Prepare { step, manifest, copies } => {
                let folder = folder_name(step, attempt);
                let fetched = self.fetch(machine, &folder, &copies).map_err(|refusal| refusal.reason);
                let outcome = fetched.and_then(|()| room());
                if outcome.is_ok() {
                    self.finish(machine, &folder, Some(manifest), State::Prepared);
                }
                HostMessage::Prepared { step, outcome }
            }
            HostTask::SealMirror => {
                if let Some(mirror) = self.places[machine].disk.mirrors.get_mut(&attempt) {
                    mirror.flushed = mirror.records.len();
                }
                HostMessage::MirrorSealed { outcome: Ok(()) }
            }
            HostTask::Commit { step } => {
                let folder = folder_name(step, attempt);
                let is_prepared =
                    self.places[machine].disk.named(&folder).is_some_and(|copy| copy.state > State::Partial);
                if is_prepared {
                    self.finish(machine, &folder, None, State::Committed);
                }
                let outcome = if is_prepared { Ok(()) } else { Err("it is not there".to_owned()) };
                HostMessage::Committed { step, outcome }
            }
            HostTask::Retain { keep, resumed } => {
                let disk = &mut self.places[machine].disk;
                let resumed = resumed.as_deref().and_then(parse_folder_name).map(|(step, of)| (of, step));
                let all: Vec<_> = disk.committed().collect();
                for name in retention::beyond_retention(&all, keep, attempt, resumed) {
                    disk.remove(name);
                }
                disk.parts.clear();
                return None;
            }
            HostTask::Discard { step } => {
                let (disk, name) = (&mut self.places[machine].disk, (attempt, step));
                if disk.checkpoints().get(&name).is_some_and(|copy| copy.state < State::Committed) {
                    disk.remove(name);
                }
                return None;
            }
        })
    }

    fn finish(&mut self, machine: usize, folder: &str, manifest: Option<Arc<str>>, state: State) {
        if let Some((step, attempt)) = parse_folder_name(folder) {
            self.places[machine].disk.finish((attempt, step), manifest, state);
        }
    }

    /// Reports a failed launch to its controller, if the controller is reachable.
    fn refused(&mut self, attempt: AttemptId, machine: usize, reason: LaunchError) {
        self.reached.note("launch refused");
        self.controller.answers.push((attempt, machine, Err(reason)));
    }

    /// Describes the state of all agents, for messages of a failed test.
    pub(super) fn agents_in_words(&self) -> String {
        let words = |((attempt, machine), agent): (AttemptOnMachine, &Agent)| {
            let Agent { ranks, work, ended, leader, .. } = agent;
            format!(
                "attempt {attempt} on machine {machine}: {ranks:?}, work {work:?}, ended {ended}, {leader:?}\n"
            )
        };
        self.agents.iter().map(words).collect()
    }

    /// Kills a random agent and its ranks.
    pub(super) fn kill_an_agent(&mut self) {
        let all: Vec<(AttemptId, usize)> = self.agents.keys().collect();
        if let Some(key) = (!all.is_empty()).then(|| all[self.draw(all.len() as u64) as usize]) {
            self.reached.note("agent killed");
            self.note_fault([key.1], self.now);
            self.agents.remove(&key);
        }
    }
}
