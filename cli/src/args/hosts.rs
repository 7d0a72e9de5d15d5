//! Arguments of commands that take hosts.

use crate::completions;
use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The host, as recipes name it
    #[arg(value_name = "HOST", add = completions::host())]
    pub(crate) host: String,

    /// Let the host be used again
    #[arg(long)]
    pub(crate) lift: bool,
}

/// Subcommands of `dtrain hosts`.
#[derive(Debug, Subcommand)]
pub(crate) enum HostsCommand {
    /// Forget what is held against a host, and use it again
    #[command(after_help = "Example:\n  dtrain hosts forgive gpu-02")]
    Forgive {
        /// The host, as `dtrain hosts` names it
        #[arg(add = completions::host())]
        host: String,
    },
}
