//! Files of checkpoints that come from other hosts: as they were written there, or not at all.

use super::door::{Door, place};
use super::{Greeting, PeerAddress, knock};
use crate::home::TrialFolder;
use dtrain_protocol::FileEntry;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Gets a file of the checkpoint `folder` from the first of `from` that has it as it was written; nothing to do when it is here in
/// its length.
///
/// `Err` says for every host why not.
pub(in crate::agent) fn fetch(
    door: &Door,
    own: u32,
    trial: &TrialFolder,
    folder: &str,
    file: &FileEntry,
    from: &[PeerAddress],
) -> Result<(), String> {
    let path = place(trial, folder, &file.name)
        .ok_or_else(|| format!("{folder}/{} is no file of a checkpoint", file.name))?;
    if fs::metadata(&path).is_ok_and(|found| found.len() == file.bytes) {
        return Ok(());
    }
    let mut reasons = Vec::new();
    for peer in from {
        let greeting = Greeting::Read { host: own, folder: folder.into(), file: file.name.clone() };
        let got =
            knock(&door.tls, &door.names, peer, &greeting).and_then(|stream| write(stream, file, &path));
        match got {
            Ok(()) => return Ok(()),
            Err(error) => reasons.push(format!("{}: {error}", peer.name)),
        }
    }
    let reasons = if reasons.is_empty() { "no host has it".into() } else { reasons.join("; ") };
    Err(format!("{folder}/{} cannot be had: {reasons}", file.name))
}

/// Writes what comes, checks every chunk, and gives the file its name once it is durable.
fn write(mut from: impl Read, entry: &FileEntry, path: &Path) -> io::Result<()> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length != entry.bytes {
        return Err(io::Error::other(format!("it has {length} bytes, {} were written", entry.bytes)));
    }
    let unfinished = path.with_extension("coming");
    drop(fs::remove_file(&unfinished));
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    let written = chunks(&mut from, entry, &mut to).and_then(|()| to.sync_all());
    match written.and_then(|()| fs::rename(&unfinished, path)) {
        Ok(()) => crate::durable::sync_folder(path.parent().unwrap_or(Path::new("/"))),
        Err(error) => {
            drop(fs::remove_file(&unfinished));
            Err(error)
        }
    }
}

fn chunks(from: &mut impl Read, entry: &FileEntry, to: &mut File) -> io::Result<()> {
    let mut chunk = Vec::new();
    for index in 0..entry.chunks.len() as u64 {
        let range = entry.chunk(index);
        chunk.clear();
        from.by_ref().take(range.end - range.start).read_to_end(&mut chunk)?;
        let wrong = |detail| io::Error::other(format!("at byte {}: {detail}", range.start));
        entry.check(index, &blake3::hash(&chunk).to_hex()).map_err(wrong)?;
        to.write_all(&chunk)?;
    }
    let is_all = entry.chunks.len() as u64 == entry.bytes.div_ceil(CHUNK_BYTES);
    if is_all { Ok(()) } else { Err(io::Error::other("its table of contents is too short")) }
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
        for bad in [&flipped, &sent[..sent.len() - 1].to_vec(), &sent[..4].to_vec()] {
            assert!(write(bad.as_slice(), &entry, &path).is_err());
            assert_eq!(fs::read_dir(root.path()).expect("it is there").count(), 0, "nothing is left behind");
        }
        write(sent.as_slice(), &entry, &path).expect("it is as it was written");
        assert_eq!(fs::read(&path).expect("it is there"), bytes);
    }
}
