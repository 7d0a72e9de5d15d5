//! The rules of fencing, without a clock, a thread or a connection. The driver follows them, and so does the simulator.

use super::{FencedAgent, FencingReport};
use crate::fact::Fact;
use dtrain_protocol::{AttemptId, Failure};
use std::collections::{BTreeMap, BTreeSet};

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
    let lost = |fact: &Fact| match (fact, fact.loss()?) {
        (Fact::AttemptEnded { attempt, .. }, Failure::HostLost { host, .. }) => {
            Some((host.clone(), *attempt))
        }
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

/// The hosts that may still run attempts of a trial, as far as its controllers know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptHosts {
    /// For each host, the attempts that were launched there and that it has not reported as over. Those of an earlier
    /// controller count as attempt 0.
    unsettled: BTreeMap<String, BTreeSet<AttemptId>>,
    /// For each host that answered, the attempt before which it runs none.
    settled: BTreeMap<String, AttemptId>,
}

impl AttemptHosts {
    /// Restores what an earlier controller stored: the names of the hosts that may run attempts.
    pub(crate) fn restore(names: impl IntoIterator<Item = String>) -> Self {
        let earlier = |name| (name, BTreeSet::from([AttemptId(0)]));
        Self { unsettled: names.into_iter().map(earlier).collect(), settled: BTreeMap::new() }
    }

    /// Returns the names to store for a later controller, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.unsettled.keys().map(String::as_str)
    }

    /// Notes that an attempt is about to be launched on a host; returns `true` if [`AttemptHosts::names`] changed.
    pub(crate) fn launching(&mut self, attempt: AttemptId, host: &str) -> bool {
        let is_new = !self.unsettled.contains_key(host);
        self.unsettled.entry(host.to_owned()).or_default().insert(attempt);
        is_new
    }

    /// Notes that a host runs no attempt before `before`, as it answered; returns `true` if [`AttemptHosts::names`]
    /// changed.
    pub(crate) fn answered(&mut self, host: &str, before: AttemptId) -> bool {
        let settled = self.settled.entry(host.to_owned()).or_insert(before);
        *settled = before.max(*settled);
        let Some(unsettled) = self.unsettled.get_mut(host) else { return false };
        unsettled.retain(|attempt| *attempt >= before);
        let is_over = unsettled.is_empty();
        if is_over {
            self.unsettled.remove(host);
        }
        is_over
    }

    /// Returns `true` if a host may run an attempt before `before`. `lost` is the last attempt that was lost with the
    /// host, if any.
    fn may_run(&self, host: &str, lost: Option<AttemptId>, before: AttemptId) -> bool {
        let is_unsettled = |attempt: &AttemptId| {
            *attempt < before && self.settled.get(host).is_none_or(|settled| attempt >= settled)
        };
        let unsettled = self.unsettled.get(host).and_then(BTreeSet::first);
        unsettled.is_some_and(|first| *first < before) || lost.as_ref().is_some_and(is_unsettled)
    }

    /// Returns the hosts, by index in `names`, that are asked at the end of a trial, each with the attempt before which
    /// it ends all.
    ///
    /// The last attempt ends by itself on the hosts that fencing spares, unless its leader was `lost`: then all of its
    /// hosts may go on without a controller.
    pub(crate) fn to_ask_at_end(
        &self,
        names: &[&str],
        spared: &[usize],
        end: &FinalFencing,
    ) -> Vec<(usize, AttemptId)> {
        let FinalFencing { last, lost } = end;
        let is_lost = |host: &usize| lost.get(names[*host]) == Some(last);
        let spared = if spared.first().is_some_and(is_lost) { &[] } else { spared };
        let asked = |host: usize| {
            let lives_on = !spared.contains(&host) || is_lost(&host);
            let before = if lives_on { AttemptId(last.0 + 1) } else { *last };
            self.may_run(names[host], lost.get(names[host]).copied(), before).then_some((host, before))
        };
        (0..names.len()).filter_map(asked).collect()
    }
}

/// What the history says about the attempts of a trial that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalFencing {
    /// Number of the last attempt.
    pub last: AttemptId,
    /// The hosts whose loss ended an attempt, each with the last such attempt; see [`lost_hosts`].
    pub lost: BTreeMap<String, AttemptId>,
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

    fn end(last: u64, lost: &[(&str, u64)]) -> FinalFencing {
        let lost = lost.iter().map(|(host, attempt)| ((*host).to_owned(), AttemptId(*attempt)));
        FinalFencing { last: AttemptId(last), lost: lost.collect() }
    }

    /// Returns what is known after attempts were launched on hosts.
    fn launched(attempts: &[(u64, &str)]) -> AttemptHosts {
        let mut hosts = AttemptHosts::default();
        for (attempt, host) in attempts {
            hosts.launching(AttemptId(*attempt), host);
        }
        hosts
    }

    #[test]
    fn hosts_outside_the_last_attempt_are_asked_at_the_end_until_they_have_answered() {
        let mut hosts = launched(&[(1, "a"), (1, "b"), (1, "c"), (2, "c")]);
        hosts.answered("c", AttemptId(2));
        let asked = |hosts: &AttemptHosts| hosts.to_ask_at_end(&["a", "b", "c", "d"], &[2], &end(2, &[]));
        assert_eq!(asked(&hosts), [(0, AttemptId(3)), (1, AttemptId(3))]);
        assert!(hosts.answered("a", AttemptId(2)), "it is forgotten");
        assert!(!hosts.answered("a", AttemptId(2)));
        assert_eq!(asked(&hosts), [(1, AttemptId(3))]);
        hosts.launching(AttemptId(2), "b");
        hosts.answered("b", AttemptId(2));
        assert_eq!(asked(&hosts), [(1, AttemptId(3))], "the answer is about an earlier attempt");
    }

    #[test]
    fn every_host_of_a_last_attempt_without_its_leader_is_asked() {
        let mut hosts = launched(&[(2, "a"), (2, "b")]);
        hosts.answered("a", AttemptId(2));
        hosts.answered("b", AttemptId(2));
        let asked =
            |spared: &[usize], lost: &[(&str, u64)]| hosts.to_ask_at_end(&["a", "b"], spared, &end(2, lost));
        assert_eq!(asked(&[0, 1], &[]), []);
        assert_eq!(asked(&[0, 1], &[("a", 1)]), [], "it has answered since");
        assert_eq!(asked(&[0, 1], &[("b", 2)]), [(1, AttemptId(3))], "the leader ends the others");
        let all = [(0, AttemptId(3)), (1, AttemptId(3))];
        assert_eq!(asked(&[0, 1], &[("a", 2)]), all);
        assert_eq!(asked(spared(&[0, 1], true), &[]), all, "it was given up");
    }

    #[test]
    fn hosts_of_the_last_attempt_end_earlier_ones_of_which_they_have_not_answered() {
        let hosts = launched(&[(1, "a"), (2, "a")]);
        assert_eq!(hosts.to_ask_at_end(&["a"], &[0], &end(2, &[])), [(0, AttemptId(2))]);
        let restored = AttemptHosts::restore(["a".to_owned(), "b".to_owned()]);
        let asked = restored.to_ask_at_end(&["a", "b", "c"], &[0], &end(2, &[("c", 1)]));
        assert_eq!(asked, [(0, AttemptId(2)), (1, AttemptId(3)), (2, AttemptId(3))]);
        assert_eq!(restored.names().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let mut report = FencingReport::default();
        report.add("a".into(), Ok(None));
        report.add("b".into(), Ok(Some(AttemptId(1))));
        report.add("c".into(), Err("silent".into()));
        let fenced = vec![FencedAgent { host: "b".into(), attempt: AttemptId(1) }];
        assert_eq!(report, FencingReport { fenced, unanswered: vec!["c".into()] });
    }
}
