//! `dtrain schema`.

use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};

/// Prints the JSON schema of recipes.
pub(crate) fn run(context: &Context) -> Outcome {
    let text = serde_json::to_string_pretty(&dtrain_recipes::schema::schema()).map_err(|error| {
        Failure::new(Exit::Infrastructure, "cannot write the schema").cause(error.to_string())
    })?;
    context.out.data(&text)?;
    Ok(Exit::Done)
}
