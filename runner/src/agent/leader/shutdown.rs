//! The end of an attempt: once no rank is alive, the mirror of the spool is flushed to a second disk, and all
//! hosts are dismissed.

use super::super::messages::LeaderMessage;
use super::rank_state::RankState;
use super::{AttemptEffect, AttemptPhase, HostState, LEADER_HOST, Leader};
use crate::control_protocol::LaunchError;
use crate::fact::AttemptEnd;
use crate::spool::SpoolRecord;
use dtrain_protocol::{Failure, StopReason};

impl Leader {
    pub(super) fn end_when_over(&mut self) {
        let is_done = self.phase == AttemptPhase::Running
            && self.ranks.iter().all(RankState::is_over)
            && self.commits.is_empty();
        if !is_done {
            return;
        }
        let reason = self.ranks.iter().find_map(|rank| rank.finished);
        let ended = match (self.cause.take(), reason) {
            (Some(cause), _) => AttemptEnd::Lost(cause),
            (None, None | Some(StopReason::Ordered)) if self.trial_continues() => {
                AttemptEnd::Lost(self.change_of_hosts())
            }
            (None, reason) => AttemptEnd::Finished(reason.unwrap_or(StopReason::Ordered)),
        };
        let attempt = self.settings.attempt;
        self.effects.push(AttemptEffect::Spool(SpoolRecord::Over { attempt, ended }));
        match self.mirror() {
            Some(host) => {
                self.phase = AttemptPhase::Sealing(self.now.moment);
                self.ask(host, LeaderMessage::SealMirror);
            }
            None => self.dismiss(),
        }
    }

    /// Returns the reason for which an attempt ended whose hosts change.
    fn change_of_hosts(&self) -> Failure {
        let Some((first, cause)) = self.leaving.first_key_value() else { return Failure::Regrouped };
        let host = self.hosts.get(first).filter(|host| host.peer.host != LEADER_HOST);
        Failure::HostLeft { host: host.map(|host| host.peer.name.clone()), cause: *cause }
    }

    /// Returns the host that mirrors the spool, so that the result survives the leader's disk: the first
    /// other host. `None` with a shared folder or a single host.
    pub(in crate::agent) fn mirror(&self) -> Option<u32> {
        let mirrors = |(index, host): &(&u32, &HostState)| **index != LEADER_HOST && !host.only_lends();
        let first = self.hosts.iter().find(mirrors).filter(|(_, host)| !host.is_lost);
        first.map(|(index, _)| *index).filter(|_| self.settings.gathers)
    }

    /// Ends the attempt after the mirror was flushed, or its flush failed.
    pub(super) fn mirror_sealed(&mut self, host: u32) {
        if matches!(self.phase, AttemptPhase::Sealing(_)) && self.mirror().is_none_or(|mirror| mirror == host)
        {
            self.dismiss();
        }
    }

    pub(super) fn dismiss(&mut self) {
        self.phase = AttemptPhase::Over;
        self.ask_all(|_| LeaderMessage::Dismiss);
        self.effects.push(AttemptEffect::End);
    }

    pub(super) fn refuse(&mut self, reason: LaunchError) {
        self.phase = AttemptPhase::Over;
        self.ask_all(|_| LeaderMessage::Dismiss);
        self.effects.push(AttemptEffect::Refuse(reason));
    }
}
