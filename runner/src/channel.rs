//! The pipe on which a process of this program sends its messages to the one that started it.
//!
//! It is not standard output. A library may print there before `main` begins, and whatever a process prints belongs in its log. The
//! number of the pipe is an argument, so that processes that the child starts do not learn it, and the child closes the pipe to
//! them first of all.

use crate::process::{bind_to_this_thread, inherit};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::FdFlags;
use std::fs::File;
use std::io::{self, PipeReader};
use std::process::{Child, Command};
use std::sync::Arc;

/// Name of the argument that has the number of the pipe.
const ARGUMENT: &str = "--channel";

/// Starts a worker or an agent; its messages come through the pipe that is returned.
///
/// To be told to `command` before: where standard output and standard error go.
pub fn spawn(mut command: Command) -> io::Result<(Child, PipeReader)> {
    let (messages, writer) = pipe(&mut command)?;
    inherit(&mut command, vec![writer]);
    Ok((command.spawn()?, messages))
}

/// The same for a child that dies with the thread that starts it, and that also inherits the files `others`.
pub(crate) fn spawn_bound(mut command: Command, others: &[Arc<OwnedFd>]) -> io::Result<(Child, PipeReader)> {
    let (messages, writer) = pipe(&mut command)?;
    let files = others.iter().cloned().chain([writer]).collect();
    bind_to_this_thread(&mut command, files);
    Ok((command.spawn()?, messages))
}

/// The end of `command` closes when the command is dropped, which the functions above do after the start.
fn pipe(command: &mut Command) -> io::Result<(PipeReader, Arc<OwnedFd>)> {
    let (messages, writer) = io::pipe()?;
    let writer = OwnedFd::from(writer);
    command.arg(ARGUMENT).arg(writer.as_raw_fd().to_string());
    Ok((messages, Arc::new(writer)))
}

/// Takes over the pipe whose number is in the arguments of this process. To be called once, first of all.
///
/// `Err` when no file has that number, or it is a standard stream.
pub fn open_inherited(number: i32) -> io::Result<File> {
    if number <= 2 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    #[expect(unsafe_code, reason = "an inherited file has no owner in this process that could be asked")]
    // SAFETY: the number is only looked at here, and a number that is not open is an error of this call.
    rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "an inherited file has no owner in this process that could be asked")]
    // SAFETY: it is open, as the call above shows, and whoever started this process gave it to nobody else.
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
