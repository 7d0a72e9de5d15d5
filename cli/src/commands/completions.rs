//! `dtrain completions`: prints the completion script of a shell.

use crate::command_error::{CommandError, CommandResult};
use crate::completions::VARIABLE;
use crate::context::Context;
use crate::exit_code::ExitReason;
use clap_complete::Shell;
use clap_complete::env::Shells;

/// Prints the completion script of a shell.
pub(crate) fn run(context: &Context, shell: Shell) -> CommandResult {
    let name = shell.to_string();
    let mut script = Vec::new();
    let written = match Shells::builtins().completer(&name) {
        Some(shell) => shell.write_registration(VARIABLE, "dtrain", "dtrain", "dtrain", &mut script),
        None => Err(std::io::Error::other("the shell is unknown")),
    };
    written.map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write the script for {name}"))
            .cause(error.to_string())
    })?;
    context.out.bytes(&script)?;
    Ok(ExitReason::Done)
}
