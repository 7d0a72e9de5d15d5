//! A bundle: trials of a history in one file, to be merged into the histories of other machines.
//!
//! ```text
//! "DTRNHIST" · u32 format · records: [u8 kind][u32 length][u32 crc32c of the payload][payload], little-endian
//! ```
//! The first record is the [`ArchiveHeader`], as JSON. Then come texts (UTF-8, named by their hash), trials
//! (JSON), each after its texts and followed by the points of its series ([`crate::series_codec`]), and
//! studies (JSON). The last record is the blake3 hash of all bytes before it. The same trials always give the
//! same bytes.

mod check;
mod read;

pub use read::Reader;

use crate::TrialId;
use crate::series_codec::{self, MetricSample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Length limit of a note, and of the value of a tag, in bytes.
pub const LONGEST_NOTE: usize = 1 << 16;

/// The first bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"DTRNHIST";

/// Format version of the bundles that are written, and the newest that is read.
pub const FORMAT: u32 = 2;

/// Size limit of a record's payload in bytes, large enough for a plan of very many ranks.
const MAX_PAYLOAD: usize = 1 << 30;

/// Maximum number of points in one record.
pub const POINTS: usize = 4096;

const END: u8 = 0;
const HEAD: u8 = 1;
const TEXT: u8 = 2;
const TRIAL: u8 = 3;
const SERIES: u8 = 4;
const STUDY: u8 = 5;

/// The header of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveHeader {
    /// Random id of the trial history, one per machine, from which the bundle was exported.
    pub machine: String,
    /// Name of the host that recorded the bundled history.
    pub host: String,
    /// Version of dtrain that wrote the bundle.
    pub program: String,
    /// Number of trials in the bundle.
    pub trials: u64,
}

/// A trial, with everything that the history has of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Id of the trial: 26 letters and digits.
    pub id: TrialId,
    /// Name of the trial in the history that recorded its training.
    pub name: String,
    /// Id of the history that recorded the training of the trial.
    pub machine: String,
    /// Name of the host that recorded the bundled history.
    pub host: String,
    /// Name of the trial's recipe.
    pub recipe: String,
    /// Study that the trial belongs to; `None` outside of a study.
    pub study: Option<StudyName>,
    /// Name of the metric that the trial optimizes.
    pub objective: String,
    /// Direction in which the trial's metric improves: `min` or `max`.
    pub goal: String,
    /// Layout of the trial in words.
    pub layout: String,
    /// Samples per optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Digest of the trial's recipe and candidate.
    pub config_hash: String,
    /// Digest of the properties of the host whose rates were used to plan the trial.
    pub host_digest: String,
    /// Digest of the trial's model.
    pub model_digest: String,
    /// Predicted seconds per step, tokens per second and bytes of memory, each `None` if unknown.
    pub predicted: (Option<f64>, Option<f64>, Option<u64>),
    /// Measured seconds per step, their spread, and tokens per second, each `None` if not measured.
    pub measured: (Option<f64>, Option<f64>, Option<f64>),
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Git commit of the working directory in which the trial was created; `None` outside of a repository.
    pub git_revision: Option<String>,
    /// `true` if tracked files in the working directory differed from the git commit.
    pub git_dirty: bool,
    /// Version of dtrain that created the trial.
    pub program: String,
    /// Documents of the trial as JSON texts, by kind: recipe, plan, candidate, provenance, parent.
    pub documents: BTreeMap<String, String>,
    /// Hash of the text that has the diff of the working directory from the git commit; `None` without a
    /// diff.
    pub patch: Option<String>,
    /// Hash of the text that describes the environment of the trial; `None` if it was not recorded.
    pub environment: Option<String>,
    /// Values of the recipe: path, value as JSON text, and source of each.
    pub params: Vec<(String, String, String)>,
    /// Records of the trial: time in milliseconds since the Unix epoch, and JSON text.
    pub records: Vec<(u64, String)>,
    /// Series of the trial, sorted; their points follow the record in this order.
    pub series: Vec<Series>,
    /// Notes of the user: time in milliseconds since the Unix epoch, and text.
    pub notes: Vec<(u64, String)>,
    /// Tags of the trial: value by name.
    pub tags: BTreeMap<String, String>,
}

/// A series of points that one rank recorded for one figure in one attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Series {
    /// Name of the figure that the series records.
    pub key: String,
    /// Number of the rank that recorded the series.
    pub rank: u32,
    /// Number of the attempt in which the series was recorded.
    pub attempt: u64,
    /// Number of points in the series.
    pub points: u64,
}

/// The identity of a study, by which its trials refer to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StudyName {
    /// Name of the study in the history that created it.
    pub name: String,
    /// Digest of the search space; the name alone is not unique.
    pub digest: String,
}

/// A study with its trials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Name and digest of the study.
    pub name: StudyName,
    /// Search space and settings of the study, as JSON text.
    pub json: String,
    /// Time of creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Trials of the study, ordered by number.
    pub trials: Vec<StudyTrialRecord>,
    /// Events of the study: number, time in milliseconds since the Unix epoch, and JSON text.
    pub events: Vec<(u64, u64, String)>,
}

/// A trial of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyTrialRecord {
    /// Number of the trial within its study.
    pub number: u64,
    /// Values that the study gave to the trial, as JSON text.
    pub json: String,
    /// Id of the trial; `None` if it was not trained.
    pub trial: Option<TrialId>,
    /// Reason why the trial was not trained; `None` if it was.
    pub rejection: Option<String>,
}

/// A record of a bundle after the header.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A text that trials name by its [`hash`].
    Text(String),
    /// A trial; the points of its series follow.
    Trial(Box<TrialRecord>),
    /// Points of a series of the last trial: at most [`POINTS`].
    Points(Vec<MetricSample>),
    /// A study, with its trials and events.
    Study(StudyRecord),
}

/// An error in reading a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file does not begin with [`MAGIC`].
    #[error("it is not a bundle of `dtrain history export`")]
    NoBundle,
    /// A newer version of dtrain wrote the bundle, in this format version.
    #[error("it has format {0}, and this dtrain reads formats up to {FORMAT}; update dtrain")]
    Newer(u32),
    /// The file ends before the last record.
    #[error("it ends in the middle: it was not copied whole")]
    Torn,
    /// The file is damaged: a checksum does not match, or bytes follow the last record.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A field has a value that dtrain does not write.
    #[error("{of}: `{field}` {what}")]
    Invalid {
        /// Trial or study that has the field.
        of: String,
        /// Name of the field with the invalid value.
        field: String,
        /// Reason why the value is invalid.
        what: String,
    },
    /// Reading or writing the bundle failed.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// Returns the hash by which records refer to a text: the first 32 hex digits of its blake3 hash.
pub fn hash(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(32);
    hex
}

/// A writer that adds records to a bundle one by one.
pub struct Writer<W> {
    to: W,
    hash: blake3::Hasher,
}

impl<W: Write> Writer<W> {
    /// Creates a writer, and writes the header of the bundle.
    pub fn new(to: W, head: &ArchiveHeader) -> io::Result<Self> {
        let mut writer = Self { to, hash: blake3::Hasher::new() };
        writer.put(&MAGIC)?;
        writer.put(&FORMAT.to_le_bytes())?;
        writer.json(HEAD, head)?;
        Ok(writer)
    }

    /// Writes the next record of the bundle.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Text(text) => self.record(TEXT, text.as_bytes()),
            Record::Trial(trial) => self.json(TRIAL, trial),
            Record::Points(samples) => self.record(SERIES, &series_codec::encode(samples)),
            Record::Study(study) => self.json(STUDY, study),
        }
    }

    /// Finishes the bundle with its last record, without which it is invalid.
    pub fn finish(mut self) -> io::Result<W> {
        let hash = *self.hash.finalize().as_bytes();
        self.record(END, &hash)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn json<T: Serialize>(&mut self, kind: u8, value: &T) -> io::Result<()> {
        self.record(kind, &serde_json::to_vec(value)?)
    }

    fn record(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        if payload.len() > MAX_PAYLOAD {
            let words = format!("a record of {} bytes is longer than a bundle may have", payload.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        let length = u32::try_from(payload.len()).expect("it was compared");
        self.put(&[kind])?;
        self.put(&length.to_le_bytes())?;
        self.put(&crc32c::crc32c(payload).to_le_bytes())?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

#[cfg(test)]
mod tests;
