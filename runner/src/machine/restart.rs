//! Restart after an attempt was lost, such as by a killed rank or a lost host: a relaunch after a backoff, or
//! the verdict that ends the trial.

use super::backoff::{MACHINES_FAIL_FOR_MS, backoff_ms};
use super::blame::Blame;
use super::{Millis, Phase, TrialEffect, TrialMachine};
use crate::fact::{AttemptEnd, Fact, Verdict};
use dtrain_protocol::{Failure, ResumePoint, StopReason};
use std::path::Path;

/// Number of attempts without a new step, lost to unusable data on one host, after which the trial fails:
/// other hosts get one try.
const ATTEMPTS_AT_DATA: u32 = 2;

impl TrialMachine {
    /// Returns `true` if the user asked the trial to stop.
    pub fn is_stopping(&self) -> bool {
        self.stops > 0
    }

    /// Returns `true` if no attempt is alive and none is scheduled, and the trial has not ended.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn restart_or_give_up(
        &mut self,
        now: Millis,
        ended: AttemptEnd,
        effects: &mut Vec<TrialEffect>,
    ) {
        let ended = self.lost_if_unsaved(ended);
        if let AttemptEnd::Lost(Failure::CorruptCheckpoint { folder, detail }) = &ended {
            self.refuse(folder, detail, effects);
        }
        let attempt = self.attempt;
        self.record(Fact::AttemptEnded { attempt, ended: ended.clone() }, effects);
        if matches!(blame_for(&ended), Some(Blame::Machines)) && self.failures.machines > 0 {
            self.troubled_since.get_or_insert(now);
        }
        match self.verdict_after(&ended).or_else(|| self.verdict_on_timeout(now, &ended)) {
            Some(verdict) => self.end(verdict, effects),
            None if self.excused || is_departure(&ended) => self.discover_checkpoints(effects),
            None => {
                let failures = blame_for(&ended).map_or(0, |blame| self.failures.get(blame));
                let until = now.after(backoff_ms(failures));
                self.phase = Phase::Waiting(until);
                effects.push(TrialEffect::WakeAt(until));
            }
        }
    }

    pub(super) fn launch_failed(&mut self, now: Millis, failure: &Failure, effects: &mut Vec<TrialEffect>) {
        if let Failure::CorruptCheckpoint { folder, detail } = failure {
            self.refuse(folder, detail, effects);
        }
        self.restart_or_give_up(now, AttemptEnd::NotLaunched(failure.clone()), effects);
    }

    /// Turns a finished attempt into a lost one if no checkpoint has its last step, because its result cannot
    /// be read.
    fn lost_if_unsaved(&self, ended: AttemptEnd) -> AttemptEnd {
        match (ended, self.reports.uncommitted) {
            (AttemptEnd::Finished(_), Some(step)) if step >= self.reached && !self.is_durable(step) => {
                let reason = "its checkpoint could not be committed".to_owned();
                AttemptEnd::Lost(Failure::Unsaved { step, reason })
            }
            (ended, _) => ended,
        }
    }

    /// Records that a checkpoint is unreadable, so that no attempt resumes from it. Ignores checkpoints that
    /// are not known.
    fn refuse(&mut self, folder: &Path, reason: &str, effects: &mut Vec<TrialEffect>) {
        // Each host keeps the same checkpoint in a folder of its own.
        let is_meant = |point: &ResumePoint| point.folder.file_name() == folder.file_name();
        let known = self.checkpoints.iter().find(|(_, point)| is_meant(point));
        if let Some(step) = known.map(|(_, point)| point.step) {
            let (folder, reason) = (folder.to_owned(), reason.to_owned());
            self.record(Fact::CheckpointRefused { step, folder, reason }, effects);
        }
    }

    /// Returns the verdict after the newest attempt ended with `ended`; `None` if another attempt is due.
    pub(super) fn verdict_after(&self, ended: &AttemptEnd) -> Option<Verdict> {
        let given_up = blame_for(ended).is_some_and(|blame| self.failures.get(blame) >= blame.attempts());
        terminal_verdict(ended).or_else(|| match ended {
            AttemptEnd::Finished(_) => None,
            _ if self.stops > 0 => Some(Verdict::Stopped),
            // The same exit code twice without a new step: a restart would not help.
            AttemptEnd::Lost(failure @ Failure::Command { code: Some(_), signal: None, .. })
                if self.failures.training >= 2 =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(failure @ Failure::DataOn { .. }) if self.data_failures >= ATTEMPTS_AT_DATA => {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure) => {
                given_up.then(|| Verdict::Failed(failure.clone()))
            }
        })
    }

    /// Returns the verdict if machine failures have prevented progress for too long; `None` otherwise.
    fn verdict_on_timeout(&self, now: Millis, ended: &AttemptEnd) -> Option<Verdict> {
        let is_long = self.troubled_since.is_some_and(|since| now >= since.after(MACHINES_FAIL_FOR_MS));
        match ended {
            AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure)
                if is_long && Blame::of(failure) == Blame::Machines =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(_) | AttemptEnd::NotLaunched(_) | AttemptEnd::Finished(_) => None,
        }
    }
}

/// Returns `true` if an attempt ended because the hosts of the trial change. That is no failure, and the next one
/// follows at once.
pub(super) fn is_departure(ended: &AttemptEnd) -> bool {
    matches!(ended, AttemptEnd::Lost(Failure::HostLeft { .. } | Failure::Regrouped))
}

/// Returns the party to blame for the end of an attempt; `None` if it finished.
fn blame_for(ended: &AttemptEnd) -> Option<Blame> {
    match ended {
        AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure) => Some(Blame::of(failure)),
        AttemptEnd::Finished(_) => None,
    }
}

/// Returns the verdict if the end of an attempt alone decides it, because a restart would end the same way;
/// `None` otherwise.
fn terminal_verdict(ended: &AttemptEnd) -> Option<Verdict> {
    match ended {
        AttemptEnd::Finished(StopReason::Ordered) => Some(Verdict::Stopped),
        AttemptEnd::Finished(reason @ (StopReason::Complete | StopReason::Time | StopReason::Target)) => {
            Some(Verdict::Completed(*reason))
        }
        AttemptEnd::Lost(failure) => match failure {
            Failure::OutOfMemory { .. } => Some(Verdict::OutOfMemory),
            Failure::NotFinite { .. } => Some(Verdict::Diverged),
            Failure::Data(_) | Failure::OtherTraining { .. } => Some(Verdict::Failed(failure.clone())),
            Failure::Command { code: Some(code), signal: None, last } if is_permanent(*code, last) => {
                Some(Verdict::Failed(failure.clone()))
            }
            Failure::PeerLost { .. }
            | Failure::HostLost { .. }
            | Failure::HostLeft { .. }
            | Failure::Regrouped
            | Failure::Storage { .. }
            | Failure::Infrastructure { .. }
            | Failure::Stuck { .. }
            | Failure::DataOn { .. }
            | Failure::CorruptCheckpoint { .. }
            | Failure::Exited { .. }
            | Failure::Command { .. }
            | Failure::Unsaved { .. }
            | Failure::Other(_) => None,
        },
        AttemptEnd::NotLaunched(_) => None,
    }
}

/// First line of a traceback of Python.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// Returns `true` if a program that ended with `code` and last printed `last` would fail again: it cannot be
/// started, or it raised an exception of its own.
fn is_permanent(code: i32, last: &[String]) -> bool {
    let not_started = matches!(code, 126 | 127);
    let is_transient = |line: &str| TRANSIENT.iter().any(|word| line.to_ascii_lowercase().contains(word));
    let has_traceback = last.iter().any(|line| line.contains(TRACEBACK));
    not_started || (has_traceback && !without_frames(last).any(is_transient))
}

/// Returns the lines that are not frames of a traceback. A frame has the path of a file and a line of source,
/// whose words say nothing about the cause. It is indented by two spaces or more, after a prefix such as
/// `[rank0]: `.
fn without_frames(lines: &[String]) -> impl Iterator<Item = &str> {
    let mut prefix = None;
    lines.iter().map(String::as_str).filter(move |line| {
        if let Some((before, _)) = line.split_once(TRACEBACK) {
            prefix = Some(before);
        }
        !prefix.is_some_and(|prefix| line.strip_prefix(prefix).is_some_and(|line| line.starts_with("  ")))
    })
}

/// Words, in lower case, that occur in exceptions that another rank, the network or the machine may have
/// caused.
const TRANSIENT: &[&str] = &[
    "connection",
    "timed out",
    "timeout",
    "nccl",
    "gloo",
    "mpi",
    "socket",
    "peer",
    "distbackend",
    "diststore",
    "distnetwork",
    "broken pipe",
    "brokenpipe",
    "cuda",
    "out of memory",
    "memoryerror",
    "unavailable",
    "rendezvous",
    "coordinator",
    "heartbeat",
    "no space left",
    "address already in use",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_another_training_ends_the_trial_and_is_not_held_to_be_corrupt() {
        let other = Failure::OtherTraining { folder: "/a".into(), detail: "batch".into() };
        assert_eq!(terminal_verdict(&AttemptEnd::Lost(other.clone())), Some(Verdict::Failed(other)));
        let command = |code, last: &[&str]| {
            let last = last.iter().map(|line| (*line).to_owned()).collect();
            terminal_verdict(&AttemptEnd::Lost(Failure::Command { code: Some(code), signal: None, last }))
        };
        let traceback = "Traceback (most recent call last):";
        assert!(command(1, &[traceback, "  File \"train.py\", line 7", "ValueError: bad"]).is_some());
        assert!(command(1, &[traceback, "ModuleNotFoundError: No module named 'torch'"]).is_some());
        assert!(command(127, &["python4: not found"]).is_some());
        assert!(command(1, &[traceback, "RuntimeError: Connection closed by peer"]).is_none());
        assert!(command(1, &["step 3 loss 2"]).is_none(), "nothing says why");
        let frames = ["  File \"/tmp/.tmpIcuda/train.py\", line 4, in <module>", "    open_connection()"];
        assert!(
            command(1, &[traceback, frames[0], frames[1], "ValueError: bad batch"]).is_some(),
            "a path is no cause"
        );
        let (first, frame) = (format!("[rank0]: {traceback}"), format!("[rank0]: {}", frames[0]));
        assert!(command(1, &[&first, &frame, "[rank0]: ValueError: bad batch"]).is_some());
        assert!(command(1, &[&first, &frame, "[rank0]: RuntimeError: NCCL error"]).is_none());
        let corrupt = Failure::CorruptCheckpoint { folder: "/a".into(), detail: "file 0".into() };
        assert_eq!(terminal_verdict(&AttemptEnd::Lost(corrupt)), None);
    }
}
