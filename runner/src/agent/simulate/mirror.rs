//! The simulated spool of a leader, and its mirror on another machine.

use super::World;
use super::bugs::Bug;
use super::network::Endpoint;
use crate::agent::messages::LeaderMessage;
use crate::spool::SpoolRecord;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::{AttemptId, frame};

impl World<'_> {
    /// Appends a record to a leader's spool.
    pub(super) fn spool(&mut self, attempt: AttemptId, machine: usize, record: SpoolRecord) {
        if let SpoolRecord::Committed { step, .. } = &record {
            self.committed.insert((attempt, *step));
        }
        if let Some(cost) = &mut self.cost {
            cost.spooled(&record);
        }
        if let Some(agent) = self.agents.get_mut(&(attempt, machine)) {
            agent.must_sync |= record.must_be_durable();
            if agent.mirror().is_some() {
                agent.unmirrored.push(record.clone());
            }
        }
        self.places[machine].disk.spools.entry(attempt).or_default().records.push(record);
    }

    /// Flushes a leader's spool if needed, and sends new records to its mirror. One flush and one message
    /// cover many records.
    pub(super) fn sync(&mut self, attempt: AttemptId, machine: usize) {
        let Some(agent) = self.agents.get_mut(&(attempt, machine)).filter(|agent| agent.leads()) else {
            return;
        };
        let Some(spool) = self.places[machine].disk.spools.get_mut(&attempt) else { return };
        if std::mem::take(&mut agent.must_sync) || spool.is_due(self.now) {
            spool.flush(self.now);
            if let Some(cost) = &mut self.cost {
                cost.spool_fsyncs += 1;
            }
        }
        let new = std::mem::take(&mut agent.unmirrored);
        if let Some(to) = agent.mirror().filter(|_| !new.is_empty()) {
            let from = (spool.records.len() - new.len()) as u64;
            let bytes: Vec<u8> = new.iter().flat_map(frame::encode).collect();
            let records = BASE64_STANDARD.encode(bytes);
            self.send_to_follower(attempt, to, LeaderMessage::Mirror { from, records });
        }
    }

    /// Appends records to a mirror, unless earlier ones are missing. Offsets count records here, not bytes.
    pub(super) fn mirrored(&mut self, attempt: AttemptId, machine: usize, from: u64, records: &str) {
        let bytes = BASE64_STANDARD.decode(records).expect("as it was sent");
        let mut bytes = bytes.as_slice();
        let mirror = self.places[machine].disk.mirrors.entry(attempt).or_default();
        if mirror.records.len() as u64 == from {
            while !bytes.is_empty() {
                mirror.records.push(frame::read(&mut bytes).expect("as it was sent"));
            }
        }
    }

    /// Returns the machine with the mirror of an attempt's spool, if the controller reaches it.
    pub(super) fn mirror_of(&self, attempt: AttemptId) -> Option<usize> {
        let mirror = *self.controller.launched.get(&attempt)?.get(1)?;
        self.talk(Endpoint::Controller, Endpoint::Machine(mirror)).then_some(mirror)
    }

    /// Reads on in the mirror of an attempt's spool whose leader is gone or lost.
    pub(super) fn read_mirror(&mut self, attempt: AttemptId) {
        let Some(machine) = self.mirror_of(attempt).filter(|_| !self.has(Bug::MirrorNotRead)) else { return };
        while let Some(mirror) = self.places[machine].disk.mirrors.get(&attempt)
            && let Some(record) = mirror.records.get(self.controller.read).cloned()
        {
            self.controller.read += 1;
            self.reached.note("read from a mirror");
            if let Some(input) = self.controller.input_of(record) {
                self.tell(input);
            }
            if self.controller.machine.open_attempt() != Some(attempt) {
                return;
            }
        }
    }
}
