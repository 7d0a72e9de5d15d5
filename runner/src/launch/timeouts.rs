//! Timeouts of the launchers: of the parts of a launch, and of questions to hosts and agents.

use std::time::Duration;

/// Timeout of a short question to a host.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout of a short question to hosts that have answered before.
pub(super) const REPEAT_ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time to wait for a suspect host while others may answer. A healthy host answers within a round trip.
pub(super) const SUSPECT_TIMEOUT: Duration = Duration::from_millis(300);

/// Timeout of the start of a follower.
pub(super) const FOLLOWER_START_TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum silence of an agent that starts its ranks; it reports progress every few seconds.
pub(super) const AGENT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum silence of a host that launches an agent; it reports progress every few seconds.
pub(super) const LAUNCH_SILENCE_TIMEOUT: Duration = Duration::from_secs(90);

/// Timeout of a launch on a host that reports progress.
pub(super) const LAUNCH_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Timeout of the transfer of a checkpoint's manifest from a host.
pub(super) const MANIFEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Silence after which the host whose spool is read counts as unreachable.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which killed processes must end, and an agent must exit after its attempt.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
