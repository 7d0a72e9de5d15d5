//! Hosts that come back after they were lost: what they still run of older attempts is ended.

use super::FencedAgent;
use super::host_query::{HostQuery, PolledHost};
use dtrain_protocol::{AttemptId, TrialId};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often hosts that are not of the attempt are asked whether an older one runs there.
const ASK_EVERY: Duration = Duration::from_secs(3);

/// Which hosts are known to run nothing old.
#[derive(Default)]
pub(super) struct Fencing {
    /// By host: nothing before this attempt runs there.
    done: BTreeMap<usize, AttemptId>,
    asked: Vec<(usize, AttemptId, HostQuery<Option<AttemptId>>)>,
    asked_at: Option<Instant>,
}

impl Fencing {
    /// Asks the hosts that `attempt` is not on, now and then, to end what they run of older ones. Waits for nobody.
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

    /// What was found and ended since this was last asked.
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
