//! `dtrain completions`.

use crate::args::Arguments;
use crate::context::Context;
use crate::failure::{Exit, Outcome};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Prints the script.
pub(crate) fn run(context: &Context, shell: Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(), "dtrain", &mut script);
    context.out.bytes(&script)?;
    Ok(Exit::Done)
}

/// The command line without the commands that only dtrain itself types.
fn visible() -> Command {
    let all = Arguments::command();
    let shown = all.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    Command::new("dtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(shown)
}
