//! The training engine: the program that trains the planned model.

use crate::keyword_enum::keyword_enum;

keyword_enum! {
    /// The program that trains the model of a recipe, in the layout that the planner chose.
    #[derive(Default)]
    pub enum TrainingEngine {
        /// dtrain's own worker.
        #[default]
        Dtrain = "dtrain",
        /// torchtitan, with the configuration that dtrain emits.
        Torchtitan = "torchtitan",
        /// dtrain's program for PyTorch FSDP2 (`fully_shard`), with the models of Hugging Face transformers.
        Fsdp = "fsdp",
        /// The fastest engine that is installed on the hosts and can run the plan, chosen before planning ends.
        Auto = "auto",
    }
}

impl TrainingEngine {
    /// Returns `true` for dtrain's own worker.
    pub fn is_dtrain(&self) -> bool {
        *self == Self::Dtrain
    }

    /// Returns `true` for an engine of another project, whose processes dtrain starts.
    pub fn is_foreign(self) -> bool {
        match self {
            Self::Torchtitan | Self::Fsdp => true,
            Self::Dtrain | Self::Auto => false,
        }
    }
}

/// Engines for which `dtrain plan --emit` writes files, and which `dtrain run` does not start.
pub const EMITTED_ONLY: &[&str] = &["megatron", "deepspeed", "hf-trainer", "maxtext", "jax"];
