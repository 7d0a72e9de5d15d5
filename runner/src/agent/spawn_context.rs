//! Settings shared by all ranks that an agent starts.

use super::foreign::Rendezvous;
use crate::control_protocol::Program;
use crate::home::TrialFolder;
use dtrain_protocol::{AttemptId, Rank};

/// Settings shared by all ranks that an agent starts.
pub(super) struct SpawnContext<'a> {
    pub(super) attempt: AttemptId,
    pub(super) folder: &'a TrialFolder,
    pub(super) worker: &'a Program,
    pub(super) rendezvous: &'a Rendezvous,
    /// Address of this host for other hosts.
    pub(super) bind: &'a str,
    /// The first rank of this host.
    pub(super) first: Rank,
    /// Number of ranks of this host.
    pub(super) ranks: u32,
}
