//! Arguments of commands that take checkpoints.

use super::TrialArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const VERIFY_EXAMPLE: &str = "Example:
  dtrain checkpoint verify last 1200

What is not as it was written is named by tensor, file and byte, and the exit code is 6 when a file is nowhere as it was written.
Without STEP every checkpoint that counts is read.";

const PULL_EXAMPLE: &str = "Example:
  dtrain checkpoint pull last --to kept/newest

Every part is compared with what was committed. A copy that was cut off is gone on with by the same command.";

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints of a trial: their size, where they lie, and whether they count
    #[command(after_help = "Example:\n  dtrain checkpoint ls last")]
    Ls(TrialArgs),

    /// Read all of a checkpoint, and name what is not as it was written
    #[command(after_help = VERIFY_EXAMPLE)]
    Verify(VerifyArgs),

    /// Copy a checkpoint to a folder, from whichever host has it
    #[command(after_help = PULL_EXAMPLE)]
    Pull(PullArgs),
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Steps completed in the checkpoint
    pub(crate) step: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Steps completed in the checkpoint; without it the newest that counts
    pub(crate) step: Option<u64>,

    /// The folder to make
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
}
