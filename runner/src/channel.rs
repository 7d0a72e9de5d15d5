//! The pipe on which a child process of this program sends messages to its parent.
//!
//! It is not standard output: a library may print there before `main` begins, and such output belongs in the
//! log. The number of the pipe is an argument, so that grandchildren do not learn it; the child closes the
//! pipe to them first of all.

use crate::process::{bind_to_this_thread, inherit};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::FdFlags;
use std::fs::File;
use std::io::{self, PipeReader};
use std::process::{Child, Command};
use std::sync::Arc;

/// Name of the command-line argument that holds the number of the pipe.
const ARGUMENT: &str = "--channel";

/// Starts a worker or an agent; returns the child process and the pipe on which its messages arrive.
///
/// The caller sets standard output and standard error of `command` first.
pub fn spawn(mut command: Command) -> io::Result<(Child, PipeReader)> {
    let (messages, writer) = pipe(&mut command)?;
    inherit(&mut command, vec![writer]);
    Ok((command.spawn()?, messages))
}

/// Like [`spawn`], for a child that dies with the thread that starts it and that inherits the files `others`.
pub(crate) fn spawn_bound(mut command: Command, others: &[Arc<OwnedFd>]) -> io::Result<(Child, PipeReader)> {
    let (messages, writer) = pipe(&mut command)?;
    let files = others.iter().cloned().chain([writer]).collect();
    bind_to_this_thread(&mut command, files);
    Ok((command.spawn()?, messages))
}

/// Creates the pipe. The child's end closes when `command` is dropped, which must happen after the start of
/// the child.
fn pipe(command: &mut Command) -> io::Result<(PipeReader, Arc<OwnedFd>)> {
    let (messages, writer) = io::pipe()?;
    let writer = OwnedFd::from(writer);
    command.arg(ARGUMENT).arg(writer.as_raw_fd().to_string());
    Ok((messages, Arc::new(writer)))
}

/// Opens the inherited pipe with file descriptor `number`. Call it once, before anything else.
///
/// `Err` when no open file has that number, or it is a standard stream.
pub fn open_inherited(number: i32) -> io::Result<File> {
    if number <= 2 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    #[expect(unsafe_code, reason = "an inherited file has no owner in this process that could be asked")]
    // SAFETY: the number is only looked at here; if it is not open, this call returns an error.
    rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "an inherited file has no owner in this process that could be asked")]
    // SAFETY: it is open, as the call above shows, and the parent process gave it to this process alone.
    let file = unsafe { File::from_raw_fd(number) };
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    #[test]
    fn what_a_child_prints_is_no_message() {
        let mut command = Command::new("sh");
        // `sh -c TEXT NAME ARGUMENT …`: the channel is the second argument.
        command.args(["-c", "echo a library; eval \"echo a message >&$2\"", "sh"]).stdout(Stdio::piped());
        let (mut child, mut messages) = spawn(command).expect("sh is everywhere");
        let (mut printed, mut heard) = (String::new(), String::new());
        child.stdout.take().expect("piped").read_to_string(&mut printed).expect("text");
        messages.read_to_string(&mut heard).expect("text");
        assert!(child.wait().expect("it is our child").success());
        assert_eq!((printed.as_str(), heard.as_str()), ("a library\n", "a message\n"));
    }

    #[test]
    fn a_number_without_a_file_is_no_channel() {
        assert!(open_inherited(1).is_err(), "standard output");
        assert!(open_inherited(1_000_000).is_err(), "nothing has that number");
    }
}
