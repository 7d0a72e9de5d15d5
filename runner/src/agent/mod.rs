//! The processes that own the ranks of one attempt, one on each host, and outlive the controller.
//!
//! The first of them leads. It decides nothing about the trial: it starts what it was told to start, writes down what is said,
//! commits what all ranks saved, and sees to it that no rank outlives the attempt. Those of other hosts hold ranks for it, and
//! end with it. When an agent itself is killed, the kernel kills its ranks.

mod files;
mod follow;
mod foreign;
mod identity;
mod lead;
pub(crate) mod mapping;
mod memory;
mod order;
mod peers;
mod rank;
mod socket;
pub(crate) mod spool;
mod supervise;

pub use order::{
    AgentCard, AgentOrder, AgentReply, AgentRequest, AgentTask, FollowerOrder, LinkChoice, Log, OtherHost,
    PeerAddress, Process, Program, Seat, SpoolRecord,
};

pub(crate) use identity::{agent_identities, identities};

use crate::checkpoints::commit;
use crate::durable;
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
use dtrain_protocol::{Assignment, Event, Link, Rank, frame};
use dtrain_recipes::{Framework, Model};
use foreign::Rendezvous;
use lead::Others;
use peers::cord::Heard;
use peers::{Said, Secure, Told};
use rank::{Ground, RankProcess};
use rustix::fd::OwnedFd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use socket::Shared;
use spool::{Published, SpoolWriter};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use supervise::{Supervisor, note};

/// How long controllers may take to read the last records.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What the threads of the agent tell its main thread.
enum Message {
    /// A rank said something.
    Event(Rank, Event),
    /// A rank closed its output, or wrote what is not an event.
    HeardOut {
        /// The rank.
        rank: Rank,
        /// What was wrong with the last thing it wrote.
        garbled: Option<String>,
        /// The last lines that a foreign program printed.
        last: Vec<String>,
    },
    /// A controller wants the ranks to stop.
    Stop,
    /// The agent of another host says something, to the leader.
    Follower(u32, Heard<Said>),
    /// The leader stands at the door of a follower.
    LeaderCame(Secure),
    /// The leader says something, to a follower.
    Leader(Heard<Told>),
    /// A thread of the agent did what was told, and this is to be said of it.
    Did(Said),
}

/// The entry of `dtrain agent`: reads an [`AgentTask`] from standard input and makes it come true.
///
/// Standard error is the agent's log, and locked: the lock ends with the agent, however it ends. To be called first
/// thing in `main`, from the main thread.
pub fn run() -> ExitCode {
    let order = match detach() {
        Ok(AgentTask::Lead(order)) => order,
        Ok(AgentTask::Follow(order)) => return follow::run(&order),
        Err(words) => return refuse(words.into()),
    };
    let (sender, inbox) = channel();
    match begin(&order, &sender, &inbox) {
        Ok((mut supervisor, card)) => {
            // A controller that went away meanwhile finds the agent by its card.
            drop(frame::write(&mut io::stdout(), &AgentReply::Running(card.clone())));
            finish(&mut supervisor, &inbox, &card.socket)
        }
        Err(not_launched) => refuse(not_launched),
    }
}

fn refuse(not_launched: NotLaunched) -> ExitCode {
    let (reason, is_of_checkpoint) = match not_launched {
        NotLaunched::Checkpoint(reason) => (reason, true),
        NotLaunched::Other(reason) | NotLaunched::Unknown(reason) => (reason, false),
    };
    note(&reason);
    drop(frame::write(&mut io::stdout(), &AgentReply::Refused { reason, is_of_checkpoint }));
    ExitCode::FAILURE
}

/// Leaves the session of the controller, then reads the order.
fn detach() -> Result<AgentTask, String> {
    crate::process::close_inherited_files().map_err(|error| format!("inherited files: {error}"))?;
    // Fails only when the process leads a session already.
    let _ = rustix::process::setsid();
    frame::read_within(&mut io::stdin(), frame::MAX_IN_PIECES)
        .map_err(|error| format!("the order cannot be read: {error}"))
}

/// Everything up to the start of the last rank. On `Err` the process is about to end, and the ranks with it.
fn begin<'a>(
    order: &'a AgentOrder,
    sender: &Sender<Message>,
    inbox: &Receiver<Message>,
) -> Result<(Supervisor<'a>, AgentCard), NotLaunched> {
    let folder = TrialFolder::at(&order.folder);
    let words = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let terminated = signals().map_err(words("signals"))?;
    let elsewhere = order.others.iter().map(|other| other.ranks.len()).sum::<usize>();
    let world = order.assignments.len();
    let peers = if order.others.is_empty() && order.link == LinkChoice::SharedMemory { 0 } else { world };
    files::suffice(world.saturating_sub(elsewhere), order.others.len(), peers)?;
    folder.create().map_err(words("the trial's folder"))?;
    let agent = Process::of(std::process::id()).ok_or_else(|| "this process is not in /proc".to_owned())?;
    let (listener, socket) = socket::bind(&folder, order.attempt).map_err(words("the socket"))?;
    let mut card = AgentCard { attempt: order.attempt, agent, ranks: Vec::new(), socket };
    write_card(&folder, &card).map_err(words("agent.json"))?;
    let mut spool = SpoolWriter::create(&folder.spool(order.attempt)).map_err(words("the spool"))?;
    let world = u32::try_from(world).map_err(|_| "too many ranks".to_owned())?;
    let began = SpoolRecord::Began { attempt: order.attempt, ranks: world };
    let length = spool.append(&began).map_err(words("the spool"))?;
    let shared = Arc::new(Shared {
        spool: folder.spool(order.attempt),
        published: Published::default(),
        followers: AtomicU32::new(0),
    });
    shared.published.extend(length);
    socket::serve(listener, Arc::clone(&shared), sender.clone());
    // A host that is alone in its cluster looks for itself whether it has the checkpoint.
    let is_met = !order.others.is_empty() || resumed(&order.assignments).is_some();
    let others = order.seat.as_ref().filter(|_| is_met);
    let mut others = others.map(|seat| Others::meet(order, seat, &folder, sender)).transpose()?;
    let ranks = start_ranks(order, &folder, others.as_mut(), sender, inbox)?;
    let others = others.filter(|others| others.hosts() > 0);
    card.ranks = ranks.iter().filter_map(|rank| Process::of(rank.id()?)).collect();
    write_card(&folder, &card).map_err(words("agent.json"))?;
    let supervisor = Supervisor {
        order,
        folder,
        ranks,
        others,
        inbox: sender.clone(),
        spool,
        shared,
        terminated,
        saved: BTreeMap::new(),
        addresses: BTreeMap::new(),
        cause: None,
        stopped: false,
        deadline: None,
        heard_by: None,
    };
    Ok((supervisor, card))
}

/// A flag that is set when the host wants the agent to end. What a terminal says is not for it.
fn signals() -> io::Result<Arc<AtomicBool>> {
    let terminated = Arc::new(AtomicBool::new(false));
    let ignored = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGTERM, &terminated), (SIGHUP, &ignored), (SIGINT, &ignored)] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(terminated)
}

fn write_card(folder: &TrialFolder, card: &AgentCard) -> io::Result<()> {
    durable::replace(&folder.agent_card(), &serde_json::to_vec(card)?)
}

/// Starts all ranks: those of other hosts first, as they come from afar.
fn start_ranks(
    order: &AgentOrder,
    folder: &TrialFolder,
    mut others: Option<&mut Others>,
    sender: &Sender<Message>,
    inbox: &Receiver<Message>,
) -> Result<Vec<RankProcess>, NotLaunched> {
    let world = u32::try_from(order.assignments.len()).map_err(|_| "too many ranks".to_owned())?;
    if world == 0 {
        return Err("the order has no ranks".to_owned().into());
    }
    let (links, mapping) = links(order, world)?;
    let link = |(assignment, link): (&Assignment, Link)| Assignment { link, ..assignment.clone() };
    let assignments: Vec<_> = order.assignments.iter().zip(links).map(link).collect();
    let resume = resumed(&assignments);
    if let Some(others) = others.as_deref_mut() {
        if let Some(name) = &resume {
            others.gather(name, inbox)?;
        }
        others.part_with_lenders();
    }
    // Not before: a part of what an earlier attempt did not commit everywhere may lie under that name alone.
    commit::remove_partial(&folder.checkpoints(), order.attempt)
        .map_err(|error| format!("old checkpoints: {error}"))?;
    let address = order.seat.as_ref().map_or("127.0.0.1", |seat| seat.bind.as_str());
    let rendezvous = meeting(address, &assignments, others.as_deref_mut(), inbox)?;
    let elsewhere = match &mut others {
        Some(others) => others.start(&assignments, &rendezvous, inbox)?,
        None => Vec::new(),
    };
    let here = &assignments[..assignments.len() - elsewhere.len()];
    let ground = Ground {
        attempt: order.attempt,
        folder,
        worker: &order.worker,
        rendezvous: &rendezvous,
        bind: address,
        first: Rank(0),
        ranks: u32::try_from(here.len()).unwrap_or(u32::MAX),
    };
    let start = |assignment: &Assignment| {
        RankProcess::start(&ground, assignment, mapping.clone(), sender)
            .map_err(|error| format!("rank {} cannot be started: {error}", assignment.rank))
    };
    let here: Vec<_> = here.iter().map(start).collect::<Result<_, String>>()?;
    Ok(here.into_iter().chain(elsewhere).collect())
}

/// Where foreign ranks meet: at this host, by ports that every host finds for its own.
fn meeting(
    address: &str,
    assignments: &[Assignment],
    others: Option<&mut Others>,
    inbox: &Receiver<Message>,
) -> Result<Rendezvous, String> {
    let framework = assignments.iter().find_map(|one| match &one.model {
        Model::Command(command) => Some(command.framework),
        _ => None,
    });
    let is_foreign = framework.is_some();
    let (hosts, elsewhere) = match others {
        Some(others) if is_foreign => (others.hosts() + 1, others.reserve(inbox)?),
        Some(_) | None => (1, Vec::new()),
    };
    let here = u32::try_from(assignments.len() - elsewhere.len()).map_err(|_| "too many ranks")?;
    let meeting = Rendezvous::at(address, hosts, if is_foreign { here } else { 0 }, elsewhere);
    let meeting = match framework {
        Some(Framework::Horovod) => meeting.and_then(Rendezvous::with_a_store),
        Some(_) | None => meeting,
    };
    meeting.map_err(|error| format!("a free port of {address}: {error}"))
}

/// Name of the folder of the checkpoint that the ranks go on from.
fn resumed(assignments: &[Assignment]) -> Option<String> {
    let point = assignments.first()?.resume.as_ref()?;
    Some(point.folder.file_name()?.to_str()?.to_owned())
}

/// The link of each rank, and the file they inherit for it.
fn links(order: &AgentOrder, world: u32) -> Result<(Vec<Link>, Option<Arc<OwnedFd>>), String> {
    if world == 1 {
        return Ok((vec![Link::Alone], None));
    }
    let tls = |bind: &str| {
        let identities = identities(&order.trial, order.attempt, world)
            .map_err(|error| format!("certificates: {error}"))?;
        let link = |identity| Link::Tls { bind: bind.into(), identity };
        Ok((identities.into_iter().map(link).collect(), None))
    };
    match (&order.seat, &order.link) {
        // The controller made the certificates, so that the key of a rank is on its own host only.
        (Some(seat), _) if order.others.iter().any(|other| !other.only_lends()) => {
            let link = |assignment: &Assignment| match &assignment.link {
                Link::Tls { identity, .. } => {
                    Link::Tls { bind: seat.bind.clone(), identity: identity.clone() }
                }
                other => other.clone(),
            };
            Ok((order.assignments.iter().map(link).collect(), None))
        }
        (_, LinkChoice::Tls { bind }) => tls(bind),
        (_, LinkChoice::SharedMemory) => {
            let (file, link) = mapping::shared(world).map_err(|error| format!("shared memory: {error}"))?;
            Ok((vec![link; world as usize], Some(file)))
        }
    }
}

/// Supervises the ranks to their end, says how it was, and waits until the controllers know.
fn finish(supervisor: &mut Supervisor<'_>, inbox: &Receiver<Message>, socket: &PathBuf) -> ExitCode {
    let attempt = supervisor.order.attempt;
    let told = supervisor.run(inbox).and_then(|ended| {
        // Whoever reads that the attempt is over may start the next, which binds the same name.
        drop(std::fs::remove_file(socket));
        supervisor.spool.append(&SpoolRecord::Over { attempt, ended })
    });
    if let Some(others) = &supervisor.others {
        others.dismiss();
    }
    match told {
        Ok(length) => {
            supervisor.shared.published.extend(length);
            supervisor.shared.published.close();
            let until = Instant::now() + LAST_WORDS;
            while supervisor.shared.followers.load(Ordering::SeqCst) > 0 && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("cannot write the spool, killing the ranks: {error}"));
            ExitCode::FAILURE
        }
    }
}
