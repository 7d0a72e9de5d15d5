//! A viewer of a trial: follows it by reading the spools on this machine, without driving or changing it.

use super::{DriveOutcome, lock};
use crate::fact::{Fact, Ledger, LedgerError};
use crate::files;
use crate::home::{Home, TrialFolder};
use crate::machine::TrialMachine;
use crate::spool::{SpoolEnd, SpoolReader, SpoolRecord};
use crate::trial_event::{ControllerStatus, Observer, TrialEvent};
use dtrain_protocol::{AttemptId, TrialId};
use std::fs;
use std::io::{self, BufReader, Seek, SeekFrom};

/// A reader of a trial's spools. Any number of viewers may follow one trial.
pub struct Viewer {
    folder: TrialFolder,
    /// The attempt of the current spool, the bytes read of it, and whether the rest is damaged.
    attempt: AttemptId,
    offset: u64,
    is_damaged: bool,
}

impl Viewer {
    /// Follows `trial` from the first attempt after `attempt`; attempt 0 precedes all others.
    pub fn after(home: &Home, trial: &TrialId, attempt: AttemptId) -> Self {
        Self::at(home, trial, attempt, 0)
    }

    /// Follows `trial` from byte `offset` of the spool of `attempt`, such as the first record that the
    /// history lacks.
    pub fn at(home: &Home, trial: &TrialId, attempt: AttemptId, offset: u64) -> Self {
        Self { folder: home.trial(trial), attempt, offset, is_damaged: false }
    }

    /// Shows all records written since the last call. Shows nothing for a trial whose agent is on another
    /// host.
    pub fn show_new_records(&mut self, observer: &mut dyn Observer) -> io::Result<()> {
        loop {
            if !self.is_damaged {
                self.read(observer)?;
            }
            let Some(next) = self.next()? else { return Ok(()) };
            (self.attempt, self.offset, self.is_damaged) = (next, 0, false);
        }
    }

    /// Returns the process id of the trial's controller; `None` if the trial has none.
    pub fn controller(&self) -> Option<u32> {
        lock::holder(&self.folder)
    }

    fn read(&mut self, observer: &mut dyn Observer) -> io::Result<()> {
        let path = self.folder.spool(self.attempt);
        let mut spool = match files::open(&path) {
            Ok(spool) => spool,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        spool.seek(SeekFrom::Start(self.offset))?;
        let mut reader = SpoolReader::at(self.offset, BufReader::new(spool));
        loop {
            match reader.next() {
                Ok(record) => observer.observe(&trial_event(record)),
                Err(SpoolEnd::End) => break,
                Err(SpoolEnd::Damaged(error)) => {
                    let (offset, reason) = (reader.offset(), error.to_string());
                    observer.observe(&TrialEvent::Status(ControllerStatus::SpoolDamaged {
                        spool: path,
                        offset,
                        reason,
                    }));
                    self.is_damaged = true;
                    break;
                }
            }
        }
        self.offset = reader.offset();
        Ok(())
    }

    /// Returns the first attempt after the current one that has a spool.
    fn next(&self) -> io::Result<Option<AttemptId>> {
        let folder = self.folder.spool(self.attempt);
        let entries = match folder.parent().map(fs::read_dir) {
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Some(Ok(entries)) => entries,
            Some(Err(_)) | None => return Ok(None),
        };
        let mut next = None;
        for entry in entries {
            let name = entry?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix("attempt-")?.strip_suffix(".spool")?.parse().ok());
            let later = number.map(AttemptId).filter(|attempt| *attempt > self.attempt);
            next = next.into_iter().chain(later).min();
        }
        Ok(next)
    }
}

fn trial_event(record: SpoolRecord) -> TrialEvent {
    match record {
        SpoolRecord::Began { attempt, ranks } => {
            TrialEvent::Status(ControllerStatus::Launching { attempt, ranks, from: None })
        }
        SpoolRecord::Event(stamped) => TrialEvent::Event(stamped),
        SpoolRecord::Committed { attempt, step, folder } => {
            TrialEvent::Record(Fact::CheckpointCommitted { attempt, step, folder })
        }
        SpoolRecord::CommitFailed { step, reason, .. } => {
            TrialEvent::Status(ControllerStatus::CommitFailed { step, reason })
        }
        SpoolRecord::TargetReached { attempt } => {
            TrialEvent::Status(ControllerStatus::target_reached(attempt))
        }
        SpoolRecord::Unreadable { at, reason } => {
            TrialEvent::Status(ControllerStatus::SpoolRecordSkipped { offset: at, reason })
        }
        SpoolRecord::Over { attempt, ended } => TrialEvent::Record(Fact::AttemptEnded { attempt, ended }),
    }
}

/// Returns the outcome of a trial from its records; `None` while it runs, and for a lost trial.
pub fn outcome_of(ledger: &dyn Ledger, trial: &TrialId) -> Result<Option<DriveOutcome>, LedgerError> {
    let (machine, _) = TrialMachine::replay(&ledger.facts(trial)?);
    let verdict = machine.verdict().filter(|_| machine.open_attempt().is_none()).cloned();
    Ok(verdict.map(|verdict| DriveOutcome::Ended {
        verdict,
        checkpoint: machine.newest_checkpoint().cloned(),
        attempts: machine.attempt().0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{StepId, frame};
    use std::io::Write;

    fn all(viewer: &mut Viewer) -> Vec<TrialEvent> {
        let mut found = Vec::new();
        viewer.show_new_records(&mut |seen: &TrialEvent| found.push(seen.clone())).expect("readable");
        found
    }

    fn failed(attempt: u64, step: u64) -> SpoolRecord {
        SpoolRecord::CommitFailed { attempt: AttemptId(attempt), step: StepId(step), reason: String::new() }
    }

    #[test]
    fn news_are_shown_once_over_all_attempts_and_a_torn_record_when_it_is_whole() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (home, trial) = (Home::at(root.path()), TrialId("01J".into()));
        let folder = home.trial(&trial);
        let mut viewer = Viewer::after(&home, &trial, AttemptId(0));
        assert_eq!(all(&mut viewer), [], "there is no folder yet");
        folder.create().expect("a folder");
        let bytes = frame::encode(&failed(2, 1));
        let mut spool = fs::File::create(folder.spool(AttemptId(2))).expect("a spool");
        spool.write_all(&[&bytes[..], &bytes[..5]].concat()).expect("room");
        assert_eq!(all(&mut viewer), [trial_event(failed(2, 1))], "attempt 1 was never launched");
        assert_eq!(all(&mut viewer), []);
        spool.write_all(&bytes[5..]).expect("room");
        std::fs::write(folder.spool(AttemptId(10)), frame::encode(&failed(10, 2))).expect("room");
        assert_eq!(all(&mut viewer), [trial_event(failed(2, 1)), trial_event(failed(10, 2))]);
        assert_eq!(viewer.controller(), None);
        let mut second = Viewer::at(&home, &trial, AttemptId(2), bytes.len() as u64);
        assert_eq!(
            all(&mut second),
            [trial_event(failed(2, 1)), trial_event(failed(10, 2))],
            "the first was known"
        );
    }
}
