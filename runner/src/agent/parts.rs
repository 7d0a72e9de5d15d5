//! What the ranks of a host read of a checkpoint, brought together in a folder of its own: links to the files that are here, and
//! of the others the chunks that are read.
//!
//! Nothing of it is flushed, and no list of what is there is kept: a chunk is there when its hash says so. So a fetch that was cut
//! off is gone on with, whatever became of the machine. The folder is no checkpoint: nobody lends it, counts it or adopts it.

use super::messages::Fetched;
use super::peers::PeerAddress;
use super::peers::door::Door;
use super::peers::gather::{Came, Chunk, Gatherer, Target};
use super::peers::link::Pulses;
use crate::checkpoints::{COMMIT, MANIFEST};
use crate::files;
use crate::home::TrialFolder;
use crate::launch::NotLaunched;
use dtrain_protocol::checkpoint::head::{self, Places};
use dtrain_protocol::checkpoint::{Chunks, FETCHED, Reading};
use dtrain_protocol::{Assignment, FileEntry, Manifest};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A checkpoint of which the ranks of this host read some.
pub(super) struct Parts<'a> {
    pub(super) trial: &'a TrialFolder,
    /// Name of its folder.
    pub(super) name: &'a str,
    /// Its table of contents, as text and as it says.
    pub(super) text: &'a str,
    pub(super) manifest: &'a Manifest,
    /// Who has each of its files.
    pub(super) holders: &'a [(FileEntry, Vec<PeerAddress>)],
    /// The ranks of this host.
    pub(super) assignments: &'a [Assignment],
    pub(super) door: &'a Door,
    /// Index of this host.
    pub(super) own: u32,
    pub(super) pulses: &'a Pulses,
}

/// What this host has of a file.
enum Here {
    /// All of it.
    All,
    /// Perhaps something; the file has its length.
    Some(File),
}

impl Parts<'_> {
    /// Brings together what the ranks of this host read; gives the folder they go on from, and what was fetched for it.
    ///
    /// `Err` says whether the checkpoint is to blame, or only what keeps it from being had here now.
    pub(super) fn fetch(&self) -> Result<(PathBuf, Fetched), NotLaunched> {
        let since = Instant::now();
        let (own, folder) =
            (self.trial.checkpoints().join(self.name), self.trial.fetched_checkpoint(self.name));
        if self.manifest.files.iter().all(|file| is_whole(&own, file)) {
            return Ok((own, Fetched::default()));
        }
        let words = |error: io::Error| format!("{}: {error}", folder.display());
        self.open(&folder).map_err(words)?;
        let reads = self.assignments.iter().flat_map(|assignment| self.manifest.reads(assignment));
        let reads: Vec<Reading> = reads.collect();
        let have_some = self.manifest.files_of(&reads);
        let beside: BTreeSet<&str> = self.manifest.files_beside().map(|file| file.name.as_str()).collect();
        let mut targets = Vec::new();
        let mut lacking = BTreeMap::new();
        for (entry, holders) in self.holders {
            let name = entry.name.as_str();
            // Where nothing is read, a file of the right length is enough, and is not kept open.
            if let Here::Some(to) = place(&own, &folder, entry).map_err(words)?
                && (have_some.contains(name) || beside.contains(name))
            {
                let chunks = if beside.contains(name) { Chunks::all(entry) } else { Chunks::none(entry) };
                lacking.insert(entry.name.clone(), chunks);
                targets.push(Target { entry, holders, to });
            }
        }
        let gatherer = Gatherer { door: self.door, own: self.own, folder: self.name, pulses: self.pulses };
        let mut came = Came::default();
        let places = self.heads(&gatherer, &targets, &have_some, &mut came)?;
        self.manifest
            .add_chunks(&reads, &places, &mut lacking)
            .map_err(|detail| NotLaunched::Checkpoint(format!("{}: {detail}", self.name)))?;
        let mut needed = 0;
        let mut wanted = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            for chunk in lacking.get(&target.entry.name).into_iter().flat_map(Chunks::indices) {
                let range = target.entry.chunk(chunk);
                needed += range.end - range.start;
                wanted.push((index, chunk));
            }
        }
        self.gather(&gatherer, &targets, wanted, &mut came)?;
        let hosts = u32::try_from(came.hosts.len()).unwrap_or(u32::MAX);
        let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok((folder, Fetched { bytes: came.bytes, needed, hosts, milliseconds }))
    }

    /// Makes the folder, with the table of contents; what lies there of another checkpoint is removed.
    fn open(&self, folder: &Path) -> io::Result<()> {
        if files::read(&folder.join(MANIFEST)).is_ok_and(|found| found != self.text.as_bytes()) {
            fs::remove_dir_all(folder)?;
        }
        files::make_folder(folder)?;
        files::write(&folder.join(MANIFEST), self.text.as_bytes())?;
        files::write(&folder.join(COMMIT), blake3::hash(self.text.as_bytes()).to_hex().as_bytes())
    }

    /// Where things lie in the files that `have_some` of what is read. A head may be longer than a chunk.
    fn heads(
        &self,
        gatherer: &Gatherer<'_>,
        targets: &[Target<'_>],
        have_some: &BTreeSet<&str>,
        came: &mut Came,
    ) -> Result<BTreeMap<String, Places>, NotLaunched> {
        let is_read = |(_, target): &(usize, &Target<'_>)| have_some.contains(target.entry.name.as_str());
        let read: Vec<(usize, &Target<'_>)> = targets.iter().enumerate().filter(is_read).collect();
        self.gather(gatherer, targets, read.iter().map(|(index, _)| (*index, 0)).collect(), came)?;
        let wrong = |entry: &FileEntry, detail: String| {
            NotLaunched::Checkpoint(format!("{}/{}: {detail}", self.name, entry.name))
        };
        let bytes = |target: &Target<'_>, from: u64, to: u64| -> Result<Vec<u8>, NotLaunched> {
            let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(usize::MAX)];
            let read = target.to.read_exact_at(&mut bytes, from);
            read.map_err(|error| format!("{}/{}: {error}", self.name, target.entry.name))?;
            Ok(bytes)
        };
        let mut ends = Vec::new();
        for (index, target) in &read {
            let entry = target.entry;
            let first = bytes(target, 0, entry.bytes.min(8))?;
            let length = head::length(&first, entry.bytes).map_err(|detail| wrong(entry, detail))?;
            ends.push((*index, 8 + length));
        }
        let mut rest = Vec::new();
        for (index, end) in &ends {
            let mut chunks = Chunks::none(targets[*index].entry);
            chunks.add(&(0..*end));
            rest.extend(chunks.indices().map(|chunk| (*index, chunk)));
        }
        self.gather(gatherer, targets, rest, came)?;
        let mut places = BTreeMap::new();
        for (index, end) in ends {
            let (target, entry) = (&targets[index], targets[index].entry);
            let found = head::decode(&bytes(target, 8, end)?, entry.bytes);
            places.insert(entry.name.clone(), found.map_err(|detail| wrong(entry, detail))?);
        }
        Ok(places)
    }

    /// Fetches those of the chunks that are not here.
    fn gather(
        &self,
        gatherer: &Gatherer<'_>,
        targets: &[Target<'_>],
        mut wanted: Vec<Chunk>,
        came: &mut Came,
    ) -> Result<(), NotLaunched> {
        let mut bytes = Vec::new();
        wanted.retain(|(file, chunk)| {
            self.pulses.work();
            !is_here(&targets[*file], *chunk, &mut bytes)
        });
        gatherer.gather(targets, wanted, came)
    }
}

/// Whether a chunk is as it was written.
fn is_here(target: &Target<'_>, chunk: u64, bytes: &mut Vec<u8>) -> bool {
    let range = target.entry.chunk(chunk);
    bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
    target.to.read_exact_at(bytes, range.start).is_ok()
        && target.entry.check(chunk, &blake3::hash(bytes).to_hex()).is_ok()
}

fn is_whole(folder: &Path, file: &FileEntry) -> bool {
    fs::symlink_metadata(folder.join(&file.name))
        .is_ok_and(|found| found.is_file() && found.len() == file.bytes)
}

/// Puts a file into `folder`: a link to the one in `own` when that is whole, else one of its length that is filled in.
fn place(own: &Path, folder: &Path, entry: &FileEntry) -> io::Result<Here> {
    let path = folder.join(&entry.name);
    let source = own.join(&entry.name);
    if is_whole(own, entry) {
        drop(fs::remove_file(&path));
        if fs::hard_link(&source, &path).is_ok() {
            return Ok(Here::All);
        }
        // A file system without links: the disk takes it twice until the attempt has its own checkpoint.
        files::copy(&source, &path)?;
        return Ok(Here::All);
    }
    // Another name of a committed file is never written to.
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file() || found.nlink() > 1) {
        fs::remove_file(&path)?;
    }
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let file = files::open_as(&options, &path)?;
    file.set_len(entry.bytes)?;
    Ok(Here::Some(file))
}

/// Removes what was fetched of all checkpoints but that in the folder `except`. `Err` is the first that could not be removed.
pub(super) fn remove(trial: &TrialFolder, except: Option<&Path>) -> io::Result<()> {
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
