//! Deliberate bugs, one at a time: an agent's effects are changed as if its code were wrong.

use crate::agent::follower::{self, HostTask};
use crate::agent::leader::{AttemptEffect, LEADER_HOST};
use crate::agent::messages::{HostMessage, LeaderMessage};
use crate::spool::SpoolRecord;
use dtrain_protocol::Event;

/// A deliberate bug in the agents, to prove that the simulation notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    // Bugs of the leader.
    PrepareForgotten,
    CopiesForgotten,
    CommitForgotten,
    CommitOfOwnForgotten,
    CommittedTooEarly,
    RetainForgotten,
    DiscardForgotten,
    BeganForgotten,
    SavedNotSpooled,
    CommittedNotSpooled,
    PeersForgotten,
    StopForgotten,
    KillForgotten,
    StartedTwice,
    FetchForgotten,
    HoldersForgotten,
    OverTooEarly,
    // Bugs of the follower.
    PreparedTooEarly,
    PreparedAlways,
    CopiesNotFetched,
    CommittedAlways,
    ExitForgotten,
    OutputForgotten,
    SavedForgotten,
    FinishedForgotten,
    LostLeaderIgnored,
    DismissIgnored,
    KillIgnored,
    // Bugs of ranks, spool and controller.
    SavedBeforeWritten,
    PublishedBeforeFlushed,
    GoneWhenSilent,
    GoneBeforeRead,
    MirrorNotRead,
    FoundForgotten,
    StepForgotten,
    TombstoneIgnored,
    ReturnedNotEnded,
    FencedOnlyWhileConnected,
    OnlyLostFencedAtEnd,
    ReporterBlamed,
}

impl Bug {
    /// All deliberate bugs.
    pub(super) const ALL: [Self; 40] = [
        Self::PrepareForgotten,
        Self::CopiesForgotten,
        Self::CommitForgotten,
        Self::CommitOfOwnForgotten,
        Self::CommittedTooEarly,
        Self::RetainForgotten,
        Self::DiscardForgotten,
        Self::BeganForgotten,
        Self::SavedNotSpooled,
        Self::CommittedNotSpooled,
        Self::PeersForgotten,
        Self::StopForgotten,
        Self::KillForgotten,
        Self::StartedTwice,
        Self::FetchForgotten,
        Self::HoldersForgotten,
        Self::OverTooEarly,
        Self::PreparedTooEarly,
        Self::PreparedAlways,
        Self::CopiesNotFetched,
        Self::CommittedAlways,
        Self::ExitForgotten,
        Self::OutputForgotten,
        Self::SavedForgotten,
        Self::FinishedForgotten,
        Self::LostLeaderIgnored,
        Self::DismissIgnored,
        Self::KillIgnored,
        Self::SavedBeforeWritten,
        Self::PublishedBeforeFlushed,
        Self::GoneWhenSilent,
        Self::GoneBeforeRead,
        Self::MirrorNotRead,
        Self::FoundForgotten,
        Self::StepForgotten,
        Self::TombstoneIgnored,
        Self::ReturnedNotEnded,
        Self::FencedOnlyWhileConnected,
        Self::OnlyLostFencedAtEnd,
        Self::ReporterBlamed,
    ];
}

/// Returns the effects of a leader that has the bug `bug`.
pub(super) fn leader_effects(bug: Option<Bug>, effects: Vec<AttemptEffect>) -> Vec<AttemptEffect> {
    let Some(bug) = bug else { return effects };
    effects.into_iter().flat_map(|effect| leader_effect(bug, effect)).collect()
}

fn leader_effect(bug: Bug, effect: AttemptEffect) -> Vec<AttemptEffect> {
    match (bug, effect) {
        (Bug::PrepareForgotten, AttemptEffect::Ask(1, LeaderMessage::Prepare { .. }))
        | (Bug::CommitForgotten, AttemptEffect::Ask(1, LeaderMessage::Commit { .. }))
        | (Bug::CommitOfOwnForgotten, AttemptEffect::Ask(LEADER_HOST, LeaderMessage::Commit { .. }))
        | (Bug::RetainForgotten, AttemptEffect::Ask(_, LeaderMessage::Retain { .. }))
        | (Bug::DiscardForgotten, AttemptEffect::Ask(_, LeaderMessage::Discard { .. }))
        | (Bug::KillForgotten, AttemptEffect::Ask(_, LeaderMessage::Kill { .. }))
        | (Bug::FetchForgotten, AttemptEffect::Ask(LEADER_HOST, LeaderMessage::FetchParts { .. }))
        | (Bug::BeganForgotten, AttemptEffect::Spool(SpoolRecord::Began { .. }))
        | (Bug::CommittedNotSpooled, AttemptEffect::Spool(SpoolRecord::Committed { .. })) => Vec::new(),
        (Bug::SavedNotSpooled, AttemptEffect::Spool(SpoolRecord::Event(stamped)))
            if matches!(stamped.event, Event::Saved { .. }) && stamped.rank.0 == 1 =>
        {
            Vec::new()
        }
        (Bug::PeersForgotten, AttemptEffect::Ask(_, LeaderMessage::Order { ref order }))
            if matches!(**order, dtrain_protocol::Order::Peers(_)) =>
        {
            Vec::new()
        }
        (Bug::StopForgotten, AttemptEffect::Ask(_, LeaderMessage::Order { ref order }))
            if **order == dtrain_protocol::Order::Stop =>
        {
            Vec::new()
        }
        (Bug::CopiesForgotten, AttemptEffect::Ask(host, LeaderMessage::Prepare { step, manifest, .. })) => {
            vec![AttemptEffect::Ask(host, LeaderMessage::Prepare { step, manifest, copies: Vec::new() })]
        }
        (
            Bug::CommittedTooEarly,
            AttemptEffect::Ask(LEADER_HOST, LeaderMessage::Prepare { step, manifest, copies }),
        ) => {
            let attempt = dtrain_protocol::AttemptId(1);
            let folder = dtrain_protocol::checkpoint::folder_name(step, attempt).into();
            vec![
                AttemptEffect::Spool(SpoolRecord::Committed { attempt, step, folder }),
                AttemptEffect::Ask(LEADER_HOST, LeaderMessage::Prepare { step, manifest, copies }),
            ]
        }
        (Bug::StartedTwice, AttemptEffect::Ask(host, LeaderMessage::Start { rendezvous })) => {
            let start = || AttemptEffect::Ask(host, LeaderMessage::Start { rendezvous: rendezvous.clone() });
            vec![start(), start()]
        }
        (
            Bug::HoldersForgotten,
            AttemptEffect::Ask(host, LeaderMessage::FetchParts { folder, files, manifest, keep }),
        ) => {
            let files = files.iter().map(|(file, _)| (file.clone(), Vec::new())).collect();
            vec![AttemptEffect::Ask(host, LeaderMessage::FetchParts { folder, files, manifest, keep })]
        }
        (Bug::OverTooEarly, AttemptEffect::Spool(SpoolRecord::Event(stamped)))
            if matches!(stamped.event, Event::Finished { .. }) && stamped.rank.0 == 0 =>
        {
            let (attempt, Event::Finished { reason, .. }) = (stamped.attempt, stamped.event.clone()) else {
                unreachable!("it was just looked at")
            };
            let ended = crate::fact::AttemptEnd::Finished(reason);
            vec![
                AttemptEffect::Spool(SpoolRecord::Event(stamped)),
                AttemptEffect::Spool(SpoolRecord::Over { attempt, ended }),
            ]
        }
        (_, effect) => vec![effect],
    }
}

/// Returns the effects of a follower that has the bug `bug`.
pub(super) fn follower_effects(
    bug: Option<Bug>,
    effects: Vec<follower::HostEffect>,
) -> Vec<follower::HostEffect> {
    let Some(bug) = bug else { return effects };
    effects.into_iter().flat_map(|effect| follower_effect(bug, effect)).collect()
}

fn follower_effect(bug: Bug, effect: follower::HostEffect) -> Vec<follower::HostEffect> {
    use follower::HostEffect;
    match (bug, effect) {
        (Bug::PreparedTooEarly, HostEffect::Work(HostTask::Prepare { step, .. })) => {
            vec![HostEffect::Tell(HostMessage::Prepared { step, outcome: Ok(()) })]
        }
        (Bug::PreparedAlways, HostEffect::Tell(HostMessage::Prepared { step, .. })) => {
            vec![HostEffect::Tell(HostMessage::Prepared { step, outcome: Ok(()) })]
        }
        (Bug::CommittedAlways, HostEffect::Work(HostTask::Commit { step })) => {
            vec![HostEffect::Tell(HostMessage::Committed { step, outcome: Ok(()) })]
        }
        (Bug::CopiesNotFetched, HostEffect::Work(HostTask::Prepare { step, manifest, .. })) => {
            vec![HostEffect::Work(HostTask::Prepare { step, manifest, copies: Vec::new() })]
        }
        (Bug::ExitForgotten, HostEffect::Tell(HostMessage::Exited { .. }))
        | (Bug::OutputForgotten, HostEffect::Tell(HostMessage::OutputClosed { .. }))
        | (Bug::KillIgnored, HostEffect::Kill(_))
        | (Bug::DismissIgnored | Bug::LostLeaderIgnored, HostEffect::End(_)) => Vec::new(),
        (Bug::SavedForgotten, HostEffect::CheckSaved { rank, .. }) if rank.0 == 1 => Vec::new(),
        (
            Bug::FinishedForgotten,
            HostEffect::Tell(HostMessage::Event { event: Event::Finished { .. }, .. }),
        ) => Vec::new(),
        (_, effect) => vec![effect],
    }
}
