//! Deliberate faults of the code, one at a time: what an agent does is changed as if its code were wrong.

use crate::agent::SpoolRecord;
use crate::agent::follower::{self, Work};
use crate::agent::leader::{Effect, OWN};
use crate::agent::messages::{HostMessage, LeaderMessage};
use dtrain_protocol::Event;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    // The leader.
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
    // The follower.
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
    // Ranks, spool and controller.
    SavedBeforeWritten,
    PublishedBeforeFlushed,
    GoneWhenSilent,
    GoneBeforeRead,
    MirrorNotRead,
    FoundForgotten,
    StepForgotten,
    TombstoneIgnored,
    ReturnedNotEnded,
}

impl Bug {
    /// Every fault.
    pub(super) const ALL: [Self; 37] = [
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
    ];
}

/// What a leader with this fault does.
pub(super) fn leader_effects(bug: Option<Bug>, effects: Vec<Effect>) -> Vec<Effect> {
    let Some(bug) = bug else { return effects };
    effects.into_iter().flat_map(|effect| leader_effect(bug, effect)).collect()
}

fn leader_effect(bug: Bug, effect: Effect) -> Vec<Effect> {
    match (bug, effect) {
        (Bug::PrepareForgotten, Effect::Ask(1, LeaderMessage::Prepare { .. }))
        | (Bug::CommitForgotten, Effect::Ask(1, LeaderMessage::Commit { .. }))
        | (Bug::CommitOfOwnForgotten, Effect::Ask(OWN, LeaderMessage::Commit { .. }))
        | (Bug::RetainForgotten, Effect::Ask(_, LeaderMessage::Retain { .. }))
        | (Bug::DiscardForgotten, Effect::Ask(_, LeaderMessage::Discard { .. }))
        | (Bug::KillForgotten, Effect::Ask(_, LeaderMessage::Kill { .. }))
        | (Bug::FetchForgotten, Effect::Ask(OWN, LeaderMessage::FetchParts { .. }))
        | (Bug::BeganForgotten, Effect::Spool(SpoolRecord::Began { .. }))
        | (Bug::CommittedNotSpooled, Effect::Spool(SpoolRecord::Committed { .. })) => Vec::new(),
        (Bug::SavedNotSpooled, Effect::Spool(SpoolRecord::Event(stamped)))
            if matches!(stamped.event, Event::Saved { .. }) && stamped.rank.0 == 1 =>
        {
            Vec::new()
        }
        (Bug::PeersForgotten, Effect::Ask(_, LeaderMessage::Order { ref order }))
            if matches!(**order, dtrain_protocol::Order::Peers(_)) =>
        {
            Vec::new()
        }
        (Bug::StopForgotten, Effect::Ask(_, LeaderMessage::Order { ref order }))
            if **order == dtrain_protocol::Order::Stop =>
        {
            Vec::new()
        }
        (Bug::CopiesForgotten, Effect::Ask(host, LeaderMessage::Prepare { step, manifest, .. })) => {
            vec![Effect::Ask(host, LeaderMessage::Prepare { step, manifest, copies: Vec::new() })]
        }
        (Bug::CommittedTooEarly, Effect::Ask(OWN, LeaderMessage::Prepare { step, manifest, copies })) => {
            let attempt = dtrain_protocol::AttemptId(1);
            let folder = dtrain_protocol::checkpoint::folder_name(step, attempt).into();
            vec![
                Effect::Spool(SpoolRecord::Committed { attempt, step, folder }),
                Effect::Ask(OWN, LeaderMessage::Prepare { step, manifest, copies }),
            ]
        }
        (Bug::StartedTwice, Effect::Ask(host, LeaderMessage::Start { rendezvous })) => {
            let start = || Effect::Ask(host, LeaderMessage::Start { rendezvous: rendezvous.clone() });
            vec![start(), start()]
        }
        (
            Bug::HoldersForgotten,
            Effect::Ask(host, LeaderMessage::FetchParts { folder, files, manifest, keep }),
        ) => {
            let files = files.iter().map(|(file, _)| (file.clone(), Vec::new())).collect();
            vec![Effect::Ask(host, LeaderMessage::FetchParts { folder, files, manifest, keep })]
        }
        (Bug::OverTooEarly, Effect::Spool(SpoolRecord::Event(stamped)))
            if matches!(stamped.event, Event::Finished { .. }) && stamped.rank.0 == 0 =>
        {
            let (attempt, Event::Finished { reason, .. }) = (stamped.attempt, stamped.event.clone()) else {
                unreachable!("it was just looked at")
            };
            let ended = crate::fact::Ended::Finished(reason);
            vec![
                Effect::Spool(SpoolRecord::Event(stamped)),
                Effect::Spool(SpoolRecord::Over { attempt, ended }),
            ]
        }
        (_, effect) => vec![effect],
    }
}

/// What a follower with this fault does.
pub(super) fn follower_effects(bug: Option<Bug>, effects: Vec<follower::Effect>) -> Vec<follower::Effect> {
    let Some(bug) = bug else { return effects };
    effects.into_iter().flat_map(|effect| follower_effect(bug, effect)).collect()
}

fn follower_effect(bug: Bug, effect: follower::Effect) -> Vec<follower::Effect> {
    use follower::Effect;
    match (bug, effect) {
        (Bug::PreparedTooEarly, Effect::Work(Work::Prepare { step, .. })) => {
            vec![Effect::Tell(HostMessage::Prepared { step, outcome: Ok(()) })]
        }
        (Bug::PreparedAlways, Effect::Tell(HostMessage::Prepared { step, .. })) => {
            vec![Effect::Tell(HostMessage::Prepared { step, outcome: Ok(()) })]
        }
        (Bug::CommittedAlways, Effect::Work(Work::Commit { step })) => {
            vec![Effect::Tell(HostMessage::Committed { step, outcome: Ok(()) })]
        }
        (Bug::CopiesNotFetched, Effect::Work(Work::Prepare { step, manifest, .. })) => {
            vec![Effect::Work(Work::Prepare { step, manifest, copies: Vec::new() })]
        }
        (Bug::ExitForgotten, Effect::Tell(HostMessage::Exited { .. }))
        | (Bug::OutputForgotten, Effect::Tell(HostMessage::OutputClosed { .. }))
        | (Bug::KillIgnored, Effect::Kill(_))
        | (Bug::DismissIgnored | Bug::LostLeaderIgnored, Effect::End(_)) => Vec::new(),
        (Bug::SavedForgotten, Effect::CheckSaved { rank, .. }) if rank.0 == 1 => Vec::new(),
        (Bug::FinishedForgotten, Effect::Tell(HostMessage::Event { event: Event::Finished { .. }, .. })) => {
            Vec::new()
        }
        (_, effect) => vec![effect],
    }
}
