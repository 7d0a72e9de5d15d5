//! Fetch of whole checkpoint files from other hosts, with verification.

use super::heartbeat::LoopCounters;
use super::listener::{BUSY, PeerListener, file_path};
use super::{Greeting, connect};
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::fault_attribution::unfetched;
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::FileEntry;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Time after which a busy host counts as failed.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause before busy hosts are asked again.
pub(super) const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The reason why a file was not fetched.
pub(super) enum FetchError {
    /// The other host serves too many clients.
    Busy,
    /// The file cannot be written on this host.
    Here(io::Error),
    /// The other host cannot be reached, or its answer ended early.
    There(io::Error),
    /// The received file has a wrong hash or length.
    Damaged(String),
}

/// Fetches a file of the checkpoint `folder` from one of the hosts `from` and verifies it, unless the file is
/// here in full length. Each host starts with a different peer, to spread the load. Returns the host that
/// sent it, if any.
///
/// `Err` has the reason of every host, and tells if the checkpoint is damaged.
pub(in crate::agent) fn fetch_file(
    listener: &PeerListener,
    own: u32,
    trial: &TrialFolder,
    folder: &str,
    file: &FileEntry,
    from: &[PeerAddress],
    loop_counters: &LoopCounters,
) -> Result<Option<u32>, LaunchError> {
    let path = file_path(trial, folder, &file.name)
        .ok_or_else(|| format!("{folder}/{} is not a checkpoint file", file.name))?;
    if fs::metadata(&path).is_ok_and(|found| found.len() == file.bytes) {
        return Ok(None);
    }
    // The folder that the ranks resumed from may have all of it.
    if let Ok(parts) = files::open(&trial.fetched_checkpoint(folder).join(&file.name))
        && write(file.bytes.to_le_bytes().chain(parts), file, &path, loop_counters).is_ok()
    {
        return Ok(None);
    }
    let ask = |peer: &PeerAddress| {
        let greeting = Greeting::Read { host: own, folder: folder.into(), file: file.name.clone() };
        let stream = connect(&listener.tls, &listener.names, peer, &greeting).map_err(FetchError::There)?;
        write(stream, file, &path, loop_counters)
    };
    let mut peers: Vec<&PeerAddress> = from.iter().collect();
    let first = own as usize % peers.len().max(1);
    peers.rotate_left(first);
    let words = |reasons: &str| format!("cannot fetch {folder}/{}: {reasons}", file.name);
    let (mut reasons, mut is_of_checkpoint) = (Vec::new(), true);
    let until = Instant::now() + BUSY_TIMEOUT;
    while !peers.is_empty() {
        let mut busy = Vec::new();
        for peer in peers {
            match ask(peer) {
                Ok(()) => return Ok(Some(peer.host)),
                Err(FetchError::Here(error)) => {
                    return Err(words(&format!("it cannot be kept: {error}")).into());
                }
                Err(FetchError::Busy) if Instant::now() < until => busy.push(peer),
                Err(FetchError::Busy) => {
                    is_of_checkpoint = false;
                    reasons.push(format!("{}: it is too busy", peer.name));
                }
                Err(FetchError::There(error)) => {
                    // An error of the operating system does not mean that the file is damaged.
                    is_of_checkpoint &= error.raw_os_error().is_none();
                    reasons.push(format!("{}: {error}", peer.name));
                }
                Err(FetchError::Damaged(detail)) => reasons.push(format!("{}: {detail}", peer.name)),
            }
        }
        if !busy.is_empty() {
            thread::sleep(BUSY_RETRY_INTERVAL);
        }
        peers = busy;
    }
    let reasons = if reasons.is_empty() { "no host has it".into() } else { reasons.join("; ") };
    let reason = words(&reasons);
    Err(if is_of_checkpoint { LaunchError::Checkpoint(reason) } else { unfetched(from, reason) })
}

/// Reads the length of the remote file, and checks it. `Err` if it is wrong, or the host is busy.
pub(super) fn has_length(from: &mut impl Read, entry: &FileEntry) -> Result<(), FetchError> {
    let mut length = [0; 8];
    from.read_exact(&mut length).map_err(FetchError::There)?;
    match u64::from_le_bytes(length) {
        BUSY => Err(FetchError::Busy),
        length if length == entry.bytes => Ok(()),
        length => Err(FetchError::Damaged(format!("it has {length} bytes, {} were written", entry.bytes))),
    }
}

/// Writes the received bytes, verifies every chunk, and renames the file once it is durable.
fn write(
    mut from: impl Read,
    entry: &FileEntry,
    path: &Path,
    loop_counters: &LoopCounters,
) -> Result<(), FetchError> {
    has_length(&mut from, entry)?;
    let unfinished = path.with_extension("coming");
    drop(fs::remove_file(&unfinished));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
    let mut to = made.map_err(FetchError::Here)?;
    let named = chunks(&mut from, entry, &mut to, loop_counters)
        .and_then(|()| to.sync_all().and_then(|()| fs::rename(&unfinished, path)).map_err(FetchError::Here));
    if named.is_err() {
        drop(fs::remove_file(&unfinished));
        return named;
    }
    crate::durable::sync_folder(path.parent().unwrap_or(Path::new("/"))).map_err(FetchError::Here)
}

fn chunks(
    from: &mut impl Read,
    entry: &FileEntry,
    to: &mut File,
    loop_counters: &LoopCounters,
) -> Result<(), FetchError> {
    let mut chunk = Vec::new();
    for index in 0..entry.chunks.len() as u64 {
        let range = entry.chunk(index);
        chunk.clear();
        from.by_ref().take(range.end - range.start).read_to_end(&mut chunk).map_err(FetchError::There)?;
        let wrong = |detail| FetchError::Damaged(format!("at byte {}: {detail}", range.start));
        entry.check(index, &blake3::hash(&chunk).to_hex()).map_err(wrong)?;
        to.write_all(&chunk).map_err(FetchError::Here)?;
        loop_counters.work();
    }
    let is_all = entry.chunks.len() as u64 == entry.bytes.div_ceil(CHUNK_BYTES);
    if is_all { Ok(()) } else { Err(FetchError::Damaged("its table of contents is too short".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: &[u8]) -> FileEntry {
        let chunks = bytes.chunks(4 << 20).map(|chunk| blake3::hash(chunk).to_hex().to_string());
        FileEntry {
            name: "rank-00000.safetensors".into(),
            bytes: bytes.len() as u64,
            chunks: chunks.collect(),
        }
    }

    #[test]
    fn only_what_was_written_gets_its_name() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let path = root.path().join("rank-00000.safetensors");
        let bytes: Vec<u8> = (0..(5u32 << 20)).map(|i| i.to_le_bytes()[i as usize % 4]).collect();
        let entry = entry(&bytes);
        let mut sent = entry.bytes.to_le_bytes().to_vec();
        sent.extend(&bytes);
        let mut flipped = sent.clone();
        flipped[8 + (4 << 20) + 3] ^= 1;
        let loop_counters = LoopCounters::default();
        let busy = BUSY.to_le_bytes();
        assert!(matches!(write(busy.as_slice(), &entry, &path, &loop_counters), Err(FetchError::Busy)));
        let nowhere = root.path().join("nowhere/rank-00000.safetensors");
        assert!(matches!(write(sent.as_slice(), &entry, &nowhere, &loop_counters), Err(FetchError::Here(_))));
        assert!(matches!(
            write(flipped.as_slice(), &entry, &path, &loop_counters),
            Err(FetchError::Damaged(_))
        ));
        for bad in [&flipped, &sent[..sent.len() - 1].to_vec(), &sent[..4].to_vec()] {
            assert!(write(bad.as_slice(), &entry, &path, &loop_counters).is_err());
            assert_eq!(fs::read_dir(root.path()).expect("it is there").count(), 0, "nothing is left behind");
        }
        assert!(write(sent.as_slice(), &entry, &path, &loop_counters).is_ok(), "it is as it was written");
        assert_eq!(fs::read(&path).expect("it is there"), bytes);
    }
}
