//! Emits configuration for other engines, and launch manifests, from the best choice of a plan.
//!
//! Pure: returns text and writes no files. A setting that an engine cannot express is an error; one that it
//! expresses differently, or leaves to the user, is a note. Notes are at the head of the file if the format
//! has comments, and are returned for display. Nothing is dropped silently.

mod adapters;
mod deepspeed;
mod hf_trainer;
mod hosts;
mod hugging_face;
mod json;
mod kubernetes;
mod maxtext;
mod megatron;
mod slurm;
mod source;
mod torchtitan;
mod yaml;

pub use self::torchtitan::VERSION as TORCHTITAN_VERSION;
use crate::engine::{self, Engine};
use crate::planning::plan::Plan;
use serde::Serialize;
pub use source::DecoderPlan;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A format in which a plan can be emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFormat {
    /// A Python config registry for torchtitan.
    Torchtitan,
    /// A shell script with the arguments of Megatron-LM.
    Megatron,
    /// JSON configuration for DeepSpeed, the model for Hugging Face transformers, and a start script.
    Deepspeed,
    /// Configuration of Hugging Face's Trainer: that of accelerate for PyTorch FSDP2, training arguments and the
    /// model.
    HfTrainer,
    /// MaxText (JAX) configuration, and a start script.
    Maxtext,
    /// A batch script for Slurm.
    Slurm,
    /// An indexed job for Kubernetes.
    Kubernetes,
}

/// A file with emitted configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigFile {
    /// File name without a folder.
    pub name: String,
    /// Contents, with a final newline.
    pub text: String,
}

/// The files emitted in one format, with notes on differences from the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigFiles {
    /// Emitted files, at least one.
    pub files: Vec<ConfigFile>,
    /// Notes on differences from the plan: sentences without their full stop.
    pub notes: Vec<String>,
    /// Command that starts training, run in the folder of the files or in the `checkout`.
    pub start: String,
    /// Placeholder for the path of the engine's repository; `None` unless the command must run in its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<&'static str>,
    /// Command that makes the checkout; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone: Option<String>,
    /// Command that makes the data once before the first start, run where `start` is; `None` if the engine
    /// reads the recipe's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare: Option<String>,
}

impl ConfigFiles {
    /// Creates files that an engine reads without a checkout and without preparation.
    fn of(files: Vec<ConfigFile>, notes: Vec<String>, start: impl Into<String>) -> Self {
        Self { files, notes, start: start.into(), checkout: None, clone: None, prepare: None }
    }

    /// Returns the shell line that starts training with the files in `folder`, which must be quoted for a
    /// shell, and absolute if a checkout is needed.
    pub fn command(&self, folder: &str) -> String {
        self.in_folder(&self.start, folder)
    }

    /// Returns the shell lines to run once before the first start, with the files in `folder` as for
    /// [`ConfigFiles::command`].
    pub fn preparation(&self, folder: &str) -> Vec<String> {
        let prepare = self.prepare.as_ref().map(|command| self.in_folder(command, folder));
        self.clone.iter().cloned().chain(prepare).collect()
    }

    fn in_folder(&self, command: &str, folder: &str) -> String {
        let Some(checkout) = self.checkout else { return format!("cd {folder} && {command}") };
        let place =
            |line: String, file: &ConfigFile| line.replace(&file.name, &format!("{folder}/{}", file.name));
        format!("cd {checkout} && {}", self.files.iter().fold(command.to_owned(), place))
    }
}

/// Reasons why a plan cannot be emitted in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// No format has the given name.
    #[error("unknown format `{name}`; known are {}", ConfigFormat::names())]
    Unknown {
        /// Name of the unknown format.
        name: String,
    },
    /// The name is that of a format of before, and of an engine for which nothing is written.
    #[error(
        "`{name}` is dtrain's own program, which `dtrain run --engine {name}` starts without files; the files for Hugging \
         Face's Trainer are `{now}` now"
    )]
    Renamed {
        /// Name of before.
        name: &'static str,
        /// Name of the format now.
        now: &'static str,
    },
    /// The engine trains only other kinds of models.
    #[error(
        "{engine} trains decoders, and model.kind is \"{kind}\"; `slurm` and `kubernetes` launch any program"
    )]
    OtherModel {
        /// Name of the engine.
        engine: &'static str,
        /// Kind of the plan's model.
        kind: &'static str,
    },
    /// The engine cannot express a setting of the plan that changes the training, or lacks one that it
    /// requires.
    #[error("{engine} does not support the plan: {what}; {instead}")]
    CannotSay {
        /// Name of the engine.
        engine: &'static str,
        /// Setting of the plan that cannot be expressed, with its values.
        what: String,
        /// Alternative that the message suggests.
        instead: &'static str,
    },
}

impl ConfigFormat {
    /// All formats, in the order in which messages list them.
    pub const ALL: [Self; 7] = [
        Self::Torchtitan,
        Self::Megatron,
        Self::Deepspeed,
        Self::HfTrainer,
        Self::Maxtext,
        Self::Slurm,
        Self::Kubernetes,
    ];

    /// Name of [`ConfigFormat::HfTrainer`] before dtrain had a program of its own for FSDP2.
    pub const FSDP: &str = "fsdp";

    /// Returns the name of the format on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Torchtitan => "torchtitan",
            Self::Megatron => "megatron",
            Self::Deepspeed => "deepspeed",
            Self::HfTrainer => "hf-trainer",
            Self::Maxtext => "maxtext",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Returns the engine that reads the format; `None` for formats that launch any program.
    pub fn engine(self) -> Option<&'static dyn Engine> {
        match self {
            Self::Torchtitan => Some(&engine::TORCHTITAN),
            Self::Megatron => Some(&engine::MEGATRON),
            Self::Deepspeed => Some(&engine::DEEPSPEED),
            Self::HfTrainer => Some(&engine::HF_TRAINER),
            Self::Maxtext => Some(&engine::JAX),
            Self::Slurm | Self::Kubernetes => None,
        }
    }

    /// Parses the name of a format; the error lists the known names, or has the name of today.
    pub fn parse(name: &str) -> Result<Self, EmitError> {
        if name == Self::FSDP {
            return Err(EmitError::Renamed { name: Self::FSDP, now: Self::HfTrainer.word() });
        }
        let known = Self::ALL.into_iter().find(|format| format.word() == name);
        known.ok_or_else(|| EmitError::Unknown { name: name.into() })
    }

    fn names() -> String {
        Self::ALL.map(Self::word).join(", ")
    }
}

/// Emits the best choice of `plan` in `format`. `Err` if the engine cannot train it.
pub fn emit(plan: &Plan, format: ConfigFormat) -> Result<ConfigFiles, EmitError> {
    Ok(match format {
        ConfigFormat::Torchtitan => torchtitan::emit(&DecoderPlan::of(plan, &engine::TORCHTITAN)?),
        ConfigFormat::Megatron => megatron::emit(&DecoderPlan::of(plan, &engine::MEGATRON)?),
        ConfigFormat::Deepspeed => deepspeed::emit(&DecoderPlan::of(plan, &engine::DEEPSPEED)?),
        ConfigFormat::HfTrainer => hf_trainer::emit(&DecoderPlan::of(plan, &engine::HF_TRAINER)?),
        ConfigFormat::Maxtext => maxtext::emit(&DecoderPlan::of(plan, &engine::JAX)?),
        ConfigFormat::Slurm => slurm::emit(plan),
        ConfigFormat::Kubernetes => kubernetes::emit(plan),
    })
}

/// Returns the arguments of the Python interpreter that starts torchtitan for a run of dtrain, and the files
/// that it imports.
pub(crate) fn torchtitan_run(source: &DecoderPlan<'_>) -> (Vec<&'static str>, BTreeMap<String, String>) {
    let files = torchtitan::emit(source).files.into_iter().map(|file| (file.name, file.text));
    (
        vec!["-m", "torchtitan.train", "--module", "dtrain_engines.titan_run", "--config", "train"],
        files.collect(),
    )
}

/// Returns comment lines for the head of a file: purpose, origin and notes.
fn head(plan: &Plan, what: &str, notes: &[String]) -> String {
    let mut text = String::new();
    line(&mut text, what);
    let digest = plan.digest();
    line(
        &mut text,
        &format!("Written by dtrain {} from plan {}: {}", plan.program, &digest[..12], plan.recipe.name),
    );
    line(&mut text, &format!("Choice: {}", plan.best().candidate));
    if !notes.is_empty() {
        line(&mut text, "");
        line(&mut text, "Not as in the plan, or left to you:");
    }
    for note in notes {
        line(&mut text, &format!("* {note}"));
    }
    text
}

/// Appends a comment to `text`, wrapped at 110 columns. A recipe's path may contain a line break, which must
/// not end the comment: the file may be a script.
fn line(text: &mut String, words: &str) {
    let mut width = 1;
    text.push('#');
    for word in words.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let length = word.chars().count() + 1;
        if width > 1 && width + length > 110 {
            text.push_str("\n#  ");
            width = 3;
        }
        write!(text, " {word}").expect("a string takes all text");
        width += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests;
