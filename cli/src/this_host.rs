//! Facts about this host, and the program that runs on it.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_protocol::HostFacts;
use dtrain_runner::Programs;
use dtrain_runner::probe::host_facts;
use std::path::PathBuf;

/// Version of dtrain, as recorded in plans and trials.
pub(crate) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Returns the path of the executable that runs.
pub(crate) fn program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(no_program)
}

/// Returns the programs that are started on hosts: copies of this executable.
pub(crate) fn programs() -> Result<Programs, CommandError> {
    Programs::of_this_program().map_err(no_program)
}

pub(crate) fn no_program(error: std::io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, "cannot find this program").cause(error.to_string())
}

/// Returns the facts about this host, with the GPUs that this build can use.
pub(crate) fn facts() -> HostFacts {
    host_facts(dtrain_worker::device::gpus())
}
