//! Hosts outside the attempt: agents of older attempts are killed there once they answer, and those that keep answering
//! may take part again.

use super::fencing_rules::{AttemptHosts, hosts_to_ask};
use super::host_query::{HostQuery, PolledHost};
use super::{FencedAgent, IdleHost};
use dtrain_protocol::{AttemptId, TrialId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time between two rounds of questions to hosts outside the attempt.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(3);

/// State of the fencing of a trial's hosts: the questions asked and answered.
#[derive(Default)]
pub(super) struct Fencing {
    /// For each host outside the attempt by index, the time since which it has answered each question.
    answers_since: BTreeMap<usize, Instant>,
    /// Indices of the hosts outside the attempt that once did not answer.
    were_away: BTreeSet<usize>,
    /// Each question with its host, and the attempt before which that ends all.
    asked: Vec<(usize, AttemptId, HostQuery<Option<AttemptId>>)>,
    asked_at: Option<Instant>,
}

impl Fencing {
    /// Asks the hosts outside `attempt`, every few seconds, to kill older attempts. Does not block.
    pub(super) fn ask_others(
        &mut self,
        trial: &TrialId,
        attempt: AttemptId,
        hosts: &[PolledHost],
        active: &[usize],
    ) {
        if self.asked_at.is_some_and(|at| at.elapsed() < ASK_EVERY) {
            return;
        }
        self.asked_at = Some(Instant::now());
        self.answers_since.retain(|host, _| !active.contains(host));
        self.were_away.retain(|host| !active.contains(host));
        let mut due = hosts_to_ask(hosts.len(), active);
        due.retain(|host| self.asked.iter().all(|(asked, ..)| asked != host));
        for host in due {
            let trial = trial.clone();
            let question = hosts[host].ask(move |host| host.fence(&trial, attempt));
            self.asked.push((host, attempt, question));
        }
    }

    /// Returns the hosts outside the attempt that answered the last question.
    pub(super) fn idle_hosts(&self, hosts: &[PolledHost]) -> Vec<IdleHost> {
        let idle = |(host, since): (&usize, &Instant)| IdleHost {
            name: hosts[*host].name.clone(),
            answers_for: since.elapsed(),
            was_away: self.were_away.contains(host),
        };
        self.answers_since.iter().map(idle).collect()
    }

    /// Returns the agents that were found and killed since the last call, and `true` if the stored names of `known`
    /// changed by the answers.
    pub(super) fn take_fenced(
        &mut self,
        hosts: &[PolledHost],
        known: &mut AttemptHosts,
    ) -> (Vec<FencedAgent>, bool) {
        let (mut found, mut has_changed) = (Vec::new(), false);
        let Self { answers_since, were_away, asked, .. } = self;
        asked.retain(|(host, before, question)| {
            match question.try_answer() {
                None => return true,
                Some(Ok(ended)) => {
                    answers_since.entry(*host).or_insert_with(Instant::now);
                    let name = &hosts[*host].name;
                    has_changed |= known.answered(name, *before);
                    found.extend(ended.map(|attempt| FencedAgent { host: name.clone(), attempt }));
                }
                Some(Err(_)) => {
                    answers_since.remove(host);
                    were_away.insert(*host);
                }
            }
            false
        });
        (found, has_changed)
    }
}
