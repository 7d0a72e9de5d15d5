//! Resource limits of the process (`ulimit`), and hints when they cause a failure.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_recipes::Bytes;
use rustix::process::{Resource, getrlimit};
use std::borrow::Cow;

/// Text of the standard library's error for a write beyond the file size limit (EFBIG).
const TOO_LARGE: &str = "(os error 27)";

/// Texts with which SQLite reports a write beyond the file size limit; they also have other causes.
const OF_SQLITE: [&str; 3] = ["disk I/O error", "database or disk is full", "unable to open database file"];

/// Hint to raise the file size limit.
const HINT: &str = "raise the file size limit with `ulimit -f unlimited`, in the shell that starts dtrain";

/// Returns the file size limit of this process in bytes; `None` if unlimited.
fn file_size() -> Option<Bytes> {
    getrlimit(Resource::Fsize).current.map(Bytes)
}

/// Adds a hint about the file size limit to an error that the limit may have caused.
pub(crate) fn with_limit_hint(failure: CommandError) -> CommandError {
    with_file_size(failure, file_size())
}

fn with_file_size(failure: CommandError, limit: Option<Bytes>) -> CommandError {
    let is_certain = failure.says(&[TOO_LARGE]);
    match limit {
        Some(limit) if is_certain || failure.says(&OF_SQLITE) => {
            failure.cause(format!("the file size limit (ulimit -f) of this process is {limit}")).hint(HINT)
        }
        // The limit of a process on another host, or the largest file of its file system.
        None if is_certain => failure.cause("a file would exceed the file size limit (ulimit -f)").hint(HINT),
        Some(_) | None => failure,
    }
}

/// Adds the file size limit to a log line that reports a file as too large.
pub(crate) fn explain_line(line: &str) -> Cow<'_, str> {
    if line.contains(TOO_LARGE) {
        return Cow::Owned(line.replace(TOO_LARGE, "(os error 27: the file size limit, `ulimit -f`)"));
    }
    Cow::Borrowed(line)
}

/// Refuses to train if a rank's checkpoint file of size `bytes` exceeds the file size limit.
pub(crate) fn refuse_large_file(bytes: Bytes) -> Result<(), CommandError> {
    match file_size().filter(|limit| *limit < bytes) {
        Some(limit) => Err(CommandError::new(
            ExitReason::Preflight,
            format!("a file of a checkpoint needs {bytes}, and the file size limit (ulimit -f) is {limit}"),
        )
        .hint(HINT)),
        None => Ok(()),
    }
}

/// Refuses to train if the limit of open files is too small for one rank.
pub(crate) fn refuse_few_files() -> Result<(), CommandError> {
    dtrain_runner::open_file_limit::ensure_limit_for_one_rank()
        .map_err(|words| CommandError::new(ExitReason::Preflight, words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;

    fn text(message: &str, limit: Option<u64>) -> String {
        with_file_size(CommandError::new(ExitReason::Infrastructure, message), limit.map(Bytes))
            .render(ColorMode::plain())
    }

    #[test]
    fn a_failure_by_the_file_size_limit_names_it() {
        let large = std::io::Error::from_raw_os_error(27).to_string();
        assert!(text(&large, Some(102_400)).contains("file size limit (ulimit -f) of this process is"));
        assert!(text(&large, None).contains("file size limit"), "a rank elsewhere may have one");
        assert!(text("cannot write: disk I/O error", Some(102_400)).contains("ulimit -f"));
        assert!(!text("cannot write: disk I/O error", None).contains("ulimit"), "there is no limit");
        assert!(!text("no such file", Some(102_400)).contains("ulimit"));
        assert!(explain_line(&format!("not saved: {large}")).contains("file size limit"));
    }
}
