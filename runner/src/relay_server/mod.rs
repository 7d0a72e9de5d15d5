//! The server of the relay: carries out the requests of the controller on its host.

mod address;
mod claims;
mod controller_stream;
mod incoming_checkpoint;
mod trial_launchers;

use crate::checkpoints::{CheckpointStore, CheckpointWriter, LocalStore};
use crate::control_protocol::{AgentOrder, FollowerOrder, LaunchError, Program};
use crate::driver::Programs;
use crate::files;
use crate::home::{Home, TrialFolder};
use crate::launch::AgentContact;
use crate::launch::relay::{Reply, Request};
use crate::logs::logs;
use crate::process::set_compute_environment;
use crate::store;
use crate::workdir::{WorkdirStore, is_digest};
use crate::{channel, cuda, engine_environment};
use address::address;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use controller_stream::{FromController, ToController};
use dtrain_protocol::{Assignment, AttemptId, HostFacts, Placement, Rank, TrialId, frame};
use incoming_checkpoint::IncomingCheckpoint;
use std::io::{self, BufReader, PipeReader, Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use trial_launchers::TrialLaunchers;

/// Silence of the controller after which the relay's server ends. A controller that works asks every few seconds, or
/// sends heartbeats; one that comes back later starts another server.
pub const RELAY_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of bytes of a log in one reply to the controller.
const LOG_PIECE: u64 = 1 << 20;

/// Entry point of the relay's server: serves requests from standard input until its end, on the main thread.
/// `host` returns the facts for the planner.
///
/// It also ends if nothing arrives for `idle_timeout`, such as [`RELAY_IDLE_TIMEOUT`], since no end of the input
/// reaches it if the link was down when the controller ended. A request that takes longer is carried out. Agents go on.
///
/// `shared` is a state folder that all hosts share: checkpoints are kept there, and agents end with this
/// process. That is the case under a scheduler, which also sends SIGTERM; only agents react to it. It ends this process
/// with the job, so there is no timeout.
pub fn serve(
    home: &Home,
    shared: Option<&Home>,
    programs: &Programs,
    idle_timeout: Duration,
    host: impl Fn() -> HostFacts,
) -> io::Result<()> {
    if shared.is_some() {
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::default())?;
    }
    let limit = shared.is_none().then_some(idle_timeout);
    let mut stdin = BufReader::new(FromController::new(io::stdin(), limit)?);
    let to_controller = ToController::new(io::stdout(), limit)?;
    let mut stdout = &to_controller;
    let mut launchers = TrialLaunchers::new(home, &programs.agent, shared.is_some());
    let make_trial_folder = |trial: &TrialId| {
        make_trial_folder(&home.trial(trial), shared.map(|shared| shared.trial(trial)).as_ref())
    };
    loop {
        let request = match frame::read_within(&mut stdin, frame::MAX_IN_PIECES) {
            Ok(request) => request,
            Err(frame::FrameError::Closed) => return Ok(()),
            Err(frame::FrameError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        };
        launchers.reap();
        if let Some(refusal) = claims::refusal(&request, home, make_trial_folder) {
            frame::write(&mut stdout, &refusal)?;
            continue;
        }
        let reply = match request {
            Request::Address { network } => reply_or_failure(address(network), Reply::Address),
            Request::Lead { order, .. } => {
                let order = localize_order(*order, home, programs);
                let launcher = launchers.of(&order.trial);
                let launched = launcher.fence(order.attempt).map_err(LaunchError::from);
                let going_on = || drop(frame::write(&mut &to_controller, &Reply::Launching));
                let launched = launched.and_then(|_| make_trial_folder(&order.trial));
                let launched = launched.and_then(|()| launcher.launch_with_keepalive(&order, &going_on));
                launched.map_or_else(launch_failure, Reply::Leading)
            }
            Request::Follow { order, .. } => {
                let mut order = FollowerOrder {
                    folder: home.trial(&order.trial).path().to_owned(),
                    worker: programs.worker.clone(),
                    ..*order
                };
                localize_workdir(&mut order.assignments, home);
                let launcher = launchers.of(&order.trial);
                let fenced = launcher.fence(order.attempt).map_err(LaunchError::from);
                let address = fenced
                    .and_then(|_| make_trial_folder(&order.trial))
                    .and_then(|()| launcher.follow(&order));
                address.map_or_else(launch_failure, |address| Reply::Following { address })
            }
            Request::Reach { trial, attempt, from } => match launchers.of(&trial).connect(attempt, from) {
                Ok((card, stream)) => {
                    frame::write(&mut stdout, &Reply::Connected(card))?;
                    let to = stream.try_clone()?;
                    return proxy((stdin, stdout), (stream, to));
                }
                Err(AgentContact::Gone) => Reply::Gone,
                Err(AgentContact::Away { reason, .. }) => Reply::Failed { reason },
                Err(_) => Reply::Silent,
            },
            Request::Leftover { trial, attempt, from, is_mirror } => {
                match launchers.of(&trial).open_spool(attempt, from, is_mirror) {
                    Ok(Some((mut spool, bytes))) => {
                        stream_bytes(&mut stdout, &mut spool, bytes)?;
                        continue;
                    }
                    Ok(None) => Reply::Bytes { bytes: 0 },
                    Err(error) => Reply::Failed { reason: error.to_string() },
                }
            }
            Request::Logs { trial } => match logs(home, &trial) {
                Ok(logs) => Reply::Logs(logs.into_iter().map(|log| log.of).collect()),
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            Request::Log { trial, of, from } => match open_log(&home.trial(&trial), of, from) {
                Ok(mut log) => {
                    send_bytes(&mut stdout, &mut log)?;
                    continue;
                }
                Err(error) => Reply::Failed { reason: error.to_string() },
            },
            Request::Checkpoints { trial, writer } => {
                reply_or_failure(local_store(home, &trial, writer).folders(), Reply::Checkpoints)
            }
            Request::Crc32 { trial, writer, folder, file } => {
                reply_or_failure(local_store(home, &trial, writer).crc32(&folder, &file), Reply::Crc32)
            }
            Request::Piece { trial, writer, folder, file, from } => {
                match local_store(home, &trial, writer).read(&folder, &file, from) {
                    Ok(bytes) => {
                        send_bytes(&mut stdout, &mut bytes.as_slice())?;
                        continue;
                    }
                    Err(reason) => Reply::Failed { reason },
                }
            }
            Request::Hashes { trial, folder, file, first, count } => reply_or_failure(
                local_store(home, &trial, CheckpointWriter::Worker).hashes(&folder, &file, first, count),
                Reply::Hashes,
            ),
            Request::Put { trial, folder, file, from, bytes } => {
                let stored = make_trial_folder(&trial).map_err(|error| error.to_string()).and_then(|()| {
                    IncomingCheckpoint::of(&home.trial(&trial), &folder)?.write(&file, from, &bytes)
                });
                reply_or_failure(stored, |()| Reply::Stored)
            }
            Request::CommitPut { trial, folder, manifest } => {
                let trial = home.trial(&trial);
                let stored = IncomingCheckpoint::of(&trial, &folder).and_then(|copy| copy.commit(&manifest));
                reply_or_failure(stored, |()| Reply::Stored)
            }
            Request::Workdir { digest } => reply_or_failure(
                WorkdirStore::new(&home.workdirs(), &digest).map(|store| store.is_intact()),
                Reply::Workdir,
            ),
            Request::PutWorkdir { digest, from, bytes } => {
                let stored = BASE64_STANDARD
                    .decode(bytes)
                    .map_err(|error| error.to_string())
                    .and_then(|bytes| WorkdirStore::new(&home.workdirs(), &digest)?.write(from, &bytes));
                reply_or_failure(stored, |()| Reply::Stored)
            }
            Request::InstallWorkdir { digest } => {
                let workdirs = home.workdirs();
                let installed = WorkdirStore::new(&workdirs, &digest).and_then(|store| store.install());
                reply_or_failure(installed, |()| Reply::Stored)
            }
            Request::IsAlive { trial, attempt } => Reply::Alive(launchers.of(&trial).is_alive(attempt)),
            Request::Facts => Reply::Facts(host()),
            Request::Engine { engine, python } => {
                let found = engine_environment::examine(home, engine, python.as_deref());
                reply_or_failure(found, Reply::Engine)
            }
            Request::InstallEngine { engine, wheels } => {
                // A controller that left does not end an installation.
                let mut say = |line: &str| {
                    drop(frame::write(&mut &to_controller, &Reply::Installing { line: line.to_owned() }));
                };
                let installed = engine_environment::install(home, engine, wheels.as_deref(), &mut say);
                reply_or_failure(installed, Reply::Engine)
            }
            Request::Measure { placement } => match spawn_probe(&programs.worker, &placement) {
                Ok((mut child, messages)) => {
                    frame::write(&mut stdout, &Reply::Measuring)?;
                    let to = child.stdin.take().expect("it is piped");
                    // While the rank measures, the controller has nothing to say.
                    stdin.get_mut().wait_forever();
                    let passed = proxy((stdin, stdout), (messages, to));
                    drop(child.kill());
                    drop(child.wait());
                    return passed;
                }
                Err(error) => {
                    Reply::Failed { reason: format!("{}: {error}", programs.worker.path.display()) }
                }
            },
            Request::Remove { trial } => {
                reply_or_failure(store::remove_folder(home, &trial), |bytes| Reply::Removed { bytes })
            }
            Request::Fence { trial, attempt, .. } => {
                reply_or_failure(launchers.of(&trial).fence(attempt), |ended| Reply::Fenced { ended })
            }
            Request::Kill { trial, attempt, .. } => {
                reply_or_failure(launchers.of(&trial).kill_for_good(attempt), |is_gone| Reply::Killed {
                    is_gone,
                })
            }
            Request::Claim { trial, claim } => {
                reply_or_failure(claims::newest(&home.trial(&trial), claim.as_ref()), Reply::Claim)
            }
        };
        frame::write(&mut stdout, &reply)?;
    }
}

/// Opens the checkpoint store of a trial on this host.
fn local_store(home: &Home, trial: &TrialId, writer: CheckpointWriter) -> LocalStore {
    LocalStore::new(home.trial(trial)).of(writer)
}

fn reply_or_failure<T>(found: Result<T, String>, reply: impl FnOnce(T) -> Reply) -> Reply {
    found.map_or_else(|reason| Reply::Failed { reason }, reply)
}

/// Replies with all bytes that can be read from `from`.
fn send_bytes(to: &mut impl Write, from: &mut impl Read) -> io::Result<()> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    frame::write(to, &Reply::Bytes { bytes: bytes.len() as u64 })?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Replies with `bytes` bytes of `from`, without holding them in memory. If there are fewer, this process
/// ends, which cuts the reply short.
fn stream_bytes(to: &mut impl Write, from: &mut impl Read, bytes: u64) -> io::Result<()> {
    frame::write(to, &Reply::Bytes { bytes })?;
    if io::copy(&mut from.take(bytes), to)? < bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    to.flush()
}

/// Opens a log of a trial at byte `from`, for one piece.
fn open_log(trial: &TrialFolder, of: Option<(AttemptId, Rank)>, from: u64) -> io::Result<impl Read + use<>> {
    let path = of.map_or_else(|| trial.agent_log(), |(attempt, rank)| trial.rank_log(attempt, rank));
    let mut file = files::open(&path)?;
    file.seek(SeekFrom::Start(from))?;
    Ok(file.take(LOG_PIECE))
}

fn launch_failure(not_launched: LaunchError) -> Reply {
    match not_launched {
        LaunchError::Checkpoint(reason) => Reply::NoCheckpoint { reason },
        LaunchError::OnHost { host, reason } => Reply::FailedOn { host, reason },
        LaunchError::Other(reason) | LaunchError::Unknown(reason) => Reply::Failed { reason },
    }
}

/// Creates the trial's folder; with `shared`, its checkpoints are in the shared folder.
fn make_trial_folder(trial: &TrialFolder, shared: Option<&TrialFolder>) -> Result<(), LaunchError> {
    let make = || {
        if let Some(shared) = shared
            && !trial.checkpoints().exists()
        {
            files::make_folder(trial.path())?;
            files::make_folder(&shared.checkpoints())?;
            std::os::unix::fs::symlink(shared.checkpoints(), trial.checkpoints())?;
        }
        trial.create()
    };
    make().map_err(|error: io::Error| format!("{}: {error}", trial.path().display()).into())
}

/// Replaces the folders and programs in an order by those of this host.
fn localize_order(order: AgentOrder, home: &Home, programs: &Programs) -> AgentOrder {
    let trial = home.trial(&order.trial);
    let checkpoints = trial.checkpoints();
    let mut order = AgentOrder { folder: trial.path().to_owned(), worker: programs.worker.clone(), ..order };
    localize_workdir(&mut order.assignments, home);
    for assignment in &mut order.assignments {
        assignment.checkpoints.clone_from(&checkpoints);
        if let Some(point) = &mut assignment.resume
            && let Some(name) = point.folder.file_name()
        {
            point.folder = checkpoints.join(name);
        }
    }
    order
}

/// Replaces the recipe's folder on the controller by the copy that this host received.
fn localize_workdir(assignments: &mut [Assignment], home: &Home) {
    for assignment in assignments {
        if let Some(digest) = assignment.workdir.as_deref().filter(|digest| is_digest(digest)) {
            assignment.data_root = home.workdirs().join(digest);
        }
    }
}

/// Starts a measuring rank. The rank ends with this process and must not write to this process's standard
/// output.
fn spawn_probe(worker: &Program, placement: &Placement) -> io::Result<(Child, PipeReader)> {
    let mut command = Command::new(&worker.path);
    command.args(&worker.arguments).arg("probe").stdin(Stdio::piped()).stdout(Stdio::from(io::stderr()));
    set_compute_environment(&mut command, placement.threads);
    cuda::prepare(&mut command, placement.device)?;
    channel::spawn_bound(command, &[])
}

/// Copies bytes between the controller and a local process until either ends, or the controller is silent for too long;
/// then this process ends.
fn proxy(
    (mut stdin, mut stdout): (BufReader<FromController>, &ToController),
    (mut from, mut to): (impl Read, impl Write + Send + 'static),
) -> io::Result<()> {
    thread::spawn(move || {
        drop(io::copy(&mut stdin, &mut to));
        std::process::exit(0);
    });
    let mut room = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut room)?;
        if length == 0 {
            return Ok(());
        }
        stdout.write_all(&room[..length])?;
    }
}
