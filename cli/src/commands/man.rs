//! `dtrain man`: prints man pages.

use crate::args::Arguments;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use clap::CommandFactory;

/// Prints the man page of dtrain, or of the command at `path`.
pub(crate) fn run(context: &Context, path: &[String]) -> CommandResult {
    let mut command = Arguments::command();
    command.build();
    let mut name = command.get_name().to_owned();
    for part in path {
        let found = command.get_subcommands().find(|sub| sub.get_name() == part && !sub.is_hide_set());
        let Some(found) = found else {
            return Err(CommandError::new(ExitReason::Usage, format!("{name} has no command {part:?}"))
                .hint("`dtrain --help` lists the commands"));
        };
        command = found.clone();
        name = format!("{name}-{part}");
    }
    // The name is leaked because clap requires a `'static` string.
    let name: &'static str = name.leak();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.name(name)).render(&mut page).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, "cannot write the man page").cause(error.to_string())
    })?;
    context.out.bytes(&page)?;
    Ok(ExitReason::Done)
}
