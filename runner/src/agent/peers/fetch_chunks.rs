//! Parallel fetch of checkpoint chunks from all hosts that have them; each chunk is verified.

use super::fetch_file::{BUSY_RETRY_INTERVAL, BUSY_TIMEOUT, FetchError, has_length};
use super::heartbeat::LoopCounters;
use super::listener::PeerListener;
use super::{ChunkRequest, Greeting, connect};
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::fault_attribution::unfetched;
use dtrain_protocol::{FileEntry, frame};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

/// Number of hosts asked at the same time.
const PARALLEL_HOSTS: usize = 16;

/// Number of chunks in one request, to hide the round trip.
const CHUNKS_PER_REQUEST: usize = 8;

/// A file of which chunks are wanted.
pub(in crate::agent) struct WantedFile<'a> {
    pub(in crate::agent) entry: &'a FileEntry,
    /// The hosts that have the file.
    pub(in crate::agent) holders: &'a [PeerAddress],
    /// The file that receives the chunks, each at its own offset.
    pub(in crate::agent) to: File,
}

/// Identifies a chunk by the index of its file among the targets and its index within the file.
pub(in crate::agent) type ChunkId = (usize, u64);

/// The number of bytes received, and the hosts that sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct ReceivedChunks {
    /// Number of bytes, rejected ones included.
    pub(in crate::agent) bytes: u64,
    /// Indices of the hosts that sent chunks.
    pub(in crate::agent) hosts: BTreeSet<u32>,
}

/// Fetcher of chunks of the checkpoint in `folder`.
pub(in crate::agent) struct ChunkFetcher<'a> {
    pub(in crate::agent) listener: &'a PeerListener,
    /// Index of this host. Each host starts with another peer, to spread the load.
    pub(in crate::agent) own: u32,
    pub(in crate::agent) folder: &'a str,
    pub(in crate::agent) loop_counters: &'a LoopCounters,
}

/// The contribution of one host: bytes and chunks received, and the error that stopped it, with the file
/// concerned.
struct HostContribution {
    bytes: u64,
    chunks: usize,
    missed: Option<(usize, FetchError)>,
}

impl ChunkFetcher<'_> {
    /// Fetches the wanted chunks. A host that fails is left out, and the others replace it.
    ///
    /// `Err` tells why no host gives a chunk, and if the checkpoint is damaged.
    pub(in crate::agent) fn fetch_chunks(
        &self,
        targets: &[WantedFile<'_>],
        mut wanted: Vec<ChunkId>,
        received: &mut ReceivedChunks,
    ) -> Result<(), LaunchError> {
        // Hosts that sent damaged data, by file; hosts that failed, for all files.
        let (mut liars, mut lost) = (BTreeSet::new(), BTreeMap::<u32, String>::new());
        let mut is_of_checkpoint = true;
        let until = Instant::now() + BUSY_TIMEOUT;
        while !wanted.is_empty() {
            let mut lists = BTreeMap::<u32, (&PeerAddress, Vec<ChunkId>)>::new();
            for (file, chunk) in wanted.drain(..) {
                let gives = |peer: &&PeerAddress| {
                    !lost.contains_key(&peer.host) && !liars.contains(&(peer.host, file))
                };
                let able: Vec<&PeerAddress> = targets[file].holders.iter().filter(gives).collect();
                let turn = chunk.wrapping_add(file as u64).wrapping_add(self.own.into());
                let Some(turn) = turn.checked_rem(able.len() as u64) else {
                    let reasons: Vec<&str> = targets[file]
                        .holders
                        .iter()
                        .filter_map(|peer| lost.get(&peer.host).map(String::as_str))
                        .collect();
                    return Err(self.no_host_has(&targets[file], chunk, &reasons, is_of_checkpoint));
                };
                let peer = able[usize::try_from(turn).unwrap_or(0)];
                lists.entry(peer.host).or_insert_with(|| (peer, Vec::new())).1.push((file, chunk));
            }
            let lists: Vec<(&PeerAddress, Vec<ChunkId>)> = lists.into_values().collect();
            let mut are_busy = false;
            for ((peer, list), given) in self.ask_all(targets, &lists) {
                received.bytes += given.bytes;
                if given.bytes > 0 {
                    received.hosts.insert(peer.host);
                }
                wanted.extend(&list[given.chunks..]);
                match given.missed {
                    None => {}
                    Some((_, FetchError::Here(error))) => {
                        let words = format!("{}: it cannot be kept: {error}", self.folder);
                        return Err(words.into());
                    }
                    Some((_, FetchError::Busy)) if Instant::now() < until => are_busy = true,
                    Some((_, FetchError::Busy)) => {
                        is_of_checkpoint = false;
                        lost.insert(peer.host, format!("{}: it is too busy", peer.name));
                    }
                    Some((_, FetchError::There(error))) => {
                        // An error of the operating system does not mean that the file is damaged.
                        is_of_checkpoint &= error.raw_os_error().is_none();
                        lost.insert(peer.host, format!("{}: {error}", peer.name));
                    }
                    Some((file, FetchError::Damaged(detail))) => {
                        super::super::log_line(&format!(
                            "{} gives {}/{} otherwise than it was written: {detail}",
                            peer.name, self.folder, targets[file].entry.name
                        ));
                        liars.insert((peer.host, file));
                    }
                }
            }
            if are_busy {
                thread::sleep(BUSY_RETRY_INTERVAL);
            }
        }
        Ok(())
    }

    fn no_host_has(
        &self,
        target: &WantedFile<'_>,
        chunk: u64,
        reasons: &[&str],
        is_of_checkpoint: bool,
    ) -> LaunchError {
        let reasons =
            if reasons.is_empty() { "no host has it as it was written".into() } else { reasons.join("; ") };
        let file = target.entry;
        let at = file.chunk(chunk).start;
        let words = format!("cannot fetch {}/{} at byte {at}: {reasons}", self.folder, file.name);
        if is_of_checkpoint { LaunchError::Checkpoint(words) } else { unfetched(target.holders, words) }
    }

    /// Asks each host for its chunks, several hosts at the same time.
    fn ask_all<'l>(
        &self,
        targets: &[WantedFile<'_>],
        lists: &'l [(&'l PeerAddress, Vec<ChunkId>)],
    ) -> Vec<(&'l (&'l PeerAddress, Vec<ChunkId>), HostContribution)> {
        let lane = |lane: usize| {
            let own = lists.iter().skip(lane).step_by(PARALLEL_HOSTS);
            own.map(|list| (list, self.ask(targets, list.0, &list.1))).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let lanes = 0..PARALLEL_HOSTS.min(lists.len());
            let lanes: Vec<_> = lanes.map(|index| scope.spawn(move || lane(index))).collect();
            lanes.into_iter().flat_map(|lane| lane.join().expect("fetching does not panic")).collect()
        })
    }

    /// Asks one host for chunks of the targets.
    fn ask(&self, targets: &[WantedFile<'_>], peer: &PeerAddress, chunks: &[ChunkId]) -> HostContribution {
        let mut given = HostContribution { bytes: 0, chunks: 0, missed: None };
        let greeting = Greeting::ReadChunks { host: self.own, folder: self.folder.into() };
        let file = chunks.first().map_or(0, |(file, _)| *file);
        let mut stream = match connect(&self.listener.tls, &self.listener.names, peer, &greeting) {
            Ok(stream) => stream,
            Err(error) => {
                given.missed = Some((file, FetchError::There(error)));
                return given;
            }
        };
        for some in chunks
            .chunk_by(|one, next| one.0 == next.0)
            .flat_map(|of_file| of_file.chunks(CHUNKS_PER_REQUEST))
        {
            let file = some[0].0;
            let wanted = ChunkRequest {
                file: targets[file].entry.name.clone(),
                chunks: some.iter().map(|(_, chunk)| *chunk).collect(),
            };
            let asked = frame::write(&mut stream, &wanted).map_err(FetchError::There);
            let took =
                asked.and_then(|()| self.receive(&mut stream, &targets[file], &wanted.chunks, &mut given));
            if let Err(missed) = took {
                given.missed = Some((file, missed));
                return given;
            }
        }
        given
    }

    /// Receives chunks and keeps those whose hash matches.
    fn receive(
        &self,
        from: &mut impl Read,
        target: &WantedFile<'_>,
        chunks: &[u64],
        given: &mut HostContribution,
    ) -> Result<(), FetchError> {
        let WantedFile { entry, to, .. } = target;
        has_length(from, entry)?;
        let mut chunk = Vec::new();
        for index in chunks {
            let range = entry.chunk(*index);
            chunk.clear();
            let bytes = range.end - range.start;
            let read = from.by_ref().take(bytes).read_to_end(&mut chunk).map_err(FetchError::There)?;
            given.bytes += read as u64;
            if (read as u64) < bytes {
                return Err(FetchError::There(io::ErrorKind::UnexpectedEof.into()));
            }
            let wrong = |detail| FetchError::Damaged(format!("at byte {}: {detail}", range.start));
            entry.check(*index, &blake3::hash(&chunk).to_hex()).map_err(wrong)?;
            to.write_all_at(&chunk, range.start).map_err(FetchError::Here)?;
            given.chunks += 1;
            self.loop_counters.work();
        }
        Ok(())
    }
}
