//! Copies a committed checkpoint from this machine to a host.

use super::client::unexpected_reply;
use super::{RemoteHost, Reply, Request};
use crate::checkpoints;
use crate::files;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::TrialId;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

impl RemoteHost {
    /// Copies the committed checkpoint in `folder` from this machine to the host, unless the host has it. The
    /// host verifies every chunk before it commits the copy.
    pub(in crate::launch) fn put_checkpoint(&mut self, trial: &TrialId, folder: &Path) -> Result<(), String> {
        let (manifest_text, manifest) = checkpoints::read_local_manifest(folder)?;
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        match self.ask(&Request::Checkpoints {
            trial: trial.clone(),
            writer: checkpoints::CheckpointWriter::Worker,
        })? {
            Reply::Checkpoints(folders) if folders.iter().any(|found| found.name == name) => return Ok(()),
            Reply::Checkpoints(_) => {}
            other => return Err(unexpected_reply(&other)),
        }
        for entry in &manifest.files {
            let path = folder.join(&entry.name);
            let words = |error: io::Error| format!("{}: {error}", path.display());
            let file = files::open(&path).map_err(words)?;
            for index in 0..entry.chunks.len() as u64 {
                let range = entry.chunk(index);
                let mut chunk = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut chunk, range.start).map_err(words)?;
                self.store(&Request::Put {
                    trial: trial.clone(),
                    folder: name.clone(),
                    file: entry.name.clone(),
                    from: range.start,
                    bytes: BASE64_STANDARD.encode(&chunk),
                })?;
            }
        }
        self.store(&Request::CommitPut { trial: trial.clone(), folder: name, manifest: manifest_text })
    }

    pub(super) fn store(&mut self, request: &Request) -> Result<(), String> {
        match self.ask(request)? {
            Reply::Stored => Ok(()),
            other => Err(unexpected_reply(&other)),
        }
    }
}
