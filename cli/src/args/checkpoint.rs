//! Arguments of `dtrain checkpoint`.

use super::TrialArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

const VERIFY_EXAMPLE: &str = "Example:
  dtrain checkpoint verify last 1200

Damage is reported by tensor, file and byte offset. The exit code is 6 when no intact copy of a
file is left. Without STEP, every committed checkpoint is read.";

const PULL_EXAMPLE: &str = "Example:
  dtrain checkpoint pull last --to kept/newest

Every file is checked against its committed hashes. Run the same command again to resume an
interrupted copy.";

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List the checkpoints of a trial: size, location, and whether they can be used
    #[command(after_help = "Example:\n  dtrain checkpoint ls last")]
    Ls(TrialArgs),

    /// Read a whole checkpoint and report any damage
    #[command(after_help = VERIFY_EXAMPLE)]
    Verify(VerifyArgs),

    /// Copy a checkpoint to a folder from the hosts that hold it
    #[command(after_help = PULL_EXAMPLE)]
    Pull(PullArgs),
}

#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Step of the checkpoint [default: all committed]
    pub(crate) step: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Step of the checkpoint [default: the newest committed]
    pub(crate) step: Option<u64>,

    /// Folder to create
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: PathBuf,
}
