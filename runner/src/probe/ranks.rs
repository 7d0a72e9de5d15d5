//! Ranks that measure side by side, on this machine or on others.

use super::{Probe, ProbeError};
use crate::agent::{identities, mapping};
use crate::launch::relay::RemoteHost;
use crate::process::{bind_to_this_thread, for_compute};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{
    AttemptId, DeviceKind, Event, Layout, Link, Order, Placement, ProbeRequest, Rank, RankRates, TrialId,
};
use dtrain_recipes::Bytes;
use rustix::fd::OwnedFd;
use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds beyond its share of the budget that a measurement may take before it is given up: at least one pass of every kind of
/// block is measured, whatever it takes.
const GRACE_SECONDS: f64 = 60.0;

/// What is said of it then.
const NO_ANSWER: &str =
    "measuring took a minute longer than `cluster.probe` allows and was given up; is the machine busy?";

/// A rank that measures, wherever it runs.
struct Station {
    to: Box<dyn Write + Send>,
    from: Box<dyn Read + Send>,
    /// What it wrote to its standard error, once it ended.
    complaint: Box<dyn FnOnce() -> String + Send>,
}

/// What a rank answers.
enum Answer {
    /// Where it listens.
    Listening(Rank, String),
    /// What it measured, or why it did not.
    Rates(Result<RankRates, String>),
}

/// Runs `ranks` probes with so many threads each side by side; what each of them measured.
pub(super) fn measure(
    probe: &Probe<'_>,
    others: &mut [RemoteHost],
    device: DeviceKind,
    (ranks, threads): (u32, u32),
    budget_seconds: f64,
) -> Result<Vec<RankRates>, ProbeError> {
    let wrong = |reason: String| ProbeError::Worker { ranks, reason };
    let (links, mapping) = links(others, probe, ranks).map_err(wrong)?;
    let (sender, answers) = channel();
    let mut children = Children(Vec::new());
    let mut tell = Vec::new();
    for (rank, link) in (0..ranks).map(Rank).zip(links) {
        let host = probe.host.host_of(rank, ranks);
        let index = if device == DeviceKind::Cuda { rank.0 % (ranks / probe.host.hosts) } else { 0 };
        let request = ProbeRequest {
            model: probe.model.clone(),
            placement: Placement { host, device, index, threads },
            layout: Layout::replicas(NonZeroU32::new(ranks).unwrap_or(NonZeroU32::MIN)),
            rank,
            link,
            micro_batches: probe.micro_batches.clone(),
            budget_seconds,
        };
        let station = match others.get_mut(host as usize) {
            Some(other) => there(other, threads),
            None => here(probe, threads, mapping.clone(), &mut children),
        };
        let station = station.map_err(|reason| wrong(format!("rank {rank}: {reason}")))?;
        tell.push(attend(station, request, sender.clone()));
    }
    let until = Instant::now() + Duration::from_secs_f64(budget_seconds + GRACE_SECONDS);
    collect(&answers, &tell, until).map_err(wrong)
}

/// The link of each rank, and the file they inherit for it.
fn links(
    others: &mut [RemoteHost],
    probe: &Probe<'_>,
    ranks: u32,
) -> Result<(Vec<Link>, Option<Arc<OwnedFd>>), String> {
    if ranks == 1 {
        return Ok((vec![Link::Alone], None));
    }
    if others.is_empty() {
        let (file, link) = mapping::shared(ranks).map_err(|error| format!("shared memory: {error}"))?;
        return Ok((vec![link; ranks as usize], Some(file)));
    }
    let identities = identities(&TrialId::of_probes(), AttemptId(0), ranks);
    let identities = identities.map_err(|error| format!("certificates: {error}"))?;
    let addresses =
        others.iter_mut().map(|other| other.address().map_err(|reason| format!("{}: {reason}", other.name)));
    let addresses: Vec<String> = addresses.collect::<Result<_, _>>()?;
    let link = |(rank, identity)| {
        let bind = addresses[probe.host.host_of(Rank(rank), ranks) as usize].clone();
        Link::Tls { bind, identity }
    };
    Ok(((0..ranks).zip(identities).map(link).collect(), None))
}

/// Starts a rank on this machine.
fn here(
    probe: &Probe<'_>,
    threads: u32,
    mapping: Option<Arc<OwnedFd>>,
    children: &mut Children,
) -> Result<Station, String> {
    let mut command = Command::new(&probe.worker.path);
    command.args(&probe.worker.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for_compute(&mut command, threads);
    bind_to_this_thread(&mut command, mapping);
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", probe.worker.path.display()))?;
    let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((stdin, stdout), mut stderr) = pipes.expect("all three are piped");
    children.0.push(child);
    let said = thread::spawn(move || std::io::read_to_string(&mut stderr).unwrap_or_default());
    let complaint = Box::new(move || said.join().unwrap_or_default());
    Ok(Station { to: Box::new(stdin), from: Box::new(stdout), complaint })
}

/// Starts a rank on another host.
fn there(host: &mut RemoteHost, threads: u32) -> Result<Station, String> {
    let name = host.name.clone();
    let stream = host.measure(threads).map_err(|reason| format!("{name}: {reason}"))?;
    let to = stream.try_clone().map_err(|error| format!("{name}: {error}"))?;
    Ok(Station {
        to: Box::new(to),
        from: Box::new(stream),
        complaint: Box::new(move || format!("on {name}")),
    })
}

/// Talks with a rank in a thread of its own; what is sent to the returned sender is told to it.
fn attend(station: Station, request: ProbeRequest, answers: Sender<Answer>) -> Sender<Order> {
    let Station { mut to, mut from, complaint } = station;
    let rank = request.rank;
    let is_over_tls = matches!(request.link, Link::Tls { .. });
    let (tell, told) = channel::<Order>();
    thread::spawn(move || {
        let mut converse = || -> Result<RankRates, FrameError> {
            frame::write(&mut to, &request)?;
            if is_over_tls && let Event::Listening(address) = frame::read(&mut from)? {
                drop(answers.send(Answer::Listening(rank, address)));
                if let Ok(peers) = told.recv() {
                    frame::write(&mut to, &peers)?;
                }
            }
            // The pipe stays open: a worker whose standard input ends is to end as well.
            frame::read(&mut from)
        };
        let heard = converse();
        drop(to);
        drop(from);
        let heard = heard.map_err(|error| format!("rank {rank}: {error}: {}", reason(&complaint())));
        drop(answers.send(Answer::Rates(heard)));
    });
    tell
}

/// What the standard error of a rank says, without a backtrace.
fn reason(complaint: &str) -> String {
    let lines = complaint.lines().map(str::trim).take_while(|line| !line.starts_with("stack backtrace"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let asked = lines
        .iter()
        .find_map(|line| line.strip_prefix("memory allocation of ")?.split(' ').next()?.parse::<u64>().ok());
    match asked {
        Some(bytes) => format!("out of memory: there was no room for {}", Bytes(bytes)),
        None => lines.join("; "),
    }
}

/// Hands addresses around, and waits for what every rank measured.
fn collect(
    answers: &Receiver<Answer>,
    tell: &[Sender<Order>],
    until: Instant,
) -> Result<Vec<RankRates>, String> {
    let mut addresses = vec![None; tell.len()];
    let mut measured = Vec::new();
    while measured.len() < tell.len() {
        let left = until.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left).map_err(|_| NO_ANSWER)? {
            Answer::Rates(rates) => measured.push(rates?),
            Answer::Listening(rank, address) => {
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

/// Probes that end with the measurement, however it ends.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
