//! The parts of a checkpoint that the ranks of a host read, collected in a folder of their own: links to
//! local files, and the needed chunks of all others.
//!
//! Nothing is flushed, and no list of present chunks is kept: a chunk is present if its hash matches. So an
//! interrupted fetch continues, even after a crash. The folder is no checkpoint: it is never lent, counted or
//! adopted.

use super::messages::FetchSummary;
use super::peers::fetch_chunks::{ChunkFetcher, ChunkId, ReceivedChunks, WantedFile};
use super::peers::heartbeat::LoopCounters;
use super::peers::listener::PeerListener;
use crate::checkpoints::{COMMIT, MANIFEST};
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::header::{self, ByteRanges};
use dtrain_protocol::checkpoint::{ChunkSet, FETCHED, TensorRead};
use dtrain_protocol::{Assignment, FileEntry, Manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A checkpoint of which the ranks of this host read parts, and where its files are.
pub(super) struct CheckpointParts<'a> {
    pub(super) trial: &'a TrialFolder,
    /// Name of the checkpoint folder.
    pub(super) name: &'a str,
    /// The checkpoint's manifest, as text and parsed.
    pub(super) text: &'a str,
    pub(super) manifest: &'a Manifest,
    /// Each file of the checkpoint, with the hosts that have it.
    pub(super) holders: &'a [(FileEntry, Vec<PeerAddress>)],
    /// The assignments of this host's ranks.
    pub(super) assignments: &'a [Assignment],
    pub(super) listener: &'a PeerListener,
    /// Index of this host in the attempt.
    pub(super) own: u32,
    pub(super) loop_counters: &'a LoopCounters,
}

/// State of a checkpoint file in this host's folder of parts.
enum LocalFile {
    /// Every byte of the file is here.
    All,
    /// The file has its full length; some chunks may be missing.
    Some(File),
}

impl CheckpointParts<'_> {
    /// Collects what the ranks of this host read; returns the folder to resume from, and what was fetched.
    ///
    /// `Err` tells if the checkpoint is damaged or only unavailable here now.
    pub(super) fn fetch(&self) -> Result<(PathBuf, FetchSummary), LaunchError> {
        let since = Instant::now();
        let (own, folder) =
            (self.trial.checkpoints().join(self.name), self.trial.fetched_checkpoint(self.name));
        if self.manifest.files.iter().all(|file| is_whole(&own, file)) {
            return Ok((own, FetchSummary::default()));
        }
        let words = |error: io::Error| format!("{}: {error}", folder.display());
        self.open(&folder).map_err(words)?;
        let reads = self.assignments.iter().flat_map(|assignment| self.manifest.reads(assignment));
        let reads: Vec<TensorRead> = reads.collect();
        let have_some = self.manifest.files_of(&reads);
        let beside: BTreeSet<&str> = self.manifest.files_beside().map(|file| file.name.as_str()).collect();
        let mut targets = Vec::new();
        let mut lacking = BTreeMap::new();
        for (entry, holders) in self.holders {
            let name = entry.name.as_str();
            // If no part of it is read, a file of the right length is enough and is not kept open.
            if let LocalFile::Some(to) = link_or_create(&own, &folder, entry).map_err(words)?
                && (have_some.contains(name) || beside.contains(name))
            {
                let chunks = if beside.contains(name) { ChunkSet::all(entry) } else { ChunkSet::none(entry) };
                lacking.insert(entry.name.clone(), chunks);
                targets.push(WantedFile { entry, holders, to });
            }
        }
        let fetcher = ChunkFetcher {
            listener: self.listener,
            own: self.own,
            folder: self.name,
            loop_counters: self.loop_counters,
        };
        let mut received = ReceivedChunks::default();
        let places = self.read_headers(&fetcher, &targets, &have_some, &mut received)?;
        self.manifest
            .add_chunks(&reads, &places, &mut lacking)
            .map_err(|detail| LaunchError::Checkpoint(format!("{}: {detail}", self.name)))?;
        let mut needed = 0;
        let mut wanted = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            for chunk in lacking.get(&target.entry.name).into_iter().flat_map(ChunkSet::indices) {
                let range = target.entry.chunk(chunk);
                needed += range.end - range.start;
                wanted.push((index, chunk));
            }
        }
        self.fetch_chunks(&fetcher, &targets, wanted, &mut received)?;
        let hosts = u32::try_from(received.hosts.len()).unwrap_or(u32::MAX);
        let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok((folder, FetchSummary { bytes: received.bytes, needed, hosts, milliseconds }))
    }

    /// Creates the folder of parts with the manifest; removes the content of another checkpoint.
    fn open(&self, folder: &Path) -> io::Result<()> {
        if files::read(&folder.join(MANIFEST)).is_ok_and(|found| found != self.text.as_bytes()) {
            fs::remove_dir_all(folder)?;
        }
        files::make_folder(folder)?;
        files::write(&folder.join(MANIFEST), self.text.as_bytes())?;
        files::write(&folder.join(COMMIT), blake3::hash(self.text.as_bytes()).to_hex().as_bytes())
    }

    /// Reads the headers of the files in `have_some`, to locate tensors. A header may be longer than a chunk.
    fn read_headers(
        &self,
        fetcher: &ChunkFetcher<'_>,
        targets: &[WantedFile<'_>],
        have_some: &BTreeSet<&str>,
        received: &mut ReceivedChunks,
    ) -> Result<BTreeMap<String, ByteRanges>, LaunchError> {
        let is_read = |(_, target): &(usize, &WantedFile<'_>)| have_some.contains(target.entry.name.as_str());
        let read: Vec<(usize, &WantedFile<'_>)> = targets.iter().enumerate().filter(is_read).collect();
        self.fetch_chunks(fetcher, targets, read.iter().map(|(index, _)| (*index, 0)).collect(), received)?;
        let wrong = |entry: &FileEntry, detail: String| {
            LaunchError::Checkpoint(format!("{}/{}: {detail}", self.name, entry.name))
        };
        let bytes = |target: &WantedFile<'_>, from: u64, to: u64| -> Result<Vec<u8>, LaunchError> {
            let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(usize::MAX)];
            let read = target.to.read_exact_at(&mut bytes, from);
            read.map_err(|error| format!("{}/{}: {error}", self.name, target.entry.name))?;
            Ok(bytes)
        };
        let mut ends = Vec::new();
        for (index, target) in &read {
            let entry = target.entry;
            let first = bytes(target, 0, entry.bytes.min(8))?;
            let length = header::length(&first, entry.bytes).map_err(|detail| wrong(entry, detail))?;
            ends.push((*index, 8 + length));
        }
        let mut rest = Vec::new();
        for (index, end) in &ends {
            let mut chunks = ChunkSet::none(targets[*index].entry);
            chunks.add(&(0..*end));
            rest.extend(chunks.indices().map(|chunk| (*index, chunk)));
        }
        self.fetch_chunks(fetcher, targets, rest, received)?;
        let mut places = BTreeMap::new();
        for (index, end) in ends {
            let (target, entry) = (&targets[index], targets[index].entry);
            let found = header::decode(&bytes(target, 8, end)?, entry.bytes);
            places.insert(entry.name.clone(), found.map_err(|detail| wrong(entry, detail))?);
        }
        Ok(places)
    }

    /// Fetches the chunks that are missing here.
    fn fetch_chunks(
        &self,
        fetcher: &ChunkFetcher<'_>,
        targets: &[WantedFile<'_>],
        mut wanted: Vec<ChunkId>,
        received: &mut ReceivedChunks,
    ) -> Result<(), LaunchError> {
        let mut bytes = Vec::new();
        wanted.retain(|(file, chunk)| {
            self.loop_counters.work();
            !is_chunk_valid(&targets[*file], *chunk, &mut bytes)
        });
        fetcher.fetch_chunks(targets, wanted, received)
    }
}

/// Returns `true` if a chunk of a file on disk matches its hash.
fn is_chunk_valid(target: &WantedFile<'_>, chunk: u64, bytes: &mut Vec<u8>) -> bool {
    let range = target.entry.chunk(chunk);
    bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
    target.to.read_exact_at(bytes, range.start).is_ok()
        && target.entry.check(chunk, &blake3::hash(bytes).to_hex()).is_ok()
}

fn is_whole(folder: &Path, file: &FileEntry) -> bool {
    fs::symlink_metadata(folder.join(&file.name))
        .is_ok_and(|found| found.is_file() && found.len() == file.bytes)
}

/// Puts a file into `folder`: a link to the file in `own` if that is complete, else one of full length to
/// fill.
fn link_or_create(own: &Path, folder: &Path, entry: &FileEntry) -> io::Result<LocalFile> {
    let path = folder.join(&entry.name);
    let source = own.join(&entry.name);
    if is_whole(own, entry) {
        drop(fs::remove_file(&path));
        if fs::hard_link(&source, &path).is_ok() {
            return Ok(LocalFile::All);
        }
        // A file system without links: the data is there twice until the attempt has its own checkpoint.
        files::copy(&source, &path)?;
        return Ok(LocalFile::All);
    }
    // A committed file must not be written through another link.
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file() || found.nlink() > 1) {
        fs::remove_file(&path)?;
    }
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let file = files::open_as(&options, &path)?;
    file.set_len(entry.bytes)?;
    Ok(LocalFile::Some(file))
}

/// Removes the fetched parts of all checkpoints, except those in folder `except`. `Err` is the first failure.
pub(super) fn remove_fetched(trial: &TrialFolder, except: Option<&Path>) -> io::Result<()> {
    let mut outcome = Ok(());
    for entry in fs::read_dir(trial.checkpoints())? {
        let path = entry?.path();
        let is_fetched = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(FETCHED));
        if is_fetched && Some(path.as_path()) != except {
            outcome = outcome.and(fs::remove_dir_all(&path));
        }
    }
    outcome
}

#[cfg(test)]
mod tests;
