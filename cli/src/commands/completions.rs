//! `dtrain completions`.

use crate::args::Arguments;
use crate::context::Context;
use crate::failure::{Exit, Outcome};
use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the script.
pub(crate) fn run(context: &Context, shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "dtrain", &mut script);
    context.out.bytes(&script)?;
    Ok(Exit::Done)
}
