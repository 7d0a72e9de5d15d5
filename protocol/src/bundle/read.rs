//! Reading a bundle, which somebody else may have written.

use super::{
    BundleError, END, FORMAT, HEAD, Head, MAGIC, MAX_PAYLOAD, POINTS, Record, SERIES, STUDY, Study,
    StudyName, TEXT, TRIAL, Trial,
};
use crate::TrialId;
use crate::points;
use serde::de::DeserializeOwned;
use std::io::Read;

/// Longest name of a trial, recipe, study or figure in bytes.
const MAX_NAME: usize = 400;

/// Reads a bundle record by record. What it says counts once [`Reader::read`] has said that it is over.
pub struct Reader<R> {
    from: R,
    hash: blake3::Hasher,
    head: Head,
    /// Points that must still follow, by series, the last first.
    due: Vec<u64>,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Begins to read.
    pub fn new(mut from: R) -> Result<Self, BundleError> {
        let mut begin = Vec::new();
        (&mut from).take(12).read_to_end(&mut begin)?;
        let Some((magic, format)) = begin.split_first_chunk::<8>() else { return Err(BundleError::NoBundle) };
        if *magic != MAGIC {
            return Err(BundleError::NoBundle);
        }
        let format = format.try_into().map(u32::from_le_bytes).map_err(|_| BundleError::Torn)?;
        if format > FORMAT {
            return Err(BundleError::Newer(format));
        }
        let mut hash = blake3::Hasher::new();
        hash.update(&begin);
        let nobody = Head { machine: String::new(), host: String::new(), program: String::new(), trials: 0 };
        let mut reader = Self { from, hash, head: nobody, due: Vec::new(), is_over: false };
        let (HEAD, payload) = reader.record()? else {
            return Err(damaged("it does not begin with its head"));
        };
        reader.head = parse(&payload, "its head")?;
        Ok(reader)
    }

    /// What it says of itself.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next record; `None` at the end of a whole bundle.
    pub fn read(&mut self) -> Result<Option<Record>, BundleError> {
        if self.is_over {
            return Ok(None);
        }
        let hash = self.hash.clone();
        let (kind, payload) = self.record()?;
        if kind != SERIES && !self.due.is_empty() {
            return Err(damaged("points are missing"));
        }
        Ok(Some(match kind {
            END => {
                if payload != hash.finalize().as_bytes() {
                    return Err(damaged("its checksum does not match"));
                }
                if self.from.read(&mut [0])? > 0 {
                    return Err(damaged("more follows its end"));
                }
                self.is_over = true;
                return Ok(None);
            }
            TEXT => Record::Text(String::from_utf8(payload).map_err(|_| damaged("a text is not UTF-8"))?),
            TRIAL => {
                let trial: Trial = parse(&payload, "a trial")?;
                check(&trial)?;
                self.due = trial.series.iter().rev().map(|series| series.points).collect();
                self.due.retain(|points| *points > 0);
                Record::Trial(Box::new(trial))
            }
            SERIES => {
                let samples = points::decode(&payload).ok_or_else(|| damaged("points cannot be decoded"))?;
                let left = self.due.pop().ok_or_else(|| damaged("points belong to no series"))?;
                let count = samples.len() as u64;
                if count == 0 || count > left || samples.len() > POINTS {
                    return Err(damaged("a series has other points than it says"));
                }
                if count < left {
                    self.due.push(left - count);
                }
                Record::Points(samples)
            }
            STUDY => {
                let study: Study = parse(&payload, "a study")?;
                check_study(&study.name)?;
                study.tried.iter().filter_map(|tried| tried.trial.as_ref()).try_for_each(check_id)?;
                Record::Study(study)
            }
            kind => return Err(damaged(format!("it has a record of the unknown kind {kind}"))),
        }))
    }

    fn record(&mut self) -> Result<(u8, Vec<u8>), BundleError> {
        let header = self.take(9)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let length = word(1) as usize;
        if length > MAX_PAYLOAD {
            return Err(damaged(format!("a record of {length} bytes is announced")));
        }
        let payload = self.take(length)?;
        if crc32c::crc32c(&payload) != word(5) {
            return Err(damaged("the checksum of a record does not match"));
        }
        Ok((header[0], payload))
    }

    /// So many bytes. Room grows with what comes, not with what is announced.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, BundleError> {
        let mut bytes = Vec::new();
        (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(BundleError::Torn);
        }
        self.hash.update(&bytes);
        Ok(bytes)
    }
}

fn damaged(what: impl Into<String>) -> BundleError {
    BundleError::Damaged(what.into())
}

fn parse<T: DeserializeOwned>(payload: &[u8], what: &str) -> Result<T, BundleError> {
    serde_json::from_slice(payload).map_err(|error| damaged(format!("{what} cannot be read: {error}")))
}

/// Ids become names of folders, and names are shown and typed.
fn check(trial: &Trial) -> Result<(), BundleError> {
    check_id(&trial.id)?;
    let names = [&trial.name, &trial.recipe, &trial.machine, &trial.host];
    let all = names.into_iter().chain(trial.series.iter().map(|series| &series.key));
    all.chain(trial.tags.keys()).try_for_each(|name| check_name(name))?;
    trial.study.as_ref().map_or(Ok(()), check_study)?;
    if !matches!(trial.goal.as_str(), "min" | "max") {
        return Err(damaged(format!("{:?} is no goal", trial.goal)));
    }
    if !trial.series.is_sorted_by(|a, b| (&a.key, a.rank, a.attempt) < (&b.key, b.rank, b.attempt)) {
        return Err(damaged("the series of a trial are not in order"));
    }
    Ok(())
}

fn check_study(study: &StudyName) -> Result<(), BundleError> {
    check_name(&study.name)?;
    let is_digest = study.digest.len() == 32 && study.digest.bytes().all(|b| b.is_ascii_hexdigit());
    if is_digest { Ok(()) } else { Err(damaged(format!("{:?} is no digest", study.digest))) }
}

fn check_id(id: &TrialId) -> Result<(), BundleError> {
    let is_plain = |b: u8| b.is_ascii_digit() || b.is_ascii_uppercase();
    let is_id = id.0.len() == 26 && id.0.bytes().all(is_plain);
    if is_id { Ok(()) } else { Err(damaged(format!("{:?} is no id of a trial", id.0))) }
}

fn check_name(name: &str) -> Result<(), BundleError> {
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
    if is_name { Ok(()) } else { Err(damaged(format!("{name:?} is no name"))) }
}
