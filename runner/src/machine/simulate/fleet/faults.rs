//! The faults of a simulated fleet of hosts, one every second.

use super::{Fleet, Health, Stage};
use crate::machine::TrialInput;
use dtrain_protocol::{Failure, StepId};

impl Fleet<'_> {
    /// Injects one random fault.
    pub(super) fn strike(&mut self) -> Result<(), String> {
        let kind = self.world.draw(20);
        match kind {
            0..9 => {
                let host = self.world.draw(self.hosts.len() as u64) as usize;
                self.hit(host);
            }
            9 | 10 => {
                if let Some(leader) = self.members.first().copied().filter(|_| self.world.live.is_some()) {
                    self.world.reached.note("the leader was hit");
                    self.hit(leader);
                }
            }
            11 | 12 => self.rank_fails(),
            13 | 14 => {
                return self.measured(|world| {
                    let effects = world.replay();
                    world.carry_out(effects)
                });
            }
            15 => {
                self.world.reached.note("controller away");
                self.away_until = self.clock + 500 + self.world.draw(6_000);
            }
            16 => {
                let host = self.world.draw(self.members.len().max(1) as u64) as usize;
                self.full = self.members.get(host).copied();
            }
            17 => return self.measured(|world| world.stale()),
            18 => return self.measured(|world| world.repeat()),
            _ if self.world.draw(4) == 0 => {
                // Once: a second stop would ask for a kill.
                if self.world.machine.stops == 0 {
                    return self.measured(|world| world.tell(TrialInput::Stop));
                }
            }
            _ => self.rank_fails(),
        }
        Ok(())
    }

    /// Kills, cuts off or freezes a host for a while.
    fn hit(&mut self, host: usize) {
        // Half of the faults are over before they are detected.
        let until = self.clock
            + if self.world.draw(3) == 0 {
                300 + self.world.draw(1_500)
            } else {
                2_500 + self.world.draw(20_000)
            };
        let (health, what) = match self.world.draw(3) {
            0 => (Health::Dead(until.max(self.clock + 1_000)), "host died"),
            1 => (Health::Cut(until), "host cut off"),
            _ => (Health::Frozen(until), "host froze"),
        };
        self.world.reached.note(what);
        self.hosts[host] = health;
    }

    /// Ends a rank, either by itself or because of a corrupt checkpoint.
    fn rank_fails(&mut self) {
        let Some(live) = &self.world.live else { return };
        if matches!(self.stage, Stage::Ending(..)) || live.attempt != self.attempt || !self.is_up(0) {
            return;
        }
        let (step, from) = (live.step, live.from.clone());
        let rank = self.world.draw(self.members.len() as u64) as usize;
        let failure = match (self.world.draw(8), from) {
            (0..3, Some(point)) => {
                Failure::CorruptCheckpoint { folder: point.folder, detail: "hash of chunk 0".into() }
            }
            (3, _) if self.world.draw(4) == 0 => {
                Failure::NotFinite { step: StepId(step), figure: "loss".into() }
            }
            _ => Failure::Exited { code: None, signal: Some(9) },
        };
        self.fail(rank, failure);
    }
}
