//! Staleness: gradients of batches are computed before earlier updates are made (stale synchronous
//! training).
//!
//! With `sync.staleness` above 0 a rank computes the gradients of that many further batches before it needs
//! the sum of the oldest. There is no parameter server: a server applies gradients in the order of arrival,
//! so no run can be repeated, and one host carries all traffic. Here all replicas sum the same gradients in
//! the same order, late. A rank that is slow for less than `staleness` steps delays no other, and the same
//! run gives the same bits, also after a kill. No batch is ahead when state is read.

use super::is_due;
use dtrain_protocol::{Assignment, StepId};

/// Counter of the batches whose gradients are computed and whose updates are not made yet.
///
/// All ranks compute the same numbers. At a validation, a save and the end, nothing is ahead: a run that
/// resumes from a checkpoint equals one that was never stopped.
#[derive(Debug)]
pub(super) struct PendingUpdates {
    /// Limit on the number of batches computed ahead of the one whose update is due.
    staleness: u64,
    computed: u64,
}

impl PendingUpdates {
    /// Creates the counter for a run of `replicas` with the staleness of `assignment`; a single replica
    /// waits for no other.
    pub(super) fn of(assignment: &Assignment, replicas: u32) -> Self {
        let staleness = if replicas > 1 { assignment.arrangement.sync.staleness.into() } else { 0 };
        Self { staleness, computed: 0 }
    }

    /// Returns `true` if no update of a computed batch is pending.
    pub(super) fn is_level(&self) -> bool {
        self.computed == 0
    }

    /// Returns the number of batches to compute before the update that follows `done` steps, which then
    /// counts as made; 0 if the run `ends`.
    pub(super) fn advance(&mut self, assignment: &Assignment, done: StepId, ends: bool) -> u64 {
        let window = self.staleness + 1;
        let level = (1..window).find(|later| is_looked_at(assignment, StepId(done.0 + later)));
        let most = level.unwrap_or(window);
        let fresh = if ends { 0 } else { most - self.computed };
        self.computed += fresh;
        self.computed -= 1;
        fresh
    }
}

/// Returns `true` if the state after `step` is read, by a validation, a save or the end of the run.
fn is_looked_at(assignment: &Assignment, step: StepId) -> bool {
    let Assignment { validate_every, save_every, until, .. } = assignment;
    is_due(step, *validate_every) || is_due(step, *save_every) || until.steps == Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::world::assignment;

    /// Returns for each update from `begin` on the batches that it is behind the newest gradient; the run
    /// ends after `last`.
    fn walk(assignment: &Assignment, staleness: u64, begin: u64, last: u64) -> Vec<u64> {
        let mut ahead = PendingUpdates { staleness, computed: 0 };
        let mut behind = Vec::new();
        for done in begin..last {
            let fresh = ahead.advance(assignment, StepId(done), false);
            assert!(fresh <= staleness + 1);
            behind.push(ahead.computed);
            if is_looked_at(assignment, StepId(done + 1)) {
                assert!(ahead.is_level(), "the state is read after step {}", done + 1);
            }
        }
        while !ahead.is_level() {
            assert_eq!(ahead.advance(assignment, StepId(last), true), 0, "nothing new begins");
        }
        behind
    }

    #[test]
    fn nothing_is_ahead_where_somebody_looks() {
        let mut assignment = assignment(0, 2, std::path::Path::new("/nowhere"));
        (assignment.validate_every, assignment.save_every) = (7, 5);
        assignment.until.steps = Some(StepId(23));
        assert_eq!(walk(&assignment, 0, 0, 23), [0; 23]);
        let behind = walk(&assignment, 2, 0, 23);
        assert_eq!(behind, [2, 2, 2, 1, 0, 1, 0, 2, 1, 0, 2, 2, 1, 0, 0, 2, 2, 2, 1, 0, 0, 1, 0]);
        assert_eq!(walk(&assignment, 2, 10, 23), behind[10..], "a run that goes on does the same");
        walk(&assignment, 2, 0, 12);
    }
}
