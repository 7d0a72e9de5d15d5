//! The random faults of a simulation.

use super::network::Endpoint;
use super::{MachineHealth, World};

impl World<'_> {
    /// Injects one random fault.
    pub(super) fn strike(&mut self) {
        let machine = self.draw(self.setup.machines as u64) as usize;
        // One in twelve outlasts the time after which the controller gives up.
        let until =
            self.now + 500 + self.draw(30_000) + self.setup.lost_after * u64::from(self.draw(12) == 0);
        let kind = self.draw(14);
        if matches!(kind, 0..=4 | 6 | 7 | 12) {
            self.note_fault([machine], until);
        }
        match kind {
            0 | 1 => self.kill_machine(machine, until),
            2 => {
                self.reached.note("machine froze");
                self.freeze(machine, until);
            }
            3 => {
                self.reached.note("machine cut off");
                self.cut_off.insert(Endpoint::Machine(machine), until);
            }
            4 => {
                self.reached.note("cut in one direction");
                let other = match self.draw(self.setup.machines as u64 + 1) as usize {
                    other if other < self.setup.machines => {
                        self.note_fault([other], until);
                        Endpoint::Machine(other)
                    }
                    _ => Endpoint::Controller,
                };
                self.cuts.insert((Endpoint::Machine(machine), other), until);
            }
            5 => {
                self.reached.note("controller cut off");
                self.note_fault(0..self.setup.machines, until);
                self.cut_off.insert(Endpoint::Controller, until);
            }
            6 => {
                self.reached.note("disk full");
                self.places[machine].disk.full_until = until;
            }
            7 => {
                self.reached.note("disk slow");
                self.places[machine].disk.slow_until = until;
            }
            8 => self.kill_a_rank(),
            9 => self.kill_an_agent(),
            10 => {
                self.reached.note("controller crash");
                self.crash();
            }
            11 => {
                self.reached.note("controller away");
                self.controller.away_until = until;
            }
            12 => {
                self.reached.note("slow link");
                self.slow.insert(Endpoint::Machine(machine), until);
            }
            _ => {
                self.reached.note("the leader is cut off from the controller");
                if let Some(leader) =
                    self.controller.machine.open_attempt().and_then(|open| self.leader_of(open))
                {
                    self.note_fault([leader], until);
                    self.cuts.insert((Endpoint::Machine(leader), Endpoint::Controller), until);
                }
            }
        }
    }

    /// Simulates a power failure: processes are gone, and unflushed data is lost.
    fn kill_machine(&mut self, machine: usize, until: u64) {
        self.reached.note("machine died");
        self.places[machine].health = MachineHealth::Dead(until);
        self.places[machine].disk.lose_unflushed();
        self.agents.retain(|(_, on)| on != machine);
    }

    /// Ends all faults.
    pub(super) fn make_peace(&mut self) {
        self.is_chaos = false;
        self.cuts.clear();
        self.cut_off.clear();
        self.slow.clear();
        self.controller.away_until = 0;
        for place in &mut self.places {
            place.health = MachineHealth::Up;
            (place.disk.full_until, place.disk.slow_until) = (0, 0);
        }
    }
}
