//! The audit log: which user ran which program where. One JSON document per line; the file is only appended
//! to.

use crate::files;
use crate::home::Home;
use crate::secrets;
use dtrain_protocol::{AttemptId, TrialId};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Action that the audit log records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditedAction {
    /// A user started a trial.
    Run,
    /// A user resumed a trial.
    Resume,
    /// An attempt is about to be launched.
    Launch,
    /// A trial was asked to stop.
    Stop,
    /// An attempt is about to be killed.
    Kill,
    /// A host is excluded from a trial, or its processes of an earlier attempt were ended (fencing).
    Fence,
}

/// Host that a trial may run on, with the transport and the source of trust in its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedHost {
    /// Name of the host in the recipe; for this machine, its host name.
    pub host: String,
    /// Transport by which the host is reached: `here`, `ssh2`, `openssh` or `slurm`.
    pub transport: String,
    /// Source of trust in the SSH host key: `known_hosts`, for `openssh` also certificates; `None` without
    /// SSH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

/// Trial, program and hosts that a recorded action concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedTrial {
    /// Id of the trial that the action concerns.
    pub trial: TrialId,
    /// blake3 of the dtrain program, in hexadecimal.
    pub program: String,
    /// Arguments of the user's own training command, with secrets removed; empty for dtrain's own models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Hosts that the trial may run on.
    pub hosts: Vec<AuditedHost>,
    /// Origin of the recipe: the user's own, or packages with their commits and digests.
    pub recipe: String,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Time of the action, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Numeric id of the user who performed the action.
    pub uid: u32,
    /// Name of the user who performed the action; empty if unknown.
    pub user: String,
    /// Host name of the machine on which the user performed the action.
    pub controller: String,
    /// Action that was performed, or is about to be.
    pub action: AuditedAction,
    /// Attempt that the action concerns, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptId>,
    /// Trial that the action concerns.
    #[serde(flatten)]
    pub subject: AuditedTrial,
}

/// Writer of the audit records of one trial.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
    subject: AuditedTrial,
}

impl AuditLog {
    /// Returns a writer of records about `subject` to the audit log of the state folder `home`.
    pub fn new(home: &Home, subject: AuditedTrial) -> Self {
        let argv = subject.argv.iter().map(|word| secrets::redacted(word)).collect();
        Self { path: path(home), subject: AuditedTrial { argv, ..subject } }
    }

    /// Restricts the hosts in the following records to the one named `host`.
    pub fn for_host(mut self, host: &str) -> Self {
        self.subject.hosts.retain(|place| place.host == host);
        self
    }

    /// Returns the path of the audit log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record of `action` to the audit log and waits until it is on disk.
    pub fn write(&self, action: AuditedAction, attempt: Option<AttemptId>) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let entry = AuditRecord {
            at_ms: u64::try_from(now).unwrap_or(u64::MAX),
            uid: rustix::process::getuid().as_raw(),
            user: std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default(),
            controller: this_host(),
            action,
            attempt,
            subject: self.subject.clone(),
        };
        append(&self.path, &entry)
    }
}

/// Returns the host name of this machine.
pub fn this_host() -> String {
    sysinfo::System::host_name().unwrap_or_default()
}

/// Returns the path of the audit log in the state folder `home`.
pub fn path(home: &Home) -> PathBuf {
    home.path().join("audit.jsonl")
}

fn append(path: &Path, entry: &AuditRecord) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        files::make_folder(folder)?;
    }
    let mut file = files::append(path)?;
    // Other machines may append over a network file system, where appending is not atomic.
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    let mut line = if ends_in_partial_line(&mut file)? { vec![b'\n'] } else { Vec::new() };
    serde_json::to_writer(&mut line, entry)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_all()
}

/// Returns `true` if `file` does not end with a newline, so that its last line is incomplete.
fn ends_in_partial_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Reads all records of the audit log, oldest first, and counts the lines that cannot be parsed. A missing
/// log is empty.
pub fn read(home: &Home) -> io::Result<(Vec<AuditRecord>, u64)> {
    let bytes = match files::read(&path(home)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let (mut entries, mut damaged) = (Vec::new(), 0);
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(entry) => entries.push(entry),
            Err(_) => damaged += 1,
        }
    }
    Ok((entries, damaged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn audit(home: &Home) -> AuditLog {
        let place =
            AuditedHost { host: "h".into(), transport: "ssh2".into(), host_key: Some("known_hosts".into()) };
        let subject = AuditedTrial {
            trial: TrialId("t".into()),
            program: "00".into(),
            argv: ["run", "--password", "x", "--token=hunter2hunter2"].map(String::from).to_vec(),
            hosts: vec![place],
            recipe: "own files".into(),
        };
        AuditLog::new(home, subject)
    }

    #[test]
    fn entries_are_appended_for_their_owner_alone_and_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::at(folder.path().join("new"));
        assert_eq!(read(&home).expect("nothing is there"), (Vec::new(), 0));
        let audit = audit(&home);
        audit.write(AuditedAction::Run, None).expect("room");
        audit.write(AuditedAction::Launch, Some(AttemptId(1))).expect("room");
        let mode = fs::metadata(audit.path()).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let (entries, damaged) = read(&home).expect("readable");
        let told: Vec<_> = entries.iter().map(|entry| (entry.action, entry.attempt)).collect();
        assert_eq!(told, [(AuditedAction::Run, None), (AuditedAction::Launch, Some(AttemptId(1)))]);
        assert_eq!((damaged, entries[0].uid), (0, rustix::process::getuid().as_raw()));
        let text = fs::read_to_string(audit.path()).expect("text");
        assert!(!text.contains("hunter2") && text.contains("[removed: value of token]"), "{text}");
    }

    #[test]
    fn an_entry_after_one_that_was_cut_is_not_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::at(folder.path());
        fs::write(path(&home), "{\"at_ms\": 1, \"uid").expect("written");
        audit(&home).write(AuditedAction::Stop, None).expect("room");
        let (entries, damaged) = read(&home).expect("readable");
        assert_eq!((entries.len(), damaged, entries[0].action), (1, 1, AuditedAction::Stop));
    }

    #[test]
    fn a_link_in_place_of_the_log_is_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::at(folder.path());
        let precious = folder.path().join("precious");
        fs::write(&precious, "precious").expect("written");
        std::os::unix::fs::symlink(&precious, path(&home)).expect("made");
        let error = audit(&home).write(AuditedAction::Run, None).expect_err("a link");
        assert!(error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::at(folder.path());
        fs::create_dir(path(&home)).expect("made");
        assert!(audit(&home).write(AuditedAction::Run, None).is_err());
    }
}
