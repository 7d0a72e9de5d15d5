//! The simulated ranks and their agent: they train, save, commit, make false claims and fail.

use super::{LAST, Live, World};
use crate::fact::AttemptEnd;
use crate::machine::{TrialInput, more_severe};
use dtrain_protocol::{
    AttemptId, Event, Failure, PhaseTimes, Rank, ResidentBytes, StampedEvent, StepFigures, StepId, StopReason,
};
use std::path::PathBuf;

impl World<'_> {
    /// Advances the work of the ranks and the agent by one piece.
    pub(super) fn train(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let attempt = live.attempt;
        match self.draw(6) {
            _ if live.failed.is_some() => {
                // A hung agent never reports the end: the machine's own deadline must find it.
                if !self.chance(30) {
                    let cause = live.failed.clone().expect("it was just asked");
                    self.spool(attempt, TrialInput::Over { attempt, ended: AttemptEnd::Lost(cause) });
                    return;
                }
                self.reached.note("hung agent");
            }
            0 | 1 if live.step < LAST => {
                live.step += 1;
                let figures = figures(live.step);
                self.say(attempt, Rank(0), Event::Step(figures));
            }
            2 => {
                let rank = Rank(self.draw(u64::from(live.ranks)) as u32);
                self.save(&live, rank);
            }
            3 => self.commit(&live),
            4 if self.chance(30) => self.claim(&live),
            _ if live.step >= LAST || live.asked_to_stop => {
                for rank in 0..live.ranks {
                    self.save(&live, Rank(rank));
                }
                self.commit(&live);
                let reason = if live.step >= LAST { StopReason::Complete } else { StopReason::Ordered };
                for rank in 0..live.ranks {
                    self.say(attempt, Rank(rank), Event::Finished { step: StepId(live.step), reason });
                }
                self.finished.insert(attempt);
                // The agent is lost before its last message: the end must be inferred.
                if !self.chance(20) {
                    self.spool(attempt, TrialInput::Over { attempt, ended: AttemptEnd::Finished(reason) });
                }
                return;
            }
            _ => {}
        }
        self.live = Some(live);
    }

    fn save(&mut self, live: &Live, rank: Rank) {
        let step = StepId(live.step);
        let claimed = self.claimed.contains(&(live.attempt, step));
        if live.step > 0 && !claimed && self.saved.insert((live.attempt, step, rank)) {
            let at = folder(live.attempt, step);
            self.say(
                live.attempt,
                rank,
                Event::Saved { step, folder: at, files: Vec::new(), stall_seconds: 0.0 },
            );
        }
    }

    fn commit(&mut self, live: &Live) {
        let (attempt, step) = (live.attempt, StepId(live.step));
        let all = (0..live.ranks).all(|rank| self.saved.contains(&(attempt, step, Rank(rank))));
        if all && self.committed.insert((attempt, step)) {
            self.spool(attempt, TrialInput::Committed { attempt, step, folder: folder(attempt, step) });
        }
    }

    /// Claims, as a faulty agent would, a checkpoint that not all ranks saved.
    fn claim(&mut self, live: &Live) {
        let (attempt, step) = (live.attempt, StepId(live.step));
        let all = (0..live.ranks).all(|rank| self.saved.contains(&(attempt, step, Rank(rank))));
        if !all && live.step < LAST && !live.asked_to_stop && self.claimed.insert((attempt, step)) {
            self.reached.note("false claim");
            self.spool(attempt, TrialInput::Committed { attempt, step, folder: folder(attempt, step) });
        }
    }

    /// Fails a random rank; the other ranks report a lost peer.
    pub(super) fn fail(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let lost = Failure::PeerLost { peer: None, detail: "closed".into() };
        let failure = match (self.draw(20), &live.from) {
            (0, _) => Failure::OutOfMemory { detail: "8 GiB".into() },
            (1, _) => Failure::NotFinite { step: StepId(live.step), figure: "loss".into() },
            (2, _) if live.ranks == 1 => Failure::Data("no such file".into()),
            (2, _) => {
                self.reached.note("no data on one host");
                Failure::DataOn { host: None, detail: "no such file".into() }
            }
            (3..9, Some(point)) => {
                Failure::CorruptCheckpoint { folder: point.folder.clone(), detail: "hash of chunk 0".into() }
            }
            (9..12, _) => Failure::Other("worker".into()),
            _ => Failure::Exited { code: None, signal: Some(9) },
        };
        self.reached.note("rank lost");
        let rank = Rank(self.draw(u64::from(live.ranks)) as u32);
        for failure in [lost, failure] {
            live.failed = Some(more_severe(live.failed.take(), failure.clone()));
            self.say(live.attempt, rank, Event::Failed(failure));
        }
        self.live = Some(live);
    }

    pub(super) fn say(&mut self, attempt: AttemptId, rank: Rank, event: Event) {
        let sequence = self.spools[&attempt].len() as u64;
        self.spool(attempt, TrialInput::Event(StampedEvent { attempt, rank, sequence, at_ms: 0, event }));
    }

    pub(super) fn spool(&mut self, attempt: AttemptId, input: TrialInput) {
        self.spools.get_mut(&attempt).expect("a live attempt has a spool").push(input);
    }
}

pub(super) fn figures(step: u64) -> StepFigures {
    StepFigures {
        step: StepId(step),
        loss: 1.0,
        gradient_norm: Some(1.0),
        learning_rate: 1e-3,
        elapsed: None,
        noise: None,
        tokens: 1,
        times: PhaseTimes::default(),
        memory_bytes: 1,
        sent_bytes: 0,
        held: ResidentBytes::default(),
    }
}

pub(super) fn folder(attempt: AttemptId, step: StepId) -> PathBuf {
    dtrain_protocol::checkpoint::folder_name(step, attempt).into()
}
