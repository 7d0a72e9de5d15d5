//! Sends the recipe's folder from this machine to a host.

use super::client::unexpected_reply;
use super::{RemoteHost, Reply, Request};
use crate::workdir::WorkdirSnapshot;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::io::Read;
use std::time::{Duration, Instant};

/// Number of bytes that are sent in one request.
const PIECE: u64 = 2 << 20;

/// The transfer of the recipe's folder to a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkdirTransfer {
    /// The host had the folder already.
    AlreadyThere,
    /// The folder was sent.
    Sent {
        /// Duration of the transfer.
        took: Duration,
    },
}

impl RemoteHost {
    /// Returns `true` if the host has the recipe's folder with this digest, unchanged.
    pub fn has_workdir(&mut self, digest: &str) -> Result<bool, String> {
        match self.ask(&Request::Workdir { digest: digest.to_owned() })? {
            Reply::Workdir(is_there) => Ok(is_there),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Sends the recipe's folder to the host, unless the host has it; calls `sent` with the number of bytes of
    /// each piece. The host verifies every file.
    pub fn put_workdir(
        &mut self,
        snapshot: &WorkdirSnapshot,
        sent: &dyn Fn(u64),
    ) -> Result<WorkdirTransfer, String> {
        if self.has_workdir(snapshot.digest())? {
            return Ok(WorkdirTransfer::AlreadyThere);
        }
        let (digest, since) = (snapshot.digest().to_owned(), Instant::now());
        let (mut packed, mut from) = (snapshot.packed(), 0);
        loop {
            let mut piece = Vec::new();
            packed.by_ref().take(PIECE).read_to_end(&mut piece).map_err(|error| error.to_string())?;
            if piece.is_empty() {
                break;
            }
            let bytes = BASE64_STANDARD.encode(&piece);
            self.store(&Request::PutWorkdir { digest: digest.clone(), from, bytes })?;
            from += piece.len() as u64;
            sent(piece.len() as u64);
        }
        self.store(&Request::InstallWorkdir { digest })?;
        Ok(WorkdirTransfer::Sent { took: since.elapsed() })
    }
}
