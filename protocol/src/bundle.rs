//! A bundle: trials of a history in one file, to be merged into the histories of other machines.
//!
//! ```text
//! "DTRNHIST" · u32 format · records, each [u8 kind][u32 length][u32 crc32c of the payload][payload], little-endian
//! ```
//! The first record is the [`ArchiveHeader`], as JSON. Then come texts (UTF-8, named by their hash), trials (JSON), each after the
//! texts that it names and followed by the points of its series ([`crate::series_codec`]), and studies (JSON). The last record is the blake3
//! hash of all bytes before it; nothing follows. The same trials always give the same bytes.

mod check;
mod read;

pub use read::Reader;

use crate::TrialId;
use crate::series_codec::{self, MetricSample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Longest note and longest value of a tag, in bytes.
pub const LONGEST_NOTE: usize = 1 << 16;

/// The first bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"DTRNHIST";

/// The format that is written, and the newest that is read.
pub const FORMAT: u32 = 2;

/// Largest payload in bytes: a plan of very many ranks.
const MAX_PAYLOAD: usize = 1 << 30;

/// Points of one record at most.
pub const POINTS: usize = 4096;

const END: u8 = 0;
const HEAD: u8 = 1;
const TEXT: u8 = 2;
const TRIAL: u8 = 3;
const SERIES: u8 = 4;
const STUDY: u8 = 5;

/// What a bundle says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveHeader {
    /// The history it was made from: an id that is drawn once.
    pub machine: String,
    /// The host of that history.
    pub host: String,
    /// Version of dtrain.
    pub program: String,
    /// Trials in it.
    pub trials: u64,
}

/// A trial as it was trained, wherever that was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Its id: 26 letters and digits.
    pub id: TrialId,
    /// What it is called where it was trained.
    pub name: String,
    /// The history it was trained under, and the host of that.
    pub machine: String,
    /// The host of that history.
    pub host: String,
    /// Name of its recipe.
    pub recipe: String,
    /// The study it belongs to.
    pub study: Option<StudyName>,
    /// Metric to optimise.
    pub objective: String,
    /// Which way it is better: `min` or `max`.
    pub goal: String,
    /// How it cuts the work, in words.
    pub layout: String,
    /// Samples of one optimizer step.
    pub batch: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Digest of recipe and candidate.
    pub config_hash: String,
    /// Digest of the host whose rates were used.
    pub host_digest: String,
    /// Digest of the model.
    pub model_digest: String,
    /// Seconds of a step, tokens per second and bytes that the planner expected.
    pub predicted: (Option<f64>, Option<f64>, Option<u64>),
    /// Seconds of a step, their spread, and tokens per second that were measured.
    pub measured: (Option<f64>, Option<f64>, Option<f64>),
    /// Milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// The commit.
    pub git_revision: Option<String>,
    /// Whether tracked files differed from it.
    pub git_dirty: bool,
    /// Version of dtrain that made it.
    pub program: String,
    /// JSON texts by kind: recipe, plan, candidate, provenance, parent.
    pub documents: BTreeMap<String, String>,
    /// Hash of the text that is the difference from the commit.
    pub patch: Option<String>,
    /// Hash of the text that is the environment.
    pub environment: Option<String>,
    /// Path, value as JSON text, and source of each value.
    pub params: Vec<(String, String, String)>,
    /// When each record of what happened was made, and the record as JSON text.
    pub records: Vec<(u64, String)>,
    /// Series, sorted; their points follow in this order.
    pub series: Vec<Series>,
    /// When, in milliseconds since the Unix epoch, and what users wrote.
    pub notes: Vec<(u64, String)>,
    /// Tags by name.
    pub tags: BTreeMap<String, String>,
}

/// One series of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Series {
    /// What it measures.
    pub key: String,
    /// The rank.
    pub rank: u32,
    /// The attempt.
    pub attempt: u64,
    /// Its points.
    pub points: u64,
}

/// A study as trials name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StudyName {
    /// What it is called where it was made.
    pub name: String,
    /// Digest of what it searches; the name alone is not unique.
    pub digest: String,
}

/// A study and what it tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Its name.
    pub name: StudyName,
    /// What is searched and how, as JSON text.
    pub json: String,
    /// Milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// What was tried, by number.
    pub trials: Vec<StudyTrialRecord>,
    /// What happened, by number: when, in milliseconds since the Unix epoch, and as JSON text.
    pub events: Vec<(u64, u64, String)>,
}

/// What a study tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyTrialRecord {
    /// Its number.
    pub number: u64,
    /// As JSON text.
    pub json: String,
    /// Where it was trained.
    pub trial: Option<TrialId>,
    /// Why it was not.
    pub rejection: Option<String>,
}

/// One record of a bundle after its head.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A text that trials name by its [`hash`].
    Text(String),
    /// A trial; its points follow.
    Trial(Box<TrialRecord>),
    /// Points of a series of the trial before: at most [`POINTS`].
    Points(Vec<MetricSample>),
    /// A study.
    Study(StudyRecord),
}

/// Why a bundle cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It begins otherwise.
    #[error("it is not a bundle of `dtrain history export`")]
    NoBundle,
    /// A newer dtrain wrote it.
    #[error("it has format {0}, and this dtrain reads formats up to {FORMAT}; update dtrain")]
    Newer(u32),
    /// It ends early.
    #[error("it ends in the middle: it was not copied whole")]
    Torn,
    /// A checksum does not match, or bytes follow its end.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A field is not what dtrain writes.
    #[error("{of}: `{field}` {what}")]
    Invalid {
        /// The trial or the study.
        of: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// It cannot be read.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// What a text is called: the first 32 hex digits of its blake3.
pub fn hash(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(32);
    hex
}

/// Writes a bundle.
pub struct Writer<W> {
    to: W,
    hash: blake3::Hasher,
}

impl<W: Write> Writer<W> {
    /// Begins a bundle.
    pub fn new(to: W, head: &ArchiveHeader) -> io::Result<Self> {
        let mut writer = Self { to, hash: blake3::Hasher::new() };
        writer.put(&MAGIC)?;
        writer.put(&FORMAT.to_le_bytes())?;
        writer.json(HEAD, head)?;
        Ok(writer)
    }

    /// Writes a record.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Text(text) => self.record(TEXT, text.as_bytes()),
            Record::Trial(trial) => self.json(TRIAL, trial),
            Record::Points(samples) => self.record(SERIES, &series_codec::encode(samples)),
            Record::Study(study) => self.json(STUDY, study),
        }
    }

    /// Ends the bundle; it counts for nothing before.
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
