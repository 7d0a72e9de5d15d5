//! The oracle of the simulation: it checks every fact against the true state.

use super::World;
use crate::fact::{Fact, Verdict};
use crate::machine::{Phase, TrialInput};
use dtrain_protocol::{Rank, ResumePoint};

/// A broken promise, or a crash of the controller inside a list of effects.
pub(super) enum Broke {
    Promise(String),
    Crash,
}

pub(super) fn promise(holds: bool, words: impl FnOnce() -> String) -> Result<(), Broke> {
    if holds { Ok(()) } else { Err(Broke::Promise(words())) }
}

/// Returns the step of the durable checkpoint in a fact, if it has one.
pub(super) fn step_of(fact: &Fact) -> Option<u64> {
    match fact {
        Fact::CheckpointCommitted { step, .. } => Some(step.0),
        _ => None,
    }
}

impl World<'_> {
    /// Checks the invariants that hold after every event.
    pub(super) fn holds(&self) -> Result<(), String> {
        let (open, newest) = (self.machine.open_attempt(), self.machine.newest_checkpoint());
        if let Some(live) = self.live.as_ref().filter(|live| open != Some(live.attempt)) {
            return Err(format!("at most one live attempt: {} lives, and {open:?} is open", live.attempt));
        }
        if newest != self.counted.last() {
            let counted = self.counted.last();
            return Err(format!(
                "an attempt goes on from the newest durable checkpoint {counted:?}, not from {newest:?}"
            ));
        }
        let is_over = matches!(self.ledger.last(), Some(Fact::TrialEnded { .. }));
        if is_over == self.machine.verdict().is_some() {
            Ok(())
        } else {
            Err(format!(
                "a trial ends with a reason: {:?} and {:?}",
                self.ledger.last(),
                self.machine.verdict()
            ))
        }
    }

    /// Checks a fact against the true state, then stores it.
    pub(super) fn record(&mut self, fact: Fact) -> Result<(), Broke> {
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
            Fact::CheckpointCommitted { attempt, step, folder: at } => {
                let is_found = open.is_none() && self.machine.phase == Phase::Discovering;
                promise(open == Some(*attempt) || is_found, || {
                    format!("a message of an older attempt changes nothing: {attempt} is not open")
                })?;
                promise(!self.refused.contains(at), || {
                    format!("a refused checkpoint is not counted again: {at:?}")
                })?;
                if is_found {
                    self.reached.note("checkpoint found");
                }
                let ranks = match self.spools[attempt].first() {
                    Some(TrialInput::Began { ranks, .. }) => *ranks,
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
                self.refused.insert(folder.clone());
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
}
