//! Changes of the hosts of a running attempt: more of them after a checkpoint, and fewer if some are drained.

use super::TrialController;
use crate::driver::DriveError;
use crate::launch::{HostList, IdleHost};
use crate::machine::{Growth, HostCondition, HostStanding, standings};
use crate::trial_event::ControllerStatus;
use dtrain_protocol::{AttemptId, Event, Rank, StampedEvent};
use std::time::{Duration, Instant};

/// Time that an idle host must have answered before it takes part again.
const STEADY_FOR: Duration = Duration::from_secs(5);

/// Interval between two reads of the list of drained hosts.
const READ_DRAINED_EVERY: Duration = Duration::from_secs(1);

/// Seconds that a restart is assumed to take before one was measured.
const ASSUMED_RESTART: f64 = 10.0;

/// State of the changes of hosts.
#[derive(Default)]
pub(super) struct Regrouping {
    /// The attempt that was asked to end, so that the next one runs on other hosts.
    asked: Option<AttemptId>,
    pace: Pace,
    /// Idle hosts that were shown as not worth a restart.
    shown_idle: Vec<String>,
    /// Drained hosts that were shown as all hosts of the attempt.
    shown_drained: Vec<String>,
    drained_read_at: Option<Instant>,
}

impl Regrouping {
    /// Processes an event of the open attempt.
    pub(super) fn observe(&mut self, stamped: &StampedEvent) {
        if let Event::Step(figures) = &stamped.event
            && stamped.rank == Rank(0)
        {
            self.pace.observe(stamped.attempt, figures.elapsed, stamped.at_ms);
        }
    }
}

/// Speed of the training in the newest attempt, and the time that the last restart took.
#[derive(Debug, Default)]
struct Pace {
    attempt: Option<AttemptId>,
    /// Share of the training done, and time in milliseconds, at the first and the last step of the attempt.
    first: Option<(f64, u64)>,
    last: Option<(f64, u64)>,
    /// Time at which the last step was received.
    received_at: Option<Instant>,
    restart: Option<Duration>,
}

impl Pace {
    fn observe(&mut self, attempt: AttemptId, elapsed: Option<f64>, at_ms: u64) {
        let received_at = Instant::now();
        if self.attempt != Some(attempt) {
            self.restart = self.received_at.map(|last| received_at - last).or(self.restart);
            (self.attempt, self.first, self.last) = (Some(attempt), None, None);
        }
        let now = elapsed.map(|share| (share, at_ms));
        self.first = self.first.or(now);
        (self.last, self.received_at) = (now, Some(received_at));
    }

    /// Returns the seconds that the rest of the training takes at this speed; infinite if it has no known end, `None`
    /// before the second step.
    fn remaining_seconds(&self) -> Option<f64> {
        let (Some((begin, begun_ms)), Some((end, ended_ms))) = (self.first, self.last) else {
            return self.attempt.map(|_| f64::INFINITY);
        };
        let seconds = Duration::from_millis(ended_ms.checked_sub(begun_ms)?).as_secs_f64();
        (end > begin).then(|| (1.0 - end).max(0.0) * seconds / (end - begin))
    }

    fn restart_seconds(&self) -> f64 {
        self.restart.map_or(ASSUMED_RESTART, |took| took.as_secs_f64())
    }
}

impl TrialController<'_> {
    /// Returns the hosts that the user drained.
    pub(super) fn drained_hosts(&self) -> HostList {
        // If the file cannot be read, no host is drained.
        HostList::read(&self.drive.home.drained()).unwrap_or_default()
    }

    /// Ends `attempt`, of which a checkpoint was saved, if it gains time to continue on more hosts.
    pub(super) fn grow_if_it_pays(&mut self, attempt: AttemptId) -> Result<(), DriveError> {
        let is_followed = self.link.as_ref().is_some_and(|link| link.attempt == attempt);
        let is_asked = self.regrouping.asked == Some(attempt);
        if !self.drive.options.hosts.grows || !is_followed || is_asked || self.machine.is_stopping() {
            return Ok(());
        }
        let Some(pool) = self.launcher.as_mut().and_then(|launcher| launcher.pool()) else { return Ok(()) };
        let (active, idle) = (pool.attempt_hosts(), pool.idle_hosts());
        if idle.is_empty() {
            return Ok(());
        }
        let added = self.hosts_to_add(active.len(), idle)?;
        let hosts = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (now, then) = (hosts(active.len()), hosts(active.len() + added.len()));
        let predicted = ((self.drive.predict)(now), (self.drive.predict)(then));
        let ((Some(before), Some(after)), Some(remaining_seconds)) =
            (predicted, self.regrouping.pace.remaining_seconds())
        else {
            return Ok(());
        };
        if added.is_empty() || after.hosts <= now {
            return Ok(());
        }
        let growth = Growth {
            step_seconds: (before.step_seconds, after.step_seconds),
            is_slower: after.interval.0 > before.interval.1,
            remaining_seconds: Some(remaining_seconds).filter(|seconds| seconds.is_finite()),
            restart_seconds: self.regrouping.pace.restart_seconds(),
        };
        let hosts = (now, after.hosts);
        if growth.pays() {
            self.regrouping.asked = Some(attempt);
            if let Some(link) = &mut self.link {
                link.ask_to_regroup();
            }
            return self.show(ControllerStatus::Growing { added, hosts, growth });
        }
        if self.regrouping.shown_idle == added {
            return Ok(());
        }
        self.regrouping.shown_idle.clone_from(&added);
        self.show(ControllerStatus::NotGrowing { idle: added, hosts, growth })
    }

    /// Returns the idle hosts that an attempt with `active` hosts would take too.
    fn hosts_to_add(&mut self, active: usize, idle: Vec<IdleHost>) -> Result<Vec<String>, DriveError> {
        // A host that left and was away has been shut down, and is back.
        self.left.retain(|left| !idle.iter().any(|host| host.name == left.host && host.was_away));
        let (excluded, drained) = (self.excluded_hosts()?, self.drained_hosts());
        let taken = HostCondition { answers: true, leaves: false, is_left_out: false };
        let report = |host: &IdleHost| HostCondition {
            answers: host.answers_for >= STEADY_FOR,
            leaves: drained.has(&host.name),
            is_left_out: excluded.iter().any(|one| one.host == host.name),
        };
        let reports: Vec<HostCondition> =
            std::iter::repeat_n(taken, active).chain(idle.iter().map(report)).collect();
        let all = standings(&reports, self.drive.options.hosts.most);
        let offered = all.iter().skip(active).zip(idle);
        Ok(offered
            .filter(|(standing, _)| **standing == HostStanding::Offered)
            .map(|(_, host)| host.name)
            .collect())
    }

    /// Ends the open attempt if some of its hosts are drained, so that the next one runs on the others.
    pub(super) fn leave_drained_hosts(&mut self) -> Result<(), DriveError> {
        let now = Instant::now();
        if self.regrouping.drained_read_at.is_some_and(|at| now - at < READ_DRAINED_EVERY) {
            return Ok(());
        }
        self.regrouping.drained_read_at = Some(now);
        let Some(attempt) = self.link.as_ref().map(|link| link.attempt) else { return Ok(()) };
        if self.regrouping.asked == Some(attempt) || self.machine.is_stopping() {
            return Ok(());
        }
        let drained = self.drained_hosts();
        let Some(pool) = self.launcher.as_mut().and_then(|launcher| launcher.pool()) else { return Ok(()) };
        let (active, idle) = (pool.attempt_hosts(), pool.idle_hosts());
        let hosts: Vec<String> = active.iter().filter(|host| drained.has(host)).cloned().collect();
        if hosts.is_empty() {
            return Ok(());
        }
        let others = active.iter().chain(idle.iter().map(|host| &host.name));
        if !others.into_iter().any(|host| !drained.has(host)) {
            if self.regrouping.shown_drained == hosts {
                return Ok(());
            }
            self.regrouping.shown_drained.clone_from(&hosts);
            return self.show(ControllerStatus::AllDrained { hosts });
        }
        self.regrouping.asked = Some(attempt);
        if let Some(link) = &mut self.link {
            link.ask_to_regroup();
        }
        self.show(ControllerStatus::Draining { hosts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_its_share_at_the_speed_of_the_attempt() {
        let mut pace = Pace::default();
        assert_eq!(pace.remaining_seconds(), None, "no step was seen");
        pace.observe(AttemptId(1), Some(0.5), 1_000);
        assert_eq!(pace.remaining_seconds(), None, "one step has no speed");
        pace.observe(AttemptId(1), Some(0.6), 3_000);
        assert!((pace.remaining_seconds().expect("a speed") - 8.0).abs() < 1e-9);
        assert!((pace.restart_seconds() - ASSUMED_RESTART).abs() < 1e-9);
        pace.observe(AttemptId(2), Some(0.7), 1_000_000);
        assert!(pace.restart_seconds() < 5.0, "by the clock of this machine");
        assert_eq!(pace.remaining_seconds(), None, "the speed of another attempt says nothing");
        pace.observe(AttemptId(3), None, 1_000_000);
        assert_eq!(pace.remaining_seconds(), Some(f64::INFINITY), "no end is known");
    }
}
