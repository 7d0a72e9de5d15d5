//! The simulated controller: it feeds the trial's state machine and carries out its effects, and may crash
//! between any two of them.

use super::ranks::folder;
use super::truth::{Broke, promise};
use super::{Fault, Live, World};
use crate::fact::Fact;
use crate::machine::{Millis, TrialEffect, TrialInput, TrialMachine};
use dtrain_protocol::{AttemptId, Failure, ResumePoint};
use std::path::PathBuf;

impl World<'_> {
    /// Feeds the state machine and carries out its effects; the controller may crash between any two of them.
    pub(super) fn tell(&mut self, input: TrialInput) -> Result<(), String> {
        let effects = self.machine.step(Millis(self.now), input);
        self.carry_out(effects)
    }

    pub(super) fn carry_out(&mut self, effects: Vec<TrialEffect>) -> Result<(), String> {
        let mut effects = effects;
        loop {
            let crashed = effects
                .drain(..)
                .try_for_each(|effect| if self.chance(3) { Err(Broke::Crash) } else { self.perform(effect) });
            match crashed {
                Ok(()) => return self.holds(),
                Err(Broke::Promise(words)) => return Err(words),
                Err(Broke::Crash) => effects = self.replay(),
            }
        }
    }

    pub(super) fn replay(&mut self) -> Vec<TrialEffect> {
        self.reached.note("controller crash");
        if self.fault == Fault::LedgerForgets {
            self.ledger.pop();
        }
        let (mut machine, effects) = TrialMachine::replay(&self.ledger);
        machine.broken = self.machine.broken;
        self.machine = machine;
        (self.read, self.now) = (0, 0);
        self.owed.clear();
        effects
    }

    fn perform(&mut self, effect: TrialEffect) -> Result<(), Broke> {
        match effect {
            TrialEffect::Record(fact) => self.record(fact),
            TrialEffect::Discover => self.look(),
            TrialEffect::Launch { attempt, from } => self.launch(attempt, from),
            TrialEffect::SendStop { attempt } => {
                if let Some(live) = self.live.as_mut().filter(|live| live.attempt == attempt) {
                    live.asked_to_stop = true;
                    self.reached.note("asked to stop");
                }
                Ok(())
            }
            TrialEffect::Kill { attempt } => {
                self.reached.note("kill");
                self.live.take_if(|live| live.attempt == attempt);
                Ok(())
            }
            TrialEffect::WakeAt(_) => Ok(()),
            TrialEffect::Done { verdict } => {
                let kept =
                    matches!(self.ledger.last(), Some(Fact::TrialEnded { verdict: v }) if *v == verdict);
                promise(kept, || format!("a trial ends with a reason: {verdict:?} was not recorded"))
            }
        }
    }

    /// Searches all disks; they hold everything that was ever committed.
    fn look(&mut self) -> Result<(), Broke> {
        promise(self.live.is_none(), || "at most one live attempt: the next is prepared beside it".into())?;
        let all = self.committed.iter().map(|(attempt, step)| (*attempt, *step, folder(*attempt, *step)));
        let all: Vec<_> = all.collect();
        let good = all.iter().rfind(|(.., at)| !self.refused.contains(at));
        self.shown = good.map(|(.., at)| at.clone());
        let wanted =
            all.into_iter().filter(|(attempt, step, at)| self.machine.would_adopt(*attempt, *step, at));
        self.owed.retain(|owed| !owed.is_from_discovery());
        self.owed.extend(wanted.map(|(attempt, step, folder)| TrialInput::Found { attempt, step, folder }));
        self.owed.push_back(TrialInput::DiscoveryDone);
        Ok(())
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
        let is_counted = |shown: &PathBuf| self.counted.iter().any(|point| point.folder == *shown);
        promise(self.shown.as_ref().is_none_or(is_counted), || {
            format!("what a disk has is not forgotten: {:?} is not counted", self.shown)
        })?;
        self.read = 0;
        let drawn = self.draw(3) as u32;
        let ranks = self.crew.unwrap_or(1 + drawn);
        match &from {
            _ if ranks == 0 => {
                self.reached.note("no host answers");
                let failure = Failure::Infrastructure { host: None, detail: "no host answers".into() };
                self.owed.push_back(TrialInput::LaunchFailed { attempt, failure });
            }
            Some(point) if self.chance(20) => {
                self.reached.note("checkpoint refused at launch");
                let failure =
                    Failure::CorruptCheckpoint { folder: point.folder.clone(), detail: "file 0".into() };
                self.owed.push_back(TrialInput::LaunchFailed { attempt, failure });
            }
            _ if self.chance(12) => {
                self.reached.note("failed launch");
                let failure = Failure::Other("no such host".into());
                self.owed.push_back(TrialInput::LaunchFailed { attempt, failure });
            }
            _ => {
                self.reached.note(if from.is_some() { "resume" } else { "fresh start" });
                let step = from.as_ref().map_or(0, |point| point.step.0);
                let live = Live { attempt, ranks, step, from, failed: None, asked_to_stop: false };
                if self.crew.is_none() && self.chance(10) {
                    self.reached.note("late launch");
                    self.late = Some(live);
                } else {
                    self.begin(live);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, live: Live) {
        let (attempt, ranks) = (live.attempt, live.ranks);
        self.spools.insert(attempt, vec![TrialInput::Began { attempt, ranks }]);
        self.live = Some(live);
    }

    /// Delivers a late launch to its host, which refuses it if its attempt was reported gone.
    pub(super) fn arrive(&mut self) -> Result<(), String> {
        let Some(late) = self.late.take() else { return Ok(()) };
        if self.buried.contains(&late.attempt) && self.fault != Fault::LateLaunch {
            self.reached.note("late launch refused");
        } else {
            self.begin(late);
        }
        self.holds()
    }

    /// Loses the spool of the open attempt once the attempt is dead: unread messages are lost.
    pub(super) fn lose_record(&mut self) {
        let Some(open) = self.machine.open_attempt().filter(|_| self.live.is_none() && self.late.is_none())
        else {
            return;
        };
        let read = self.read;
        if let Some(spool) = self.spools.get_mut(&open).filter(|spool| spool.len() > read) {
            self.reached.note("record lost");
            // The first message stays: it tells the number of ranks.
            spool.truncate(read.max(1));
        }
    }

    /// Delivers one input: a pending answer, else the next message of the open attempt, else that the attempt
    /// is gone.
    pub(super) fn deliver(&mut self) -> Result<(), String> {
        if let Some(input) = self.owed.pop_front() {
            return self.tell(input);
        }
        let Some(open) = self.machine.open_attempt() else { return Ok(()) };
        if let Some(input) = self.spools.get(&open).and_then(|spool| spool.get(self.read)).cloned() {
            self.read += 1;
            return self.tell(input);
        }
        if self.live.as_ref().is_none_or(|live| live.attempt != open) {
            self.reached.note("found gone");
            self.buried.insert(open);
            return self.tell(TrialInput::Gone { attempt: open, lost: None });
        }
        Ok(())
    }

    /// Delivers a message of an attempt that is not open; checks that nothing changes.
    pub(super) fn stale(&mut self) -> Result<(), String> {
        let open = self.machine.open_attempt();
        let old: Vec<TrialInput> =
            self.spools.iter().filter(|(a, _)| Some(**a) != open).flat_map(|(_, s)| s.clone()).collect();
        if old.is_empty() {
            return Ok(());
        }
        self.reached.note("stale message");
        let input = old[self.draw(old.len() as u64) as usize].clone();
        let before = self.machine.clone();
        let effects = self.machine.step(Millis(self.now), input.clone());
        if effects.is_empty() && before == self.machine {
            return Ok(());
        }
        Err(format!("a message of an older attempt changes nothing: {input:?} led to {effects:?}"))
    }

    /// Delivers a message again that was already read; checks that it has no effect.
    pub(super) fn repeat(&mut self) -> Result<(), String> {
        let Some(spool) = self.machine.open_attempt().and_then(|open| self.spools.get(&open)) else {
            return Ok(());
        };
        let known = spool[..self.read.min(spool.len())].to_vec();
        if known.is_empty() {
            return Ok(());
        }
        self.reached.note("repeated message");
        let input = known[self.draw(known.len() as u64) as usize].clone();
        let effects = self.machine.step(Millis(self.now), input.clone());
        let harmless = effects.iter().all(|effect| matches!(effect, TrialEffect::WakeAt(_)));
        if harmless {
            Ok(())
        } else {
            Err(format!("a repeated message changes nothing: {input:?} led to {effects:?}"))
        }
    }
}
