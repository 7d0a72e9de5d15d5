//! The checkpoints of a trial on another host, read through the relay.

use super::client::unexpected_reply;
use super::{RemoteHost, Reply, Request};
use crate::checkpoints::{CheckpointStore, CheckpointWriter, FolderListing};
use dtrain_protocol::TrialId;

/// The checkpoint store of a trial on another host, read through the relay.
pub struct RemoteStore<'a> {
    host: &'a mut RemoteHost,
    name: String,
    trial: TrialId,
    writer: CheckpointWriter,
}

impl<'a> RemoteStore<'a> {
    /// Opens the store of the checkpoints that dtrain's own worker wrote for `trial` on `host`.
    pub fn new(host: &'a mut RemoteHost, trial: &TrialId) -> Self {
        let name = host.name.clone();
        Self { host, name, trial: trial.clone(), writer: CheckpointWriter::Worker }
    }

    /// Opens the store of the checkpoints of another writer.
    #[must_use]
    pub fn of(self, writer: CheckpointWriter) -> Self {
        Self { writer, ..self }
    }
}

impl CheckpointStore for RemoteStore<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn folders(&mut self) -> Result<Vec<FolderListing>, String> {
        match self.host.ask(&Request::Checkpoints { trial: self.trial.clone(), writer: self.writer })? {
            Reply::Checkpoints(folders) => Ok(folders),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn read(&mut self, folder: &str, file: &str, from: u64) -> Result<Vec<u8>, String> {
        let (folder, file) = (folder.to_owned(), file.to_owned());
        self.host.bytes(&Request::Piece {
            trial: self.trial.clone(),
            writer: self.writer,
            folder,
            file,
            from,
        })
    }

    fn hashes(
        &mut self,
        folder: &str,
        file: &str,
        first: u64,
        count: u64,
    ) -> Result<Vec<Result<String, String>>, String> {
        let (folder, file) = (folder.to_owned(), file.to_owned());
        match self.host.ask(&Request::Hashes { trial: self.trial.clone(), folder, file, first, count })? {
            Reply::Hashes(hashes) => Ok(hashes),
            other => Err(unexpected_reply(&other)),
        }
    }
    fn crc32(&mut self, folder: &str, file: &str) -> Result<u32, String> {
        let (folder, file) = (folder.to_owned(), file.to_owned());
        let request = Request::Crc32 { trial: self.trial.clone(), writer: self.writer, folder, file };
        match self.host.ask(&request)? {
            Reply::Crc32(checksum) => Ok(checksum),
            other => Err(unexpected_reply(&other)),
        }
    }
}
