//! `dtrain model export`: writes a trained model's weights for other programs.

use crate::args::{GgufWeights, ModelExportArgs, ModelFormat};
use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint;
use crate::output::shell_quoted;
use crate::{pretrained, trials};
use dtrain_protocol::StepId;
use dtrain_recipes::{Model, Recipe};
use dtrain_worker::checkpoint::TensorReader;
use dtrain_worker::pretrained::{GgufType, PretrainedError, WeightFormat, export};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct ExportedModel<'a> {
    trial: &'a str,
    step: StepId,
    folder: &'a Path,
    files: &'a [PathBuf],
    /// What another program computes otherwise, or what had to be stored otherwise.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
}

/// Writes the weights of a trial in a format of other programs.
pub(crate) fn run(context: &Context, args: &ModelExportArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let trial = trials::trial(context, &history, &args.trial.trial)?;
    let label = &trial.row.label;
    let out = std::path::absolute(&args.out).unwrap_or_else(|_| args.out.clone());
    if out.symlink_metadata().is_ok() && !args.force {
        return Err(CommandError::new(ExitReason::Usage, format!("{} already exists", args.out.display()))
            .hint("name a folder that does not exist yet, or replace the files in it with --force"));
    }
    let Some(temporary) = beside(&out) else {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{} is not the name of a folder", args.out.display()),
        ));
    };
    let recipe: Recipe = serde_json::from_value(trial.recipe.clone()).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("the recipe of {label} cannot be read"))
            .cause(error.to_string())
    })?;
    if matches!(recipe.model, Model::Command(_)) {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{label} is a program of yours, which keeps its own weights"),
        ));
    }
    let checkpoint =
        find_checkpoint::find_intact(context, &trial, CheckpointSelector::of(args.step.map(StepId)))?;
    if args.weights.is_some() && args.to != ModelFormat::Gguf {
        return Err(CommandError::new(
            ExitReason::Usage,
            "--weights is the type of the weights in a GGUF file",
        )
        .hint("add `--to gguf`, or leave it out"));
    }
    let format = match args.to {
        ModelFormat::Gguf => WeightFormat::Gguf(match args.weights {
            Some(GgufWeights::F32) => GgufType::F32,
            Some(GgufWeights::F16) | None => GgufType::F16,
            Some(GgufWeights::Q8) => GgufType::Q8,
        }),
        ModelFormat::Hf => WeightFormat::HuggingFace,
        ModelFormat::Onnx => WeightFormat::Onnx,
        ModelFormat::Peft => WeightFormat::Peft,
        ModelFormat::Safetensors => WeightFormat::Safetensors,
    };
    let reader = TensorReader::open(&checkpoint.folder).map_err(|error| {
        CommandError::of(ExitReason::Infrastructure, &error)
            .hint("`dtrain checkpoint verify` reads all of it")
    })?;
    let written = remove(&temporary)
        .map_err(|error| cannot(&temporary, &error))
        .and_then(|()| {
            export(&reader, &recipe.model, format, &temporary).map_err(|error| pretrained_failed(&error))
        })
        .and_then(|written| {
            let moved = move_into_place(&temporary, &out, &written.files);
            moved.map(|()| written).map_err(|error| cannot(&out, &error))
        });
    if written.is_err() {
        // Removes incomplete files.
        drop(remove(&temporary));
    }
    let written = written?;
    let files = &written.files;
    if context.out.json {
        context.out.json(
            "exported",
            &ExportedModel {
                trial: label,
                step: checkpoint.step,
                folder: &out,
                files,
                notes: &written.notes,
            },
        )?;
    } else {
        context.out.say(&format!(
            "step {} of {label} is in {}",
            checkpoint.step,
            shell_quoted(args.out.display())
        ));
        for note in &written.notes {
            context.out.say(&format!("{}: {note}", context.out.paint.yellow("note")));
        }
    }
    Ok(ExitReason::Done)
}

/// Returns a temporary path in the folder of `out`.
fn beside(out: &Path) -> Option<PathBuf> {
    Some(out.with_file_name(format!(".{}.new", out.file_name()?.to_str()?)))
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Moves complete files from `temporary` to `out`; into an existing folder, file by file.
fn move_into_place(temporary: &Path, out: &Path, files: &[PathBuf]) -> io::Result<()> {
    if !out.exists() {
        return fs::rename(temporary, out);
    }
    for file in files {
        fs::rename(temporary.join(file), out.join(file))?;
    }
    remove(temporary)
}

fn cannot(path: &Path, error: &io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", path.display()))
        .cause(error.to_string())
}

fn pretrained_failed(error: &PretrainedError) -> CommandError {
    match error {
        PretrainedError::PackedAdapters => pretrained::failure(error)
            .hint("`--to hf` writes the model with its adapters added to its weights"),
        PretrainedError::NoFamily(_) | PretrainedError::NoOnnx | PretrainedError::LongOnnx(_) => {
            pretrained::failure(error).hint("`--to safetensors` writes the weights of every model")
        }
        _ => pretrained::failure(error),
    }
}
