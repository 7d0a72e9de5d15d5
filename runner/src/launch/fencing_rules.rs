//! The rules of fencing, without a clock, a thread or a connection. The driver follows them, and so does the simulator.

use super::{FencedAgent, FencingReport};
use crate::fact::{AttemptEnd, Fact};
use dtrain_protocol::{AttemptId, Failure};
use std::collections::BTreeMap;

/// What a controller knows of the attempts of its trial.
#[derive(Clone, Copy, Debug)]
pub struct KnownAttempts {
    /// The attempt whose agent the controller is connected to.
    pub connected: Option<AttemptId>,
    /// The attempt that was launched and has no recorded end.
    pub open: Option<AttemptId>,
    /// Number of the newest attempt; 0 before the first.
    pub newest: AttemptId,
}

impl KnownAttempts {
    /// Returns the attempt before which no attempt may be alive; `None` while that is unknown, because the open attempt
    /// is being looked for.
    pub fn oldest_alive(self) -> Option<AttemptId> {
        match (self.connected, self.open) {
            (Some(connected), _) => Some(connected),
            (None, Some(_)) => None,
            (None, None) => Some(AttemptId(self.newest.0 + 1)),
        }
    }
}

/// Returns the names of the hosts whose loss ended an attempt, each with the last such attempt.
pub fn lost_hosts(facts: &[Fact]) -> BTreeMap<String, AttemptId> {
    let lost = |fact: &Fact| match fact {
        Fact::AttemptEnded {
            attempt,
            ended:
                AttemptEnd::Lost(Failure::HostLost { host, .. })
                | AttemptEnd::NotLaunched(Failure::HostLost { host, .. }),
        } => Some((host.clone(), *attempt)),
        _ => None,
    };
    facts.iter().filter_map(lost).collect()
}

/// Returns the hosts, by index, that fencing leaves alone: the `active` hosts of the newest attempt, unless it was given
/// up.
pub(crate) fn spared(active: &[usize], is_given_up: bool) -> &[usize] {
    if is_given_up { &[] } else { active }
}

/// Returns the hosts, by index, that are asked to end older attempts while the trial goes on: all but the spared ones.
pub(crate) fn hosts_to_ask(hosts: usize, spared: &[usize]) -> Vec<usize> {
    (0..hosts).filter(|host| !spared.contains(host)).collect()
}

/// Returns the hosts, by index in `names`, that are asked at the end of a trial, each with the attempt before which it
/// ends all: those that were `lost`. One of the `active` hosts of the newest attempt ends that attempt only if it was lost
/// with it: otherwise the attempt ends by itself.
pub(crate) fn hosts_to_ask_at_end<'a>(
    names: impl IntoIterator<Item = &'a str>,
    active: &[usize],
    before: AttemptId,
    lost: &BTreeMap<String, AttemptId>,
) -> Vec<(usize, AttemptId)> {
    let asked = |(host, name): (usize, &str)| {
        let lost = lost.get(name)?;
        Some((host, if active.contains(&host) { AttemptId(lost.0 + 1) } else { before }))
    };
    names.into_iter().enumerate().filter_map(asked).collect()
}

impl FencingReport {
    /// Adds the answer of a host that was asked to end older attempts: the attempt that it ended, if any, or the reason
    /// why there is no answer.
    pub(crate) fn add(&mut self, host: String, answer: Result<Option<AttemptId>, String>) {
        match answer {
            Ok(None) => {}
            Ok(Some(attempt)) => self.fenced.push(FencedAgent { host, attempt }),
            Err(_) => self.unanswered.push(host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_attempts_are_ended_unless_the_open_one_is_being_looked_for() {
        let known = |connected: Option<u64>, open: Option<u64>| KnownAttempts {
            connected: connected.map(AttemptId),
            open: open.map(AttemptId),
            newest: AttemptId(3),
        };
        assert_eq!(known(Some(3), Some(3)).oldest_alive(), Some(AttemptId(3)));
        assert_eq!(known(None, Some(3)).oldest_alive(), None);
        assert_eq!(known(None, None).oldest_alive(), Some(AttemptId(4)));
    }

    #[test]
    fn hosts_of_the_newest_attempt_are_not_asked_unless_it_was_given_up() {
        assert_eq!(hosts_to_ask(3, spared(&[0], false)), [1, 2]);
        assert_eq!(hosts_to_ask(3, spared(&[0], true)), [0, 1, 2]);
    }

    #[test]
    fn those_who_were_lost_are_asked_at_the_end_and_named_if_they_do_not_answer() {
        let lost = BTreeMap::from([("b".to_owned(), AttemptId(1)), ("c".to_owned(), AttemptId(2))]);
        let asked = hosts_to_ask_at_end(["a", "b", "c"], &[2], AttemptId(4), &lost);
        assert_eq!(asked, [(1, AttemptId(4)), (2, AttemptId(3))]);
        let mut report = FencingReport::default();
        report.add("a".into(), Ok(None));
        report.add("b".into(), Ok(Some(AttemptId(1))));
        report.add("c".into(), Err("silent".into()));
        let fenced = vec![FencedAgent { host: "b".into(), attempt: AttemptId(1) }];
        assert_eq!(report, FencingReport { fenced, unanswered: vec!["c".into()] });
    }
}
