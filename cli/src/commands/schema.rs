//! `dtrain schema`: prints the JSON schema of recipes.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;

/// Prints the JSON schema of recipes.
pub(crate) fn run(context: &Context) -> CommandResult {
    let text =
        serde_json::to_string_pretty(&dtrain_recipes::json_schema::json_schema()).map_err(|error| {
            CommandError::new(ExitReason::Infrastructure, "cannot write the schema").cause(error.to_string())
        })?;
    context.out.data(&text)?;
    Ok(ExitReason::Done)
}
