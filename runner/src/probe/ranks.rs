//! Ranks that measure rates side by side, on this machine or on remote hosts.

use super::{Probe, ProbeError};
use crate::agent::shared_memory;
use crate::certificates::rank_certificates;
use crate::launch::relay::RemoteHost;
use crate::process::set_compute_environment;
use crate::{channel, cuda};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{
    AttemptId, DeviceKind, Event, Layout, Order, Placement, ProbeRequest, Rank, RankRates, RankTransport,
    TrialId,
};
use dtrain_recipes::{Bytes, Precision};
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time within which a rank must end after its pipes are closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Extra seconds that a rank on a GPU gets for compiling and tuning kernels.
const COMPILING_SECONDS: f64 = 600.0;

/// Rank that measures rates, local or remote.
struct MeasuringRank {
    to: Box<dyn Write + Send>,
    from: Box<dyn Read + Send>,
    /// Function that returns the reason of a failure, once the rank has ended.
    complaint: Box<dyn FnOnce() -> MeasurementFailure + Send>,
}

/// Failure of a rank's measurement.
struct MeasurementFailure {
    /// Reason of the failure, as text.
    words: String,
    kind: Kind,
}

/// Kind of a measurement's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The rank ran out of memory.
    Memory,
    /// The rank took too long.
    Late,
    Other,
}

/// Reply of a measuring rank.
enum RankReply {
    /// Address at which the rank listens.
    Listening(Rank, String),
    /// Result of the measurement.
    Rates(Result<RankRates, MeasurementFailure>),
}

/// Runs `ranks` measurements side by side, each with `threads` threads; returns the rates of each.
pub(super) fn measure(
    probe: &Probe<'_>,
    others: &mut [RemoteHost],
    device: DeviceKind,
    (ranks, threads): (u32, u32),
    budget_seconds: f64,
) -> Result<Vec<RankRates>, ProbeError> {
    let grace_seconds = probe.grace_seconds + if device.is_gpu() { COMPILING_SECONDS } else { 0.0 };
    let precision = if device.is_gpu() { probe.precision } else { Precision::F32 };
    let wrong = |reason: String| ProbeError::Worker { ranks, reason };
    let because = |MeasurementFailure { words: reason, kind }: MeasurementFailure| match kind {
        Kind::Memory => ProbeError::Memory { ranks, reason },
        Kind::Late => ProbeError::Late { ranks, grace_seconds },
        Kind::Other => ProbeError::Worker { ranks, reason },
    };
    let (links, mapping) = links(others, probe, ranks).map_err(wrong)?;
    let (sender, answers) = channel();
    let mut children = ChildProcesses(Vec::new());
    let mut tell = Vec::new();
    for (rank, link) in (0..ranks).map(Rank).zip(links) {
        let host = probe.host.host_of(rank, ranks);
        let index = if device.is_gpu() { rank.0 % (ranks / probe.host.hosts) } else { 0 };
        let request = ProbeRequest {
            model: probe.model.clone(),
            placement: Placement { host, device, index, threads },
            layout: Layout::replicas(NonZeroU32::new(ranks).unwrap_or(NonZeroU32::MIN)),
            rank,
            link,
            micro_batches: probe.micro_batches.clone(),
            precision,
            budget_seconds,
        };
        let station = match others.get_mut(host as usize) {
            Some(other) => start_remote(other, &request.placement),
            None => start_local(probe, &request.placement, mapping.clone(), &mut children),
        };
        let station = station.map_err(|reason| wrong(format!("rank {rank}: {reason}")))?;
        tell.push(serve_rank(station, request, sender.clone()));
    }
    let until = Instant::now() + Duration::from_secs_f64(budget_seconds + grace_seconds);
    collect(&answers, &tell, until).map_err(because)
}

/// Returns the link of each rank to the others, and the file that local ranks inherit for it.
fn links(
    others: &mut [RemoteHost],
    probe: &Probe<'_>,
    ranks: u32,
) -> Result<(Vec<RankTransport>, Option<Arc<OwnedFd>>), String> {
    if ranks == 1 {
        return Ok((vec![RankTransport::Alone], None));
    }
    if others.is_empty() {
        let (file, link) = shared_memory::create(ranks).map_err(|error| format!("shared memory: {error}"))?;
        return Ok((vec![link; ranks as usize], Some(file)));
    }
    let identities = rank_certificates(&TrialId::for_probes(), AttemptId(0), ranks);
    let identities = identities.map_err(|error| format!("certificates: {error}"))?;
    let addresses =
        others.iter_mut().map(|other| other.address().map_err(|reason| format!("{}: {reason}", other.name)));
    let addresses: Vec<String> = addresses.collect::<Result<_, _>>()?;
    let link = |(rank, identity)| {
        let bind = addresses[probe.host.host_of(Rank(rank), ranks) as usize].clone();
        RankTransport::Tls { bind, identity }
    };
    Ok(((0..ranks).zip(identities).map(link).collect(), None))
}

/// Starts a measuring rank on this machine.
fn start_local(
    probe: &Probe<'_>,
    placement: &Placement,
    mapping: Option<Arc<OwnedFd>>,
    children: &mut ChildProcesses,
) -> Result<MeasuringRank, String> {
    let mut command = Command::new(&probe.worker.path);
    let failed = |error: io::Error| format!("{}: {error}", probe.worker.path.display());
    let (mut printed, writer) = io::pipe().map_err(failed)?;
    let again = writer.try_clone().map_err(failed)?;
    command.args(&probe.worker.arguments).stdin(Stdio::piped()).stdout(again).stderr(writer);
    set_compute_environment(&mut command, placement.threads);
    cuda::prepare(&mut command, placement.device).map_err(|error| error.to_string())?;
    let (mut child, messages) = channel::spawn_bound(command, mapping.as_slice()).map_err(failed)?;
    let stdin = child.stdin.take().expect("it is piped");
    let child = Arc::new(Mutex::new(child));
    children.0.push(Arc::clone(&child));
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        drop(printed.read_to_end(&mut said));
        String::from_utf8_lossy(&said).into_owned()
    });
    let complaint =
        Box::new(move || measurement_failure(&said.join().unwrap_or_default(), exit_status(&child)));
    Ok(MeasuringRank { to: Box::new(stdin), from: Box::new(messages), complaint })
}

/// Starts a measuring rank on a remote host.
fn start_remote(host: &mut RemoteHost, placement: &Placement) -> Result<MeasuringRank, String> {
    let name = host.name.clone();
    let stream = host.measure(placement).map_err(|reason| format!("{name}: {reason}"))?;
    let to = stream.try_clone().map_err(|error| format!("{name}: {error}"))?;
    Ok(MeasuringRank {
        to: Box::new(to),
        from: Box::new(stream),
        complaint: Box::new(move || MeasurementFailure {
            words: format!("it ended on {name}"),
            kind: Kind::Other,
        }),
    })
}

/// Talks with a rank in a thread of its own; orders to the returned sender are forwarded to it.
fn serve_rank(station: MeasuringRank, request: ProbeRequest, answers: Sender<RankReply>) -> Sender<Order> {
    let MeasuringRank { mut to, mut from, complaint } = station;
    let rank = request.rank;
    let is_over_tls = matches!(request.link, RankTransport::Tls { .. });
    let (tell, told) = channel::<Order>();
    thread::spawn(move || {
        let mut converse = || -> Result<RankRates, FrameError> {
            frame::write(&mut to, &request)?;
            if is_over_tls && let Event::Listening(address) = frame::read(&mut from)? {
                drop(answers.send(RankReply::Listening(rank, address)));
                if let Ok(peers) = told.recv() {
                    frame::write(&mut to, &peers)?;
                }
            }
            // The pipe stays open: a worker ends when its standard input is closed.
            frame::read(&mut from)
        };
        let heard = converse();
        drop(to);
        drop(from);
        let heard = heard.map_err(|error| {
            let MeasurementFailure { words, kind } = complaint();
            let how = match error {
                // Its last output explains more.
                FrameError::Closed | FrameError::Torn | FrameError::Io(_) => String::new(),
                error => format!("{error}: "),
            };
            MeasurementFailure { words: format!("rank {rank}: {how}{words}"), kind }
        });
        drop(answers.send(RankReply::Rates(heard)));
    });
    tell
}

/// Returns the exit status of a rank whose pipes are closed; `None` if it does not end in time.
fn exit_status(child: &Mutex<Child>) -> Option<ExitStatus> {
    let until = Instant::now() + LAST_WORDS;
    loop {
        let ended = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        match ended {
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

/// Returns the reason why a measurement failed, from the last output and the exit status: a line without a
/// backtrace.
fn measurement_failure(complaint: &str, status: Option<ExitStatus>) -> MeasurementFailure {
    let lines = complaint.lines().map(str::trim).take_while(|line| !line.starts_with("stack backtrace"));
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.starts_with("note: run with")).collect();
    let asked = lines
        .iter()
        .find_map(|line| line.strip_prefix("memory allocation of ")?.split(' ').next()?.parse::<u64>().ok());
    if let Some(bytes) = asked {
        let words = format!("out of memory: there was no room for {}", Bytes(bytes));
        return MeasurementFailure { words, kind: Kind::Memory };
    }
    let signal = status.and_then(|status| status.signal());
    let is_killed = signal == Some(Signal::KILL.as_raw());
    let last = lines.last().copied();
    let is_memory = is_killed || last.is_some_and(|line| line.to_lowercase().contains("out of memory"));
    let words = match (signal, status.and_then(|status| status.code()), last) {
        (Some(signal), _, last) => {
            let cause = if is_killed { ", as the kernel does when memory runs out" } else { "" };
            let last = last.map_or(String::new(), |last| format!("; its last words: {last}"));
            format!("killed by signal {signal}{cause}{last}")
        }
        (None, _, Some(last)) => last.to_owned(),
        (None, Some(code), None) => format!("exited with {code} without a word"),
        (None, None, None) => "it closed its output without a word".to_owned(),
    };
    MeasurementFailure { words, kind: if is_memory { Kind::Memory } else { Kind::Other } }
}

/// Sends all ranks the addresses of the others, and waits for the measurements.
fn collect(
    answers: &Receiver<RankReply>,
    tell: &[Sender<Order>],
    until: Instant,
) -> Result<Vec<RankRates>, MeasurementFailure> {
    let mut addresses = vec![None; tell.len()];
    let mut measured = Vec::new();
    while measured.len() < tell.len() {
        let left = until.saturating_duration_since(Instant::now());
        let late = |_| MeasurementFailure { words: String::new(), kind: Kind::Late };
        match answers.recv_timeout(left).map_err(late)? {
            RankReply::Rates(Ok(rates)) => measured.push(rates),
            RankReply::Rates(Err(reason)) => {
                return Err(root_cause(reason, answers, tell.len() - measured.len() - 1));
            }
            RankReply::Listening(rank, address) => {
                addresses[rank.0 as usize] = Some(address);
                let all: Option<Vec<String>> = addresses.iter().cloned().collect();
                for (tell, all) in tell.iter().zip(std::iter::repeat(all)) {
                    if let Some(all) = all {
                        drop(tell.send(Order::Peers(all)));
                    }
                }
            }
        }
    }
    Ok(measured)
}

/// Returns the root cause of a failure, given the failures of `others` more ranks soon after it: a rank
/// without memory takes the others with it, and their failures may arrive first.
fn root_cause(first: MeasurementFailure, answers: &Receiver<RankReply>, others: usize) -> MeasurementFailure {
    let until = Instant::now() + LAST_WORDS;
    for _ in (0..others).take_while(|_| first.kind != Kind::Memory) {
        match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(RankReply::Rates(Err(reason))) if reason.kind == Kind::Memory => return reason,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    first
}

/// Measuring processes, killed when the measurement ends for any reason.
struct ChildProcesses(Vec<Arc<Mutex<Child>>>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        for child in &self.0 {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            drop(child.kill());
            drop(child.wait());
        }
    }
}
