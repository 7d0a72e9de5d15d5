//! Uploads a program to a host: afterwards it is there complete or not at all.
//!
//! `scp` is not used: it does not report a full disk.

use super::command_line::{CommandLine, PartName, ProgramDigest};
use super::{CommandOutput, PATIENCE, Transport, TransportError, describe_timeout, is_gone, run_to_end};
use dtrain_recipes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time within which a host must flush, read and hash an uploaded program.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of bytes of a program that are read at once.
const READ_BYTES: usize = 256 << 10;

/// Result of [`Transport::upload`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UploadOutcome {
    /// The host had the program already.
    AlreadyThere,
    /// The program was sent.
    Sent {
        /// Size of the program in bytes.
        bytes: u64,
        /// Duration of the upload in seconds.
        seconds: f64,
        /// True if it took the place of a program of another length or content under the same name, as one that was
        /// damaged has.
        was_damaged: bool,
    },
}

/// The locks of [`upload_lock`], by host.
static UPLOADS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// Returns the lock to hold during an upload to `host`: of several trials that start together, one uploads.
fn upload_lock(host: &str) -> Arc<Mutex<()>> {
    let mut uploads = UPLOADS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(uploads.entry(host.to_owned()).or_default())
}

/// Uploads `program` to the host of `transport`.
pub(super) fn upload<T: Transport + ?Sized>(
    transport: &mut T,
    program: &Path,
    digest: &ProgramDigest,
) -> Result<UploadOutcome, TransportError> {
    let failed = |source| TransportError::Program { path: program.to_owned(), source };
    let mut file = File::open(program).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let host = transport.name().to_owned();
    let lock = upload_lock(&host);
    let _uploading = lock.lock().unwrap_or_else(PoisonError::into_inner);
    let found =
        run_line(transport, &CommandLine::probe_program(digest), "looking for the program", PATIENCE)?;
    let was_there = number(&found, "size=");
    if was_there == Some(bytes) && text(&found, "digest=") == digest.to_string() {
        return Ok(UploadOutcome::AlreadyThere);
    }
    let free = free_bytes(&found);
    if free < bytes {
        return Err(TransportError::Room { host, wanted: Bytes(bytes), found: Bytes(free) });
    }
    let (part, since) = (PartName::generate(), Instant::now());
    let sent = send(transport, &CommandLine::receive_part(digest, part), &mut file)?;
    let said = run_line(
        transport,
        &CommandLine::install_part(digest, part, bytes),
        "placing the program",
        INSTALL_TIMEOUT,
    )?;
    let size = number(&said, "size=").unwrap_or(0);
    if text(&said, "placed=") == "1" {
        let (seconds, was_damaged) = (since.elapsed().as_secs_f64(), was_there.is_some());
        Ok(UploadOutcome::Sent { bytes, seconds, was_damaged })
    } else if size == bytes {
        let it = text(&said, "digest=");
        let it = if it.is_empty() {
            failure_text(&said)
        } else {
            format!("its digest is {it}, expected {digest}")
        };
        Err(TransportError::Unfit { host, said: it })
    } else {
        let (sent_bytes, free) = (Bytes(bytes), Bytes(self::free_bytes(&said)));
        let said = if sent.stderr.is_empty() { String::new() } else { format!(": {}", sent.stderr.trim()) };
        Err(TransportError::Damaged { host, sent: sent_bytes, found: Bytes(size), free, said })
    }
}

/// Runs a command that always exits with 0, and returns its output; another exit is an error.
fn run_line<T: Transport + ?Sized>(
    transport: &mut T,
    line: &CommandLine,
    doing: &'static str,
    patience: Duration,
) -> Result<CommandOutput, TransportError> {
    let stream = transport.start(line)?;
    let output = run_to_end(transport.name(), &stream, b"", patience)?;
    if output.status == 0 {
        return Ok(output);
    }
    Err(TransportError::Command { host: transport.name().into(), doing, said: failure_text(&output) })
}

/// Writes a file to the standard input of a command. If the command fails early, its exit tells the reason.
fn send<T: Transport + ?Sized>(
    transport: &mut T,
    line: &CommandLine,
    file: &mut File,
) -> Result<CommandOutput, TransportError> {
    let mut stream = transport.start(line)?;
    let failed = |source| TransportError::Stream { host: transport.name().into(), source };
    stream.pipe().set_write_timeout(Some(INSTALL_TIMEOUT)).map_err(failed)?;
    let poured = io::copy(&mut BufReader::with_capacity(READ_BYTES, file), &mut stream).map(|_| ());
    poured.or_else(|error| {
        if is_gone(&error) { Ok(()) } else { Err(failed(describe_timeout(error, INSTALL_TIMEOUT))) }
    })?;
    run_to_end(transport.name(), &stream, b"", INSTALL_TIMEOUT)
}

/// Returns the error output of a failed command as text for a message.
fn failure_text(output: &CommandOutput) -> String {
    match output.stderr.trim() {
        "" => format!("it exited with status {} and no output", output.status),
        said => said.to_owned(),
    }
}

fn text<'a>(output: &'a CommandOutput, key: &str) -> &'a str {
    output.stdout.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim()
}

fn number(output: &CommandOutput, key: &str) -> Option<u64> {
    text(output, key).parse().ok()
}

/// Parses the free bytes of a `df=` line: the field before the percentage, since device names may have
/// spaces.
fn free_bytes(output: &CommandOutput) -> u64 {
    let fields: Vec<_> = text(output, "df=").split_whitespace().collect();
    let percent = fields.iter().position(|field| field.ends_with('%')).unwrap_or(0);
    let kib: u64 = percent.checked_sub(1).and_then(|free| fields[free].parse().ok()).unwrap_or(0);
    kib.saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_the_field_before_the_percentage() {
        for (line, expected) in [
            ("df=/dev/sda1 100 60 40 60% /home", 40 << 10),
            ("df=a disk of ours 100 60 40 60% /home of ours", 40 << 10),
            ("df=", 0),
            ("df=60% of it", 0),
            ("", 0),
        ] {
            let output = CommandOutput { status: 0, stdout: line.into(), stderr: String::new() };
            assert_eq!(free_bytes(&output), expected, "{line}");
        }
    }
}
