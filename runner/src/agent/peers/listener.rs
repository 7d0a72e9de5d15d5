//! The listener of an agent: accepts agents of the same attempt, and sends them checkpoint files.

use super::handshake::{ADMITTED, with_handshake_deadline, with_io_timeouts};
use super::{ChunkRequest, Greeting, MutualTlsStream, TrialAttempt};
use crate::control_protocol::AgentIdentity;
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{CHUNK_BYTES, is_file_name, parse_folder_name};
use dtrain_protocol::frame;
use dtrain_protocol::pending_peers::{PendingPeer, UnauthenticatedPeers};
use dtrain_protocol::tls::{Tls, verify_client_name};
use rustls::{Connection, StreamOwned};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Maximum number of open connections of agents, besides the leader's.
const MAX_CLIENTS: usize = 64;

/// Value sent in place of a file's length when there are too many clients.
pub(super) const BUSY: u64 = u64::MAX;

/// Maximum number of connections before authentication.
const MAX_UNAUTHENTICATED: usize = 64;

/// Maximum size of a greeting in bytes: until it is read, it is unknown which agent of the attempt connects.
const MAX_GREETING_BYTES: usize = 4 << 10;

/// Time without reading after which a client is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);

/// The bound listener of an agent.
pub(in crate::agent) struct PeerListener {
    listener: TcpListener,
    /// Address and port of the listener.
    pub(in crate::agent) address: String,
    pub(in crate::agent) tls: Tls,
    pub(in crate::agent) names: TrialAttempt,
    folder: TrialFolder,
    clients: AtomicUsize,
}

impl PeerListener {
    /// Binds a listener to a free port of this agent's address.
    pub(in crate::agent) fn bind(
        seat: &AgentIdentity,
        names: TrialAttempt,
        folder: &TrialFolder,
    ) -> Result<Self, String> {
        let words = |error: io::Error| format!("listening on {}: {error}", seat.bind);
        let listener = TcpListener::bind((seat.bind.as_str(), 0)).map_err(words)?;
        let address = listener.local_addr().map_err(words)?.to_string();
        let (tls, clients) = (Tls::new(&seat.identity)?, AtomicUsize::new(0));
        Ok(Self { listener, address, tls, names, folder: folder.clone(), clients })
    }

    /// Serves clients in threads as long as the process runs; `lead` gets every connection of the leader.
    pub(in crate::agent) fn open(self, lead: impl Fn(MutualTlsStream) + Send + Sync + 'static) -> Arc<Self> {
        let listener = Arc::new(self);
        let (opened, lead) = (Arc::clone(&listener), Arc::new(lead));
        let strangers = UnauthenticatedPeers::new(MAX_UNAUTHENTICATED);
        thread::spawn(move || {
            for socket in listener.listener.incoming().flatten() {
                let Ok(stranger) = strangers.admit(&socket) else { continue };
                let (listener, lead) = (Arc::clone(&listener), Arc::clone(&lead));
                // An unauthenticated peer gets no answer, and an agent that stops reading finds out by
                // itself.
                thread::spawn(move || drop(listener.serve_connection(socket, stranger, &*lead)));
            }
        });
        opened
    }

    fn serve_connection(
        &self,
        socket: TcpStream,
        known: PendingPeer,
        lead: &dyn Fn(MutualTlsStream),
    ) -> io::Result<()> {
        let connection = self.tls.server().map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, with_handshake_deadline(socket)?);
        stream.conn.complete_io(&mut stream.sock)?;
        let greeting = frame::read_within(&mut stream, MAX_GREETING_BYTES).map_err(io::Error::other)?;
        let claimed = match &greeting {
            Greeting::Lead => 0,
            Greeting::Read { host, .. } | Greeting::ReadChunks { host, .. } => *host,
        };
        verify_client_name(&stream.conn, &self.names.of(claimed)).map_err(io::Error::other)?;
        drop(known);
        let mut stream =
            MutualTlsStream { tls: Connection::Server(stream.conn), socket: with_io_timeouts(stream.sock)? };
        match greeting {
            Greeting::Lead => {
                stream.write_all(&[ADMITTED])?;
                lead(stream);
            }
            Greeting::Read { folder, file, .. } => {
                self.serve(&mut stream, |stream| self.send_file(stream, &folder, &file))?;
            }
            Greeting::ReadChunks { folder, .. } => {
                self.serve(&mut stream, |stream| self.send_chunks(stream, &folder))?;
            }
        }
        Ok(())
    }

    /// Serves one client, unless there are too many.
    fn serve(
        &self,
        stream: &mut MutualTlsStream,
        give: impl FnOnce(&mut MutualTlsStream) -> io::Result<()>,
    ) -> io::Result<()> {
        stream.socket.set_write_timeout(Some(PATIENCE))?;
        let is_full = self.clients.fetch_add(1, Ordering::SeqCst) >= MAX_CLIENTS;
        let given = if is_full { stream.write_all(&BUSY.to_le_bytes()) } else { give(stream) };
        self.clients.fetch_sub(1, Ordering::SeqCst);
        given?;
        stream.flush()?;
        stream.tls.send_close_notify();
        stream.flush()
    }

    /// Sends a checkpoint file: its length, then its bytes.
    fn send_file(&self, to: &mut MutualTlsStream, folder: &str, file: &str) -> io::Result<()> {
        let place = file_path(&self.folder, folder, file).ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = files::open(&place)?;
        let length = file.metadata()?.len();
        to.write_all(&length.to_le_bytes())?;
        io::copy(&mut file, to).map(drop)
    }

    /// Sends chunks of checkpoint files while the client asks for more.
    fn send_chunks(&self, to: &mut MutualTlsStream, folder: &str) -> io::Result<()> {
        to.socket.set_read_timeout(Some(PATIENCE))?;
        let mut chunk = Vec::new();
        // A client that has all its chunks disconnects.
        while let Ok(ChunkRequest { file, chunks }) = frame::read_within(to, MAX_GREETING_BYTES) {
            let place = file_path(&self.folder, folder, &file).ok_or(io::ErrorKind::InvalidInput)?;
            let file = files::open(&place)?;
            let length = file.metadata()?.len();
            to.write_all(&length.to_le_bytes())?;
            for index in chunks {
                let begin = index.saturating_mul(CHUNK_BYTES).min(length);
                let bytes = CHUNK_BYTES.min(length - begin);
                chunk.resize(usize::try_from(bytes).map_err(io::Error::other)?, 0);
                file.read_exact_at(&mut chunk, begin)?;
                to.write_all(&chunk)?;
            }
        }
        Ok(())
    }
}

/// Returns the path of a checkpoint file, in a committed or partial folder; `None` for an invalid name.
pub(super) fn file_path(trial: &TrialFolder, folder: &str, file: &str) -> Option<PathBuf> {
    let path = checkpoint_path(trial, folder)?;
    is_file_name(file).then(|| path.join(file))
}

/// Returns the folder of the checkpoint `name`, or `name.partial` if only that exists; `None` if invalid.
pub(in crate::agent) fn checkpoint_path(trial: &TrialFolder, name: &str) -> Option<PathBuf> {
    parse_folder_name(name).filter(|_| !name.ends_with(".partial") && !name.contains('/'))?;
    let whole = trial.checkpoints().join(name);
    Some(if whole.is_dir() { whole } else { trial.checkpoints().join(format!("{name}.partial")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_checkpoints_are_given() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let trial = TrialFolder::at(root.path());
        trial.create().expect("room on disk");
        let name = "step-000000012.a3";
        let of = |folder: &str, file: &str| file_path(&trial, folder, file);
        let partial = trial.checkpoints().join(format!("{name}.partial/rank-00001.safetensors"));
        assert_eq!(of(name, "rank-00001.safetensors"), Some(partial));
        std::fs::create_dir(trial.checkpoints().join(name)).expect("room on disk");
        assert_eq!(of(name, "manifest.json"), Some(trial.checkpoints().join(name).join("manifest.json")));
        for (folder, file) in [
            ("..", "agent.json"),
            ("step-000000012.a3/../..", "agent.json"),
            (name, "../agent.json"),
            (name, ".."),
            (name, ""),
            (name, "a/b"),
            ("logs", "agent.log"),
        ] {
            assert_eq!(of(folder, file), None, "{folder} {file}");
        }
    }
}
