//! Question to the user before data is removed.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::write_stderr;
use std::io::IsTerminal;

/// Returns `true` if the user agreed to `what`, such as `remove tiny-1`, with `--yes` or at a prompt.
///
/// Returns `Err` without `--yes` if there is no terminal to ask on.
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
