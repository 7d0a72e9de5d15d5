//! The start of a rank that another engine trains: prepares the tokens and the initial weights of the host as
//! dtrain's worker would, describes them in a job file, and becomes the Python process of the engine.

use crate::checkpoint::TensorReader;
use crate::comm::WorkCounter;
use crate::data::{self, SampleSource, TextTokenizer, TokenWindows};
use crate::pretrained::{WeightFormat, export, export_initial};
use crate::{files, session};
use dtrain_protocol::checkpoint::ENGINE_FOLDER;
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_protocol::{Assignment, EngineProcess};
use dtrain_recipes::Model;
use rustix::fs::{FlockOperation, Mode, flock};
use serde::Serialize;
use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Variable that names the job file.
const JOB: &str = "DTRAIN_ENGINE_JOB";

/// Python interpreter of an engine, unless the recipe names one.
const PYTHON: &str = "python3";

/// The description of a rank's work for the engine, as JSON.
#[derive(Serialize)]
struct EngineJob<'a> {
    /// Assignment of the rank.
    assignment: &'a Assignment,
    /// Training samples.
    train: TokenWindows,
    /// Validation samples.
    valid: TokenWindows,
    /// Folder of the initial weights, for Hugging Face transformers.
    initial: PathBuf,
    /// Folder of the engine's checkpoints on this host.
    checkpoints: PathBuf,
    /// Number of newest checkpoints to keep.
    keep: u32,
}

/// Runs the rank of the assignment in the file `request`, whose folder is for files of the engine. Returns
/// only if the rank could not be started: the reason is on standard error.
pub fn run(request: &Path) -> ExitCode {
    // What the engine writes is for the user alone.
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let Err(failure) = start(request);
    // Without a reader of its log the rank still ends with its exit code.
    drop(writeln!(io::stderr(), "error: {}", failure.reason));
    failure.exit
}

/// Exit code of a shell for a program that does not exist. A rank that ends with it is not started again.
const NOT_FOUND: u8 = 127;

/// The reason why a rank could not be started, with the exit code of its process.
struct StartError {
    reason: Box<dyn Error>,
    exit: ExitCode,
}

impl<E: Into<Box<dyn Error>>> From<E> for StartError {
    fn from(reason: E) -> Self {
        Self { reason: reason.into(), exit: ExitCode::FAILURE }
    }
}

fn start(request: &Path) -> Result<std::convert::Infallible, StartError> {
    let assignment: Assignment = serde_json::from_slice(&fs::read(request)?)?;
    let engine = assignment.engine.as_ref().ok_or("the assignment has no engine")?;
    let folder = request.parent().ok_or("the assignment lies in no folder")?;
    let begins = assignment.resume.as_ref().map(|point| TensorReader::open(&point.folder)).transpose()?;
    let PreparedTokens { train, valid, tokenizer } = tokens(&assignment, begins.as_ref())?;
    let job = EngineJob {
        train,
        valid,
        initial: initial_weights(&assignment, begins.as_ref(), tokenizer.as_deref(), folder)?,
        checkpoints: assignment.checkpoints.join(ENGINE_FOLDER),
        keep: engine.keep,
        assignment: &assignment,
    };
    let path = folder.join(format!("rank-{}.job.json", assignment.rank.0));
    fs::write(&path, serde_json::to_vec_pretty(&job)?)?;
    Err(become_engine(engine, &path))
}

/// Replaces this process by the engine's. Returns the reason why that is impossible.
fn become_engine(engine: &EngineProcess, job: &Path) -> StartError {
    let python = engine.python.as_deref().unwrap_or(PYTHON);
    let error = Command::new(python).args(&engine.arguments).env(JOB, job).exec();
    let reason = format!("{python}: {error}; install the engine, or name its interpreter in cluster.python");
    let exit =
        if error.kind() == io::ErrorKind::NotFound { ExitCode::from(NOT_FOUND) } else { ExitCode::FAILURE };
    StartError { reason: reason.into(), exit }
}

/// The samples of a training, as tokens in files.
struct PreparedTokens {
    train: TokenWindows,
    valid: TokenWindows,
    /// Tokenizer of the text, as JSON; `None` if the data is not text, or bytes are its tokens.
    tokenizer: Option<String>,
}

/// Prepares the data of the assignment.
fn tokens(assignment: &Assignment, begins: Option<&TensorReader>) -> Result<PreparedTokens, Box<dyn Error>> {
    let Assignment { data, data_root, model, training, checkpoints, .. } = assignment;
    let data = data.as_ref().ok_or("the recipe has no data")?;
    let cache = session::cache(checkpoints);
    // Weights that were trained with a tokenizer go on with it.
    let tokenizer = begins.map(|reader| reader.file(TOKENIZER)).transpose()?.flatten();
    let progress = WorkCounter::default();
    let opened = data::open_with(data, data_root, model, &cache, tokenizer.as_deref(), &progress, &|_| ())?;
    opened.fill_a_batch(training.batch)?;
    let windows = |source: &dyn SampleSource| {
        source.token_windows().ok_or("the engine trains decoders, whose samples are tokens")
    };
    Ok(PreparedTokens {
        train: windows(&*opened.train)??,
        valid: windows(&*opened.valid)??,
        tokenizer: opened.tokenizer.as_ref().and_then(TextTokenizer::json),
    })
}

/// Writes the weights that the training starts from, once for all ranks of the host, and returns their
/// folder.
fn initial_weights(
    assignment: &Assignment,
    begins: Option<&TensorReader>,
    tokenizer: Option<&str>,
    folder: &Path,
) -> Result<PathBuf, Box<dyn Error>> {
    let initial = folder.join("initial");
    let lock = files::lock_file(&folder.join("initial.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if initial.is_dir() {
        return Ok(initial);
    }
    let Model::Decoder(decoder) = &assignment.model else { return Err("the engine trains decoders".into()) };
    let partial = folder.join("initial.partial");
    // A rank that was killed may have left it.
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let written = match begins {
        None => export_initial(decoder, assignment.training.seed, &partial),
        Some(reader) => export(reader, &assignment.model, WeightFormat::HuggingFace, &partial).map(drop),
    };
    let written = written.map_err(Box::<dyn Error>::from).and_then(|()| match tokenizer {
        Some(json) => Ok(fs::write(partial.join(TOKENIZER), json)?),
        None => Ok(()),
    });
    if let Err(error) = written {
        // It may have filled the disk.
        drop(fs::remove_dir_all(&partial));
        return Err(error);
    }
    fs::rename(&partial, &initial)?;
    Ok(initial)
}
