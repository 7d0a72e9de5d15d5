//! `dtrain agent`, which a controller on another machine starts over SSH.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::this_host;
use dtrain_runner::Home;
use dtrain_runner::relay_server;
use dtrain_runner::transport::ProgramDigest;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flushes this executable to its disk and prints its BLAKE3 digest, so that the controller can verify its copy.
pub(crate) fn digest() -> ExitCode {
    match std::env::current_exe().and_then(|path| ProgramDigest::of_flushed(&path)) {
        #[expect(clippy::print_stdout, reason = "it is the answer")]
        Ok(digest) => {
            println!("{digest}");
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Serves one controller until it disconnects or is silent for long. Checkpoints go into the state folder `shared`, if given.
pub(crate) fn relay(context: &Context, shared: Option<PathBuf>) -> CommandResult {
    let programs = crate::this_host::programs()?;
    // A Slurm node has a state folder of its own already.
    let home = if shared.is_some() { context.home.clone() } else { context.home.of_this_host() };
    let shared = shared.map(Home::at);
    std::iter::once(&home).chain(&shared).try_for_each(Home::check).map_err(|error| {
        CommandError::new(ExitReason::Preflight, "cannot use the state folder of this host")
            .cause(error.to_string())
    })?;
    let served = relay_server::serve(
        &home,
        shared.as_ref(),
        &programs,
        relay_server::RELAY_IDLE_TIMEOUT,
        this_host::facts,
    );
    served.map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, "the controller is lost").cause(error.to_string())
    })?;
    Ok(ExitReason::Done)
}
