//! `dtrain plan --emit`: writes the best plan as configuration files of another engine.

use crate::args::PlanArgs;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use dtrain_planner::Plan;
use dtrain_planner::emit::{ConfigFiles, ConfigFormat, emit};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes the files of an engine's format to `--emit-to`, or a single file to stdout. Notes go to stderr.
pub(crate) fn run(
    context: &Context,
    args: &PlanArgs,
    plan: &Plan,
    format: ConfigFormat,
) -> Result<(), CommandError> {
    let emitted = emit(plan, format).map_err(|error| CommandError::of(ExitReason::Usage, &error))?;
    match &args.emit_to {
        Some(folder) => write_all(folder, &emitted)?,
        None if context.out.json => {}
        None => print(context, format, &emitted)?,
    }
    if context.out.json {
        context.out.json("emitted", &emitted)?;
    }
    if let Some(from) = &plan.recipe.train.from {
        context.out.say(&format!(
            "{}: these files begin with random weights: `train.from` ({}) is for dtrain's own worker",
            context.out.paint.yellow("warning"),
            from.display()
        ));
    }
    for note in &emitted.notes {
        context.out.say(&format!("note: {note}"));
    }
    if let Some(folder) = &args.emit_to {
        let names: Vec<&str> = emitted.files.iter().map(|file| file.name.as_str()).collect();
        context.out.say(&format!("written to {}: {}", folder.display(), names.join(", ")));
        let folder = shell_quoted(path_from_launch_folder(folder, &emitted).display());
        for command in emitted.preparation(&folder) {
            context.out.next(&command);
        }
        context.out.next(&emitted.command(&folder));
    }
    Ok(())
}

/// Returns the path of `folder` for the training command: absolute if that is started in the checkout of an
/// engine, otherwise unchanged.
fn path_from_launch_folder(folder: &Path, emitted: &ConfigFiles) -> PathBuf {
    let absolute = emitted.checkout.and_then(|_| std::path::absolute(folder).ok());
    absolute.unwrap_or_else(|| folder.to_owned())
}

fn print(context: &Context, format: ConfigFormat, emitted: &ConfigFiles) -> Result<(), CommandError> {
    let [file] = emitted.files.as_slice() else {
        let names: Vec<&str> = emitted.files.iter().map(|file| file.name.as_str()).collect();
        let message = format!("{} writes several files: {}", format.word(), names.join(", "));
        return Err(
            CommandError::new(ExitReason::Usage, message).hint("choose a folder with --emit-to FOLDER")
        );
    };
    context.out.file(&file.text)
}

/// Writes all configuration files into `folder`, or none if one of them already exists.
fn write_all(folder: &Path, emitted: &ConfigFiles) -> Result<(), CommandError> {
    let there = emitted.files.iter().map(|file| folder.join(&file.name)).find(|path| path.exists());
    if let Some(path) = there {
        let failure = CommandError::new(ExitReason::Usage, format!("{} already exists", path.display()));
        return Err(failure.hint("move it away, or name another folder with --emit-to"));
    }
    fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    for file in &emitted.files {
        let path = folder.join(&file.name);
        let open = OpenOptions::new().write(true).create_new(true).open(&path);
        open.and_then(|mut open| open.write_all(file.text.as_bytes()))
            .map_err(|error| cannot_write(&path, &error))?;
    }
    Ok(())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::new(ExitReason::Usage, format!("cannot write {}", path.display())).cause(error.to_string())
}
