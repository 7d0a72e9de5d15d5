//! Fencing: kills the agents of older attempts on hosts that come back after they were lost.

use super::FencedAgent;
use super::host_query::{HostQuery, PolledHost};
use dtrain_protocol::{AttemptId, TrialId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two rounds of questions to hosts outside the attempt.
const ASK_EVERY: Duration = Duration::from_secs(3);

/// State of the fencing of a trial's hosts: the questions asked and answered.
#[derive(Default)]
pub(super) struct Fencing {
    /// For each host by index, an attempt: no earlier attempt runs on the host.
    done: BTreeMap<usize, AttemptId>,
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
        let is_due = |host: &usize| {
            !active.contains(host)
                && self.done.get(host).is_none_or(|done| *done < attempt)
                && self.asked.iter().all(|(asked, ..)| asked != host)
        };
        let due: Vec<usize> = (0..hosts.len()).filter(is_due).collect();
        for host in due {
            let trial = trial.clone();
            let question = hosts[host].ask(move |host| host.fence(&trial, attempt));
            self.asked.push((host, attempt, question));
        }
    }

    /// Returns the agents that were found and killed since the last call.
    pub(super) fn take_fenced(&mut self, hosts: &[PolledHost]) -> Vec<FencedAgent> {
        let (mut found, done) = (Vec::new(), &mut self.done);
        self.asked.retain(|(host, before, question)| {
            let Some(answer) = question.try_answer() else { return true };
            if let Ok(ended) = answer {
                done.insert(*host, *before);
                found.extend(ended.map(|attempt| FencedAgent { host: hosts[*host].name.clone(), attempt }));
            }
            false
        });
        found
    }
}
