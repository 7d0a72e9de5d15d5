//! The agents of an attempt: processes that own its ranks, one on each host, and outlive the controller.
//!
//! The first one is the leader. It makes no decisions about the trial: it starts what its order names,
//! records events, commits checkpoints that all ranks saved, and ensures that no rank outlives the attempt.
//! The followers on other hosts hold ranks for it, and end with it. If an agent is killed, the kernel kills
//! its ranks.
//!
//! | module | content |
//! |---|---|
//! | `leader`, `follower` | the decisions: state machines without sockets, clocks, disks and processes |
//! | `messages` | the messages between them |
//! | `*_driver`, `work_queue`, `checkpoint_parts` | the drivers: sockets, spool, processes, disk |
//! | `notice` | polls for the notice that a machine will be taken away |
//! | `peers` | the connections between agents |

mod checkpoint_parts;
mod control_socket;
#[cfg(test)]
mod fixtures;
mod follower;
mod follower_driver;
mod foreign;
mod host_driver;
mod leader;
mod leader_driver;
mod messages;
mod notice;
mod oom_killer;
mod peers;
mod rank_process;
pub(crate) mod shared_memory;
#[cfg(test)]
mod simulate;
mod spawn_context;
mod spool_mirror;
mod work_queue;

use crate::certificates::rank_certificates;
use crate::control_protocol::{AgentCard, AgentOrder, AgentReply, AgentTask, LaunchError, LinkChoice};
use crate::durable;
use crate::home::TrialFolder;
use dtrain_protocol::{Assignment, Event, Rank, RankTransport, frame};
use messages::{HostMessage, LeaderMessage};
use peers::MutualTlsStream;
use peers::link::LinkEvent;
use rustix::fd::OwnedFd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time between two checks of the ranks when no message arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The file for answers to the process that started this agent.
static ANSWERS: OnceLock<File> = OnceLock::new();

/// Answers the process that started this agent. `Err` if it is gone.
fn send_reply(reply: &AgentReply) -> io::Result<()> {
    let mut answers = ANSWERS.get().expect("an agent has it from the beginning");
    frame::write(&mut answers, reply)
}

/// A message from one of the agent's threads to its main thread.
enum InboxMessage {
    /// An event of a rank.
    Event(Rank, Event),
    /// A rank closed its output, or wrote something that is no event.
    OutputClosed {
        /// The rank whose output ended.
        rank: Rank,
        /// The error in its last output, if any.
        garbled: Option<String>,
        /// The last lines of a foreign program's output.
        last: Vec<String>,
    },
    /// A controller asks the ranks to stop.
    Stop,
    /// A controller asks the ranks to stop, so that the next attempt runs on other hosts.
    Regroup,
    /// To the leader: a message from the agent of the host with this index.
    Follower(u32, LinkEvent<HostMessage>),
    /// The leader has connected with a follower.
    LeaderConnected(MutualTlsStream),
    /// To a follower: a message from the leader.
    Leader(LinkEvent<LeaderMessage>),
    /// A task of this host is done; the message reports its result to the leader.
    Done(HostMessage),
}

/// Entry point of `dtrain agent`: reads an [`AgentTask`] from standard input and carries it out.
///
/// Standard error is the agent's log, with a lock that ends with the agent. Call this first in `main`, on the
/// main thread.
///
/// The [`AgentReply`]s go to `answers`.
pub fn run(answers: File) -> ExitCode {
    let task = detach(&answers);
    drop(ANSWERS.set(answers));
    match task {
        Ok(AgentTask::Lead(order)) => leader_driver::run(&order),
        Ok(AgentTask::Follow(order)) => follower_driver::run(&order),
        Err(words) => refuse(words.into()),
    }
}

fn refuse(not_launched: LaunchError) -> ExitCode {
    log_line(&not_launched.to_string());
    let (reason, is_of_checkpoint, host) = match not_launched {
        LaunchError::Checkpoint(reason) => (reason, true, None),
        LaunchError::OnHost { host, reason } => (reason, false, Some(host)),
        LaunchError::Other(reason) | LaunchError::Unknown(reason) => (reason, false, None),
    };
    drop(send_reply(&AgentReply::Refused { reason, is_of_checkpoint, host }));
    ExitCode::FAILURE
}

/// Leaves the controller's session, then reads the task.
fn detach(answers: &File) -> Result<AgentTask, String> {
    crate::process::close_inherited_files(answers).map_err(|error| format!("inherited files: {error}"))?;
    if let Err(error) = crate::descendants::adopt_orphans() {
        log_line(&format!("what ranks start in sessions of their own may outlive them: {error}"));
    }
    // Fails only if the process already leads a session.
    let _ = rustix::process::setsid();
    frame::read_within(&mut io::stdin(), frame::MAX_IN_PIECES)
        .map_err(|error| format!("the order cannot be read: {error}"))
}

/// Returns a flag that SIGTERM sets, such as at a preemption: the attempt then saves and stops. Signals of a
/// terminal are ignored.
fn termination_flag() -> io::Result<Arc<AtomicBool>> {
    let terminated = Arc::new(AtomicBool::new(false));
    let ignored = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGTERM, &terminated), (SIGHUP, &ignored), (SIGINT, &ignored)] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(terminated)
}

fn write_card(folder: &TrialFolder, card: &AgentCard) -> io::Result<()> {
    durable::atomic_write(&folder.agent_card(), &serde_json::to_vec(card)?)
}

/// Returns the name of the checkpoint folder that the ranks resume from.
fn resumed_folder_name(assignments: &[Assignment]) -> Option<String> {
    let point = assignments.first()?.resume.as_ref()?;
    Some(point.folder.file_name()?.to_str()?.to_owned())
}

/// Returns the transport of each rank, and the file of shared memory that the ranks inherit for it.
fn links(order: &AgentOrder, world: u32) -> Result<(Vec<RankTransport>, Option<Arc<OwnedFd>>), String> {
    if world == 1 {
        return Ok((vec![RankTransport::Alone], None));
    }
    let tls = |bind: &str| {
        let identities = rank_certificates(&order.trial, order.attempt, world)
            .map_err(|error| format!("certificates: {error}"))?;
        let link = |identity| RankTransport::Tls { bind: bind.into(), identity };
        Ok((identities.into_iter().map(link).collect(), None))
    };
    match (&order.seat, &order.link) {
        // The controller made the certificates, so that a rank's key is only on its own host.
        (Some(seat), _) if order.others.iter().any(|other| !other.only_lends()) => {
            let link = |assignment: &Assignment| match &assignment.link {
                RankTransport::Tls { identity, .. } => {
                    RankTransport::Tls { bind: seat.bind.clone(), identity: identity.clone() }
                }
                other => other.clone(),
            };
            Ok((order.assignments.iter().map(link).collect(), None))
        }
        (_, LinkChoice::Tls { bind }) => tls(bind),
        (_, LinkChoice::SharedMemory) => {
            let (file, link) =
                shared_memory::create(world).map_err(|error| format!("shared memory: {error}"))?;
            Ok((vec![link; world as usize], Some(file)))
        }
    }
}

/// Writes a line to the agent's log.
fn log_line(words: &str) {
    drop(writeln!(io::stderr(), "{words}"));
}
