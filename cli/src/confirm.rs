//! Asks before something is lost.

use crate::command_error::{CommandError, ExitReason};
use crate::context::Context;
use crate::output::write_stderr;
use std::io::IsTerminal;

/// Whether the user wants `what`, such as `remove tiny-1`: said with `--yes`, or asked for on the terminal.
///
/// `Err` where it was not said and nobody can be asked.
pub(crate) fn confirm(context: &Context, what: &str, is_said: bool) -> Result<bool, CommandError> {
    if is_said {
        return Ok(true);
    }
    if context.out.json || !std::io::stdin().is_terminal() {
        let message = format!("cannot ask whether to {what}: there is no terminal to answer on");
        return Err(CommandError::new(ExitReason::Usage, message).hint("`--yes` answers"));
    }
    write_stderr(&format!("{what}? [y/N] "));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| {
        CommandError::new(ExitReason::Usage, "no answer could be read").cause(error.to_string())
    })?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
