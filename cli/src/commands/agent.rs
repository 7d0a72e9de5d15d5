//! `dtrain agent` as a controller on another machine starts it.

use crate::command_error::{CommandError, CommandResult, ExitReason};
use crate::context::Context;
use crate::rates;
use dtrain_runner::Home;
use dtrain_runner::launch::relay;
use dtrain_runner::transport::ProgramDigest;
use std::path::PathBuf;
use std::process::ExitCode;

/// Prints the blake3 of this program, so that whoever sent it knows that it came as it was.
pub(crate) fn digest() -> ExitCode {
    match std::env::current_exe().and_then(|path| ProgramDigest::of(&path)) {
        #[expect(clippy::print_stdout, reason = "it is the answer")]
        Ok(digest) => {
            println!("{digest}");
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves a controller until it goes. Checkpoints are kept in the state folder `shared`, where there is one.
pub(crate) fn relay(context: &Context, shared: Option<PathBuf>) -> CommandResult {
    let programs = crate::hosts::programs()?;
    // The folder of a Slurm node is its own already.
    let home = if shared.is_some() { context.home.clone() } else { context.home.of_this_host() };
    let shared = shared.map(Home::at);
    std::iter::once(&home).chain(&shared).try_for_each(Home::check).map_err(|error| {
        CommandError::new(ExitReason::Preflight, "cannot use the state folder of this host")
            .cause(error.to_string())
    })?;
    relay::serve(&home, shared.as_ref(), &programs, rates::this_host_facts).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, "the controller is lost").cause(error.to_string())
    })?;
    Ok(ExitReason::Done)
}
