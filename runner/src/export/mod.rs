//! Export of trials to other tools: tables, and the files that TensorBoard, MLflow and W&B read.
//!
//! A series is written whole and, if the format allows, bit for bit. An output appears under its name only
//! when it is complete; until then its name begins with a dot and ends with `.partial`.

mod atomic_output;
mod csv;
mod json_lines;
mod mlflow;
mod names;
mod parquet;
pub mod prometheus;
mod protobuf;
mod row_writer;
mod runs;
mod tables;
mod tensorboard;
mod trial_metadata;
mod wandb;

use crate::fact::LedgerError;
use crate::ledger::{History, TrialRow};
use dtrain_protocol::TrialId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// CSV table: a header line, then one line per point.
    Csv,
    /// JSON Lines: for each trial one object about it, then one per point. A value that is not finite is a
    /// string: `"NaN"`, `"inf"`, `"-inf"`.
    JsonLines,
    /// Parquet table: one row per point; the properties of the trials are JSON in the metadata of the file.
    Parquet,
    /// TensorBoard: event files, in a folder for each trial.
    TensorBoard,
    /// MLflow: a SQLite file that MLflow opens as its tracking store.
    MlFlow,
    /// Weights & Biases (W&B): a folder of offline runs, for `wandb sync`.
    Wandb,
}

/// Selection among the points of a trial with several attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptSelection {
    /// All points of every attempt, overlaps included.
    All,
    /// One point per step: where attempts overlap, the point of the last attempt.
    Last,
}

/// Trials and points to export.
pub struct TrialSelection<'a> {
    /// History with the points.
    pub history: &'a History,
    /// Trials, in output order.
    pub trials: Vec<TrialRow>,
    /// Keys of the series to export; `None` for all.
    pub keys: Option<BTreeSet<String>>,
    /// Attempts whose points are exported.
    pub attempts: AttemptSelection,
    /// True if the output of an earlier export is replaced.
    pub force: bool,
}

/// Result of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenFiles {
    /// Path of the written file, or of the folder with the runs.
    pub path: PathBuf,
    /// Exported runs, one or more per trial.
    pub runs: Vec<WrittenRun>,
}

/// Exported run: a trial, or one attempt of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenRun {
    /// Id of the exported trial.
    pub trial: TrialId,
    /// Name of the run in the tool that it is exported for.
    pub name: String,
    /// Path or identifier of the run within the output.
    pub place: String,
    /// Number of series exported.
    pub series: u64,
    /// Number of points exported.
    pub points: u64,
}

/// Progress of an export: series and points written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteProgress {
    /// Number of series written so far.
    pub series: u64,
    /// Number of series to write in all.
    pub of: u64,
    /// Number of points written so far.
    pub points: u64,
}

/// Error of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The history could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The output exists and may not be overwritten.
    #[error("{0} exists already")]
    Exists(String),
    /// A folder to be replaced has an entry that no export wrote.
    #[error("{} is not replaced: dtrain did not write {}", folder.display(), foreign.display())]
    Foreign {
        /// Path of the folder to be replaced.
        folder: PathBuf,
        /// Path of the entry that no export wrote, or of the output itself if it is no folder.
        foreign: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
    /// An MLflow database could not be written.
    #[error("cannot write {}", path.display())]
    Database {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: rusqlite::Error,
    },
    /// The file is not an MLflow tracking store.
    #[error("{} has no table `{table}`, so it is not a tracking store of MLflow", path.display())]
    NoStore {
        /// Path of the file.
        path: PathBuf,
        /// Name of a table that the file lacks.
        table: &'static str,
    },
}

impl OutputFormat {
    /// Returns the default selection of attempts: all for tables, which have a column for the attempt; the
    /// last for runs of other tools, which have none.
    pub fn attempts(self) -> AttemptSelection {
        match self {
            Self::Csv | Self::JsonLines | Self::Parquet => AttemptSelection::All,
            Self::TensorBoard | Self::MlFlow | Self::Wandb => AttemptSelection::Last,
        }
    }
}

/// Exports the selected trials to `to`: a file, or the folder for the runs.
pub fn export(
    request: &TrialSelection<'_>,
    format: OutputFormat,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<WrittenFiles, ExportError> {
    let runs = match format {
        OutputFormat::Csv | OutputFormat::JsonLines | OutputFormat::Parquet => {
            tables::file(request, format, to, watch)
        }
        OutputFormat::TensorBoard => tensorboard::folders(request, to, watch),
        OutputFormat::MlFlow => mlflow::database(request, to, watch),
        OutputFormat::Wandb => wandb::folders(request, to, watch),
    }?;
    Ok(WrittenFiles { path: to.to_path_buf(), runs })
}

/// Writes trials as text to a stream: as CSV for [`OutputFormat::Csv`], otherwise as JSON Lines.
pub fn print(
    request: &TrialSelection<'_>,
    format: OutputFormat,
    to: &mut dyn Write,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<(), ExportError> {
    tables::lines(request, format, to, watch).map(drop)
}

/// Replaces a file atomically; a reader always sees one complete version.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    atomic_output::file(path, true, |file| file.write_all(bytes).map_err(atomic_output::write_error(path)))
}

/// Returns the keys of all series that any of `trials` has.
pub fn keys(history: &History, trials: &[TrialRow]) -> Result<BTreeSet<String>, LedgerError> {
    let mut keys = BTreeSet::new();
    for trial in trials {
        keys.extend(history.series_names(&trial.id)?.into_iter().map(|(key, _)| key));
    }
    Ok(keys)
}

/// Converts a count of points or series to `u64`.
fn as_u64(count: usize) -> u64 {
    count as u64
}
