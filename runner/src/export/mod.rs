//! Trials in the formats of other tools: tables, and the files that TensorBoard, MLflow and W&B read.
//!
//! A series is written whole and, where the format can, bit for bit. What is written appears under its name only when it is
//! complete; until then its name begins with a dot and ends with `.partial`.

mod atomic_output;
mod mlflow;
mod names;
mod parquet;
pub mod prometheus;
mod protobuf;
mod runs;
mod tables;
mod tensorboard;
mod text;
mod wandb;

use crate::fact::LedgerError;
use crate::ledger::{History, TrialRow};
use dtrain_protocol::TrialId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// A header line, then one line for each point.
    Csv,
    /// One JSON object on each line: for each trial one about it, then one for each point. A value that is not finite is a
    /// text: `"NaN"`, `"inf"`, `"-inf"`.
    JsonLines,
    /// One row for each point; what is known of the trials is JSON in the metadata of the file.
    Parquet,
    /// A folder of event files, with a folder for each trial.
    TensorBoard,
    /// A SQLite file that MLflow opens as its tracking store.
    MlFlow,
    /// A folder of offline runs, for `wandb sync`.
    Wandb,
}

/// Which points of a trial with several attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptSelection {
    /// Those of every attempt, overlaps included.
    All,
    /// One for each step: where attempts overlap, that of the last.
    Last,
}

/// Which trials, and what of them.
pub struct TrialSelection<'a> {
    /// Where their points are.
    pub history: &'a History,
    /// The trials, in the order in which they are written.
    pub trials: Vec<TrialRow>,
    /// Only series of these keys; `None` for all.
    pub keys: Option<BTreeSet<String>>,
    /// Which points.
    pub attempts: AttemptSelection,
    /// Whether what an earlier export wrote is replaced.
    pub force: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenFiles {
    /// The file, or the folder with the runs.
    pub path: PathBuf,
    /// The parts of it, one or more for each trial.
    pub runs: Vec<WrittenRun>,
}

/// What was written of a trial, or of one attempt of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WrittenRun {
    /// The trial.
    pub trial: TrialId,
    /// What the other tool calls it.
    pub name: String,
    /// Where it is, or what it is called there.
    pub place: String,
    /// Its series.
    pub series: u64,
    /// Its points.
    pub points: u64,
}

/// How many series of how many were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteProgress {
    /// So many …
    pub series: u64,
    /// … of these, with so many points.
    pub of: u64,
    /// Points written.
    pub points: u64,
}

/// Why trials could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The history could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It would overwrite something.
    #[error("{0} exists already")]
    Exists(String),
    /// A folder that would be replaced has something that no export wrote.
    #[error("{} is not replaced: dtrain did not write {}", folder.display(), foreign.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// What is in it, or the folder itself where it is none.
        foreign: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A database of MLflow could not be written.
    #[error("cannot write {}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: rusqlite::Error,
    },
    /// A file is no store of MLflow.
    #[error("{} has no table `{table}`, so it is not a tracking store of MLflow", path.display())]
    NoStore {
        /// The file.
        path: PathBuf,
        /// The missing table.
        table: &'static str,
    },
}

impl OutputFormat {
    /// Which points are written where nobody says: tables have a column for the attempt, runs of other tools have none.
    pub fn attempts(self) -> AttemptSelection {
        match self {
            Self::Csv | Self::JsonLines | Self::Parquet => AttemptSelection::All,
            Self::TensorBoard | Self::MlFlow | Self::Wandb => AttemptSelection::Last,
        }
    }
}

/// Writes trials to `to`: a file, or the folder that the runs are put into.
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

/// Writes trials as lines of text to somebody who reads: [`OutputFormat::Csv`], or otherwise [`OutputFormat::JsonLines`].
pub fn print(
    request: &TrialSelection<'_>,
    format: OutputFormat,
    to: &mut dyn Write,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<(), ExportError> {
    tables::lines(request, format, to, watch).map(drop)
}

/// Puts a file in the place of the one before; whoever reads it at any moment finds one of them whole.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    atomic_output::file(path, true, |file| file.write_all(bytes).map_err(atomic_output::write_error(path)))
}

/// The keys of all series of these trials.
pub fn keys(history: &History, trials: &[TrialRow]) -> Result<BTreeSet<String>, LedgerError> {
    let mut keys = BTreeSet::new();
    for trial in trials {
        keys.extend(history.series_names(&trial.id)?.into_iter().map(|(key, _)| key));
    }
    Ok(keys)
}

/// A count of points or series.
fn as_u64(count: usize) -> u64 {
    count as u64
}
