//! Questions to the hosts of an attempt for the newest claim on their trial.

use super::host_query::{HostQuery, PolledHost};
use crate::controller_claim::ControllerClaim;
use dtrain_protocol::TrialId;
use std::time::{Duration, Instant};

/// Time between two rounds of questions.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// The questions that have no answer yet. Answers are noted by [`crate::controller_claim::HeldClaim`].
#[derive(Default)]
pub(super) struct ClaimPoll {
    asked: Vec<(usize, HostQuery<Option<ControllerClaim>>)>,
    asked_at: Option<Instant>,
}

impl ClaimPoll {
    /// Asks the `active` ones of `hosts`, every few seconds. Does not block.
    pub(super) fn ask(&mut self, trial: &TrialId, hosts: &[PolledHost], active: &[usize]) {
        let asked_at = *self.asked_at.get_or_insert_with(Instant::now);
        if asked_at.elapsed() < ASK_EVERY {
            return;
        }
        self.asked_at = Some(Instant::now());
        self.asked.retain(|(_, question)| question.try_answer().is_none());
        for host in active {
            if self.asked.iter().all(|(asked, _)| asked != host) {
                let trial = trial.clone();
                let question = hosts[*host].ask(move |host| host.newest_claim(&trial));
                self.asked.push((*host, question));
            }
        }
    }
}
