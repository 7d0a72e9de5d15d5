//! The control socket, on which controllers reach an agent. Only the agent's user may connect.

use super::InboxMessage;
use crate::control_protocol::AgentRequest;
use crate::files;
use crate::home::TrialFolder;
use crate::spool::HighWatermark;
use dtrain_protocol::{AttemptId, frame};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// Longest path of a Unix socket, in bytes.
const LONGEST_PATH: usize = 107;

/// Time without reading after which a controller is disconnected.
const PATIENCE: Duration = Duration::from_secs(10);

/// The spool and its readers, shared by the threads of the control socket.
pub(super) struct SpoolAccess {
    /// Path of the spool.
    pub(super) spool: PathBuf,
    /// Number of readable bytes of the spool.
    pub(super) high_watermark: HighWatermark,
    /// Number of controllers that follow the spool.
    pub(super) followers: AtomicU32,
}

/// Binds the control socket of an attempt; returns it with its path.
pub(super) fn bind(folder: &TrialFolder, attempt: AttemptId) -> io::Result<(UnixListener, PathBuf)> {
    let path = socket_path(folder, attempt)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok((listener, path))
}

/// Returns the path of the control socket: in the trial's folder unless that path is too long.
fn socket_path(folder: &TrialFolder, attempt: AttemptId) -> io::Result<PathBuf> {
    let near = folder.socket();
    if near.as_os_str().len() <= LONGEST_PATH {
        return Ok(near);
    }
    let user = rustix::process::getuid().as_raw();
    let name = blake3::hash(near.as_os_str().as_encoded_bytes()).to_hex();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.as_os_str().len() < 60 && path.is_absolute());
    let far = match runtime {
        Some(runtime) => runtime.join(format!("dtrain-{}", &name[..16])),
        None => Path::new("/tmp").join(format!("dtrain-{user}-{}", &name[..16])),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&far)?;
    let found = fs::symlink_metadata(&far)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let words = format!("{} must be a folder of user {user} alone", far.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    Ok(far.join(format!("agent-{attempt}.sock")))
}

/// Accepts controllers, in a thread that runs as long as the process.
pub(super) fn serve(listener: UnixListener, shared: Arc<SpoolAccess>, inbox: Sender<InboxMessage>) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (shared, inbox) = (Arc::clone(&shared), inbox.clone());
            if is_own_user(&stream) {
                thread::spawn(move || drop(serve_controller(stream, &shared, &inbox)));
            }
        }
    });
}

fn is_own_user(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

/// Serves the requests of one controller.
fn serve_controller(
    stream: UnixStream,
    shared: &Arc<SpoolAccess>,
    inbox: &Sender<InboxMessage>,
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut requests = BufReader::new(stream.try_clone()?);
    loop {
        match frame::read(&mut requests) {
            Ok(AgentRequest::Follow { from }) => {
                let (shared, stream) = (Arc::clone(shared), stream.try_clone()?);
                shared.followers.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    drop(stream_spool(&stream, &shared, from));
                    drop(stream.shutdown(Shutdown::Both));
                    shared.followers.fetch_sub(1, Ordering::SeqCst);
                });
            }
            Ok(AgentRequest::Stop) => drop(inbox.send(InboxMessage::Stop)),
            Ok(AgentRequest::Regroup) => drop(inbox.send(InboxMessage::Regroup)),
            Ok(AgentRequest::Heartbeat) => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Copies the spool from byte `from` to a controller until the spool is closed.
fn stream_spool(mut to: &UnixStream, shared: &SpoolAccess, from: u64) -> io::Result<()> {
    let mut spool = files::open(&shared.spool)?;
    spool.seek(SeekFrom::Start(from))?;
    let mut sent = from;
    while let Some(length) = shared.high_watermark.beyond(sent) {
        sent += io::copy(&mut (&mut spool).take(length - sent), &mut to)?;
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_whose_path_is_too_long_lies_elsewhere_and_belongs_to_its_user_alone() {
        let root = tempfile::tempdir().expect("a temporary folder");
        for name in ["short".to_owned(), "x".repeat(120)] {
            let folder = TrialFolder::at(root.path().join(&name));
            folder.create().expect("room on disk");
            let (listener, path) = bind(&folder, AttemptId(4)).expect("a socket");
            assert!(path.as_os_str().len() <= LONGEST_PATH, "{}", path.display());
            assert_eq!(path.starts_with(folder.path()), name == "short");
            assert_eq!(fs::metadata(&path).expect("it is bound").mode() & 0o777, 0o600);
            drop(listener);
            fs::remove_file(&path).expect("ours");
            if name != "short" {
                fs::remove_dir(path.parent().expect("a folder")).expect("ours");
            }
        }
    }
}
