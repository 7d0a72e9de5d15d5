//! This host: its facts, and the program that runs here.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_protocol::HostFacts;
use dtrain_runner::Programs;
use dtrain_runner::probe::host_facts;
use std::path::PathBuf;

/// Version of dtrain recorded in plans and trials.
pub(crate) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// Returns the path of this executable.
pub(crate) fn program() -> Result<PathBuf, CommandError> {
    std::env::current_exe().map_err(no_program)
}

/// Returns the programs to start on hosts: this executable.
pub(crate) fn programs() -> Result<Programs, CommandError> {
    Programs::of_this_program().map_err(no_program)
}

pub(crate) fn no_program(error: std::io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, "cannot find this program").cause(error.to_string())
}

/// Returns the facts of this host, with the GPUs that this build can use.
pub(crate) fn facts() -> HostFacts {
    host_facts(dtrain_worker::device::gpus())
}
