//! The simulated controller's fencing: whom it asks follows the rules of the driver, and hosts that it reaches answer at
//! once.

use super::World;
use super::bugs::Bug;
use super::network::Endpoint;
use crate::launch::{
    ASK_EVERY, FencingReport, FinalFencing, KnownAttempts, hosts_to_ask, lost_hosts, spared,
};
use dtrain_protocol::AttemptId;

impl World<'_> {
    /// Returns the attempt before which no attempt may be alive, if the controller knows.
    pub(super) fn oldest_alive(&self) -> Option<AttemptId> {
        let controller = &self.controller;
        let known = KnownAttempts {
            connected: controller.connected,
            open: controller.machine.open_attempt(),
            newest: controller.machine.attempt(),
        };
        known.oldest_alive()
    }

    /// Returns the machines of the newest attempt.
    fn active(&self) -> &[usize] {
        self.controller.launched.last_key_value().map_or(&[], |(_, machines)| machines.as_slice())
    }

    /// Returns the machines that fencing leaves alone while the trial goes on.
    pub(super) fn spared(&self) -> Vec<usize> {
        spared(self.active(), self.controller.has_given_up).to_vec()
    }

    /// Ends older attempts on hosts that came back, while a controller is at work.
    pub(super) fn fence_returned(&mut self) {
        let is_due = self.now >= self.controller.fenced_at + ASK_EVERY.as_secs() * 1000;
        if !is_due || self.controller.machine.verdict().is_some() || self.has(Bug::ReturnedNotEnded) {
            return;
        }
        let may_ask = self.controller.connected.is_some() || !self.has(Bug::FencedOnlyWhileConnected);
        let Some(before) = self.oldest_alive().filter(|_| may_ask) else { return };
        self.controller.fenced_at = self.now;
        let spared = self.spared();
        for machine in hosts_to_ask(self.setup.machines, &spared) {
            // One that does not answer is asked again.
            drop(self.end_before(machine, before));
        }
    }

    /// Ends what hosts still run, at the end of the trial, and notes who does not answer.
    pub(super) fn fence_at_end(&mut self) {
        self.controller.connected = None;
        let mut report = FencingReport::default();
        if !self.has(Bug::FencedOnlyWhileConnected) {
            let names: Vec<String> = (0..self.setup.machines).map(name_of).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let lost = lost_hosts(&self.controller.ledger);
            let end = FinalFencing { last: self.controller.machine.attempt(), lost };
            let mut asked = self.controller.hosts.to_ask_at_end(&names, &self.spared(), &end);
            if self.has(Bug::OnlyLostFencedAtEnd) {
                asked.retain(|(machine, _)| end.lost.contains_key(names[*machine]));
            }
            for (machine, before) in asked {
                report.add(names[machine].to_owned(), self.end_before(machine, before));
            }
        }
        if !report.unanswered.is_empty() {
            self.reached.note("named as not fenced");
        }
        self.held.ended = Some((self.now, report.unanswered));
    }

    /// Notes that an attempt was launched on all its machines, if the controller hears of it.
    pub(super) fn launched(&mut self, attempt: AttemptId, leader: usize) {
        self.reached.note("launched");
        if self.controller.machine.open_attempt() == Some(attempt)
            && self.now >= self.controller.away_until
            && self.talk(Endpoint::Controller, Endpoint::Machine(leader))
        {
            for machine in self.controller.launched.get(&attempt).into_iter().flatten() {
                self.controller.hosts.answered(&name_of(*machine), attempt);
            }
        }
    }

    /// Asks a machine to end attempts before `before`; returns the one that it ended. `Err` if it does not answer.
    fn end_before(&mut self, machine: usize, before: AttemptId) -> Result<Option<AttemptId>, String> {
        if !self.talk(Endpoint::Controller, Endpoint::Machine(machine)) {
            return Err("it does not answer".to_owned());
        }
        let over: Vec<_> =
            self.agents.keys().filter(|(attempt, on)| *attempt < before && *on == machine).collect();
        for cell in &over {
            self.reached.note("came back and was ended");
            self.agents.remove(cell);
        }
        self.controller.hosts.answered(&name_of(machine), before);
        Ok(over.last().map(|(attempt, _)| *attempt))
    }

    /// Stops the trial as a user while faults last, and looks at what the machines run ten minutes after its end.
    pub(super) fn end_amid_faults(&mut self) {
        self.user(crate::machine::TrialInput::Stop);
        let until = self.now + self.setup.lost_after + 60_000;
        while self.controller.machine.verdict().is_none() && self.now < until {
            self.beat();
        }
        self.make_peace();
        let until = self.now + super::promises::TO_END + 2_000;
        while self.controller.machine.verdict().is_some()
            && self.broken.is_none()
            && self.now < until
            && self.agents.keys().next().is_some()
        {
            self.beat();
        }
    }
}

/// Returns the name of a machine.
pub(super) fn name_of(machine: usize) -> String {
    format!("node{machine}")
}
