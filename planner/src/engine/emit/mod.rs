//! Configuration for other engines, and launch manifests, from a plan's best choice.
//!
//! Pure: text comes out, and nobody writes a file here. What an engine cannot say at all is an error; what it says
//! differently, or leaves to the user, is a note. A note stands at the head of the file where the format has
//! comments, and is returned for the caller to show. Nothing is left out without a word.

pub(crate) mod deepspeed;
pub(crate) mod dtrain;
pub(crate) mod fsdp;
mod hosts;
mod hugging_face;
mod json;
mod kubernetes;
pub(crate) mod maxtext;
pub(crate) mod megatron;
mod slurm;
mod source;
pub(crate) mod torchtitan;
mod yaml;

use crate::Plan;
use crate::engine::{self, Engine};
use serde::Serialize;
pub use source::DecoderPlan;
use std::fmt::Write;

/// What a plan can be turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFormat {
    /// A config registry in Python for torchtitan.
    Torchtitan,
    /// A shell script with the arguments of Megatron-LM.
    Megatron,
    /// A configuration in JSON for DeepSpeed, the model for Hugging Face transformers, and the command.
    Deepspeed,
    /// A configuration of Hugging Face accelerate for PyTorch's FSDP2, training arguments and the model.
    Fsdp,
    /// A configuration of MaxText (JAX), and a script that starts it.
    Maxtext,
    /// A batch script for Slurm.
    Slurm,
    /// An indexed job for Kubernetes.
    Kubernetes,
}

/// A file: a name without a folder, and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigFile {
    /// Its name.
    pub name: String,
    /// Its text, with a final newline.
    pub text: String,
}

/// The files of one format, and what they do not say as the plan does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigFiles {
    /// At least one.
    pub files: Vec<ConfigFile>,
    /// Sentences without their full stop.
    pub notes: Vec<String>,
    /// The command that starts training, in the folder of the files or in the `checkout`.
    pub start: String,
    /// What stands for the folder of the engine's own repository, where the command must run in its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<&'static str>,
}

impl ConfigFiles {
    /// The line for a shell that starts training with the files in `folder`, which is written as a word of a shell. Where a
    /// checkout is needed, `folder` should be absolute.
    pub fn command(&self, folder: &str) -> String {
        let Self { files, start, checkout, .. } = self;
        let Some(checkout) = checkout else { return format!("cd {folder} && {start}") };
        let in_folder =
            |start: String, file: &ConfigFile| start.replace(&file.name, &format!("{folder}/{}", file.name));
        format!("cd {checkout} && {}", files.iter().fold(start.clone(), in_folder))
    }
}

/// Why a plan cannot be turned into a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// No format has this name.
    #[error("unknown format `{name}`; known are {}", ConfigFormat::names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// The engine trains other models only.
    #[error(
        "{engine} trains decoders, and model.kind is \"{kind}\"; `slurm` and `kubernetes` launch any program"
    )]
    OtherModel {
        /// The engine.
        engine: &'static str,
        /// The kind of the model.
        kind: &'static str,
    },
    /// The engine has no way to say something that changes what is trained, or that cannot run without.
    #[error("{engine} does not support the plan: {what}; {instead}")]
    CannotSay {
        /// The engine.
        engine: &'static str,
        /// What the plan says, with its numbers.
        what: String,
        /// What to do.
        instead: &'static str,
    },
}

impl ConfigFormat {
    /// All formats, in the order in which they are told.
    pub const ALL: [Self; 7] = [
        Self::Torchtitan,
        Self::Megatron,
        Self::Deepspeed,
        Self::Fsdp,
        Self::Maxtext,
        Self::Slurm,
        Self::Kubernetes,
    ];

    /// Its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Torchtitan => "torchtitan",
            Self::Megatron => "megatron",
            Self::Deepspeed => "deepspeed",
            Self::Fsdp => "fsdp",
            Self::Maxtext => "maxtext",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// The engine that reads it; `None` for what launches any program.
    pub fn engine(self) -> Option<&'static dyn Engine> {
        match self {
            Self::Torchtitan => Some(&engine::TORCHTITAN),
            Self::Megatron => Some(&engine::MEGATRON),
            Self::Deepspeed => Some(&engine::DEEPSPEED),
            Self::Fsdp => Some(&engine::FSDP),
            Self::Maxtext => Some(&engine::JAX),
            Self::Slurm | Self::Kubernetes => None,
        }
    }

    /// The format called `name`; `Err` names those that there are.
    pub fn parse(name: &str) -> Result<Self, EmitError> {
        let known = Self::ALL.into_iter().find(|format| format.word() == name);
        known.ok_or_else(|| EmitError::Unknown { name: name.into() })
    }

    fn names() -> String {
        Self::ALL.map(Self::word).join(", ")
    }
}

/// The best choice of `plan` in another engine's words. `Err` when the engine cannot train so.
pub fn emit(plan: &Plan, format: ConfigFormat) -> Result<ConfigFiles, EmitError> {
    match (format.engine(), format) {
        (Some(engine), _) => Ok(engine.emit(&DecoderPlan::of(plan, engine)?)),
        (None, ConfigFormat::Kubernetes) => Ok(kubernetes::emit(plan)),
        (None, _) => Ok(slurm::emit(plan)),
    }
}

/// Comment lines at the head of a file: what it is for, where it comes from, and the notes.
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

/// One comment, broken between words at 110 columns. A path of the recipe may hold a line break: it must not end the
/// comment, as the file may be a script.
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
