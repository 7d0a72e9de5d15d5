//! Arguments of the hidden command of worker processes.

use clap::Subcommand;
use std::path::PathBuf;

/// Jobs of a worker process other than training.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerPart {
    /// Measures rates of computation and communication
    Probe,
    /// Examines a device
    Device,
    /// Generates text with a trained decoder
    Sample,
    /// Classifies samples with a trained model
    Predict,
    /// Measures a trained model on data
    Evaluate,
    /// Starts a rank of another engine
    Engine {
        /// File with the assignment of the rank
        assignment: PathBuf,
    },
}
