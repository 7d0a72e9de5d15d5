//! The copy of a leader's record on another machine.

use super::World;
use crate::agent::SpoolRecord;
use crate::agent::messages::LeaderMessage;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::{AttemptId, frame};

impl World<'_> {
    /// A leader sends a record to the machine that mirrors it.
    pub(super) fn mirror(&mut self, attempt: AttemptId, machine: usize, record: &SpoolRecord) {
        let Some(to) = self.agents.get(&(attempt, machine)).and_then(super::agents::Agent::mirror) else {
            return;
        };
        let spool = self.places[machine].disk.spools.get(&attempt);
        let from = spool.map_or(0, |spool| spool.records.len() as u64);
        let records = BASE64_STANDARD.encode(frame::encode(record));
        self.send_to_follower(attempt, to, LeaderMessage::Mirror { from, records });
    }

    /// A machine appends what it was sent.
    pub(super) fn mirrored(&mut self, attempt: AttemptId, machine: usize, records: &str) {
        let bytes = BASE64_STANDARD.decode(records).expect("as it was sent");
        let record = frame::read(&mut bytes.as_slice()).expect("as it was sent");
        self.places[machine].disk.mirrors.entry(attempt).or_default().records.push(record);
    }

    /// The controller reads on in the copy of a record whose writer is lost.
    pub(super) fn read_mirror(&mut self, attempt: AttemptId, machine: usize) {
        let read = self.controller.read;
        let Some(mirror) = self.places[machine].disk.mirrors.get(&attempt) else { return };
        let more: Vec<SpoolRecord> = mirror.records.iter().skip(read).cloned().collect();
        for record in more {
            self.controller.read += 1;
            self.reached.note("read from a mirror");
            if let Some(input) = super::input_of(record) {
                self.tell(input);
            }
            if self.controller.machine.open() != Some(attempt) {
                return;
            }
        }
    }
}
