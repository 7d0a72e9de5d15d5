//! Reads a bundle, which may come from another user and is not trusted.

use super::check::{LARGEST, LAST_MOMENT, RecordContext, RecordValidator, named};
use super::{
    ArchiveHeader, BundleError, END, FORMAT, HEAD, MAGIC, MAX_PAYLOAD, POINTS, Record, SERIES, STUDY,
    StudyRecord, TEXT, TRIAL, TrialRecord,
};
use crate::old_names;
use crate::series_codec::{self, MetricSample};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::Read;

/// A reader that returns the records of a bundle one by one. They are only valid once [`Reader::read`] has
/// returned `None`.
pub struct Reader<R> {
    from: R,
    format: u32,
    hash: blake3::Hasher,
    head: ArchiveHeader,
    /// Validator that has seen all records so far.
    seen: RecordValidator,
    /// Name in errors of the last trial that was read.
    of: RecordContext,
    /// Series of the last trial whose points must still follow, in reverse order.
    due: Vec<PendingSeries>,
    is_over: bool,
}

/// A series some of whose points must still be read.
struct PendingSeries {
    key: String,
    /// Number of points that must still follow.
    left: u64,
    /// Step of the last point that was read; `None` before the first.
    last: Option<u64>,
}

impl<R: Read> Reader<R> {
    /// Creates a reader, and reads the header of the bundle.
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
        let empty =
            ArchiveHeader { machine: String::new(), host: String::new(), program: String::new(), trials: 0 };
        let mut reader = Self {
            from,
            format,
            hash,
            head: empty,
            seen: RecordValidator::default(),
            of: RecordContext::default(),
            due: Vec::new(),
            is_over: false,
        };
        let (HEAD, payload) = reader.record()? else {
            return Err(damaged("it does not begin with its head"));
        };
        reader.head = parse(&payload, "head")?;
        RecordContext(named("head", "")).head(&reader.head)?;
        Ok(reader)
    }

    /// Returns the header of the bundle.
    pub fn head(&self) -> &ArchiveHeader {
        &self.head
    }

    /// Returns the next record; `None` at the end of a complete bundle.
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
            TEXT => {
                let text = String::from_utf8(payload).map_err(|_| damaged("a text is not UTF-8"))?;
                self.seen.text(&text);
                Record::Text(text)
            }
            TRIAL => {
                let trial: TrialRecord = parse(&self.named(payload, old_names::bundle_trial), "trial")?;
                self.of = self.seen.trial(&trial)?;
                let due = trial.series.iter().rev().filter(|series| series.points > 0);
                self.due = due
                    .map(|one| PendingSeries { key: one.key.clone(), left: one.points, last: None })
                    .collect();
                Record::Trial(Box::new(trial))
            }
            SERIES => {
                let samples =
                    series_codec::decode(&payload).ok_or_else(|| damaged("points cannot be decoded"))?;
                self.take_points(&samples)?;
                Record::Points(samples)
            }
            STUDY => {
                let study: StudyRecord = parse(&self.named(payload, old_names::bundle_study), "study")?;
                self.seen.study(&study)?;
                Record::Study(study)
            }
            kind => return Err(damaged(format!("it has a record of the unknown kind {kind}"))),
        }))
    }

    /// Returns the JSON of a record with its old keys renamed, if the bundle has an old format.
    fn named(&self, payload: Vec<u8>, rename: fn(&mut Value)) -> Vec<u8> {
        if self.format >= FORMAT {
            return payload;
        }
        let Ok(mut json) = serde_json::from_slice::<Value>(&payload) else { return payload };
        rename(&mut json);
        json.to_string().into_bytes()
    }

    /// Checks that `samples` are the next points of the series that is expected now.
    fn take_points(&mut self, samples: &[MetricSample]) -> Result<(), BundleError> {
        let mut due = self.due.pop().ok_or_else(|| damaged("points belong to no series"))?;
        let count = samples.len() as u64;
        if count == 0 || count > due.left || samples.len() > POINTS {
            return Err(damaged("a series has other points than it says"));
        }
        let field = || format!("series[{}]", due.key);
        for sample in samples {
            if due.last.is_some_and(|last| last >= sample.step) {
                return Err(self.of.wrong(field(), "has points that are not in order"));
            }
            if sample.step > LARGEST || sample.at_ms > LAST_MOMENT {
                return Err(self.of.wrong(field(), "has a point whose step or time is too large"));
            }
            due.last = Some(sample.step);
        }
        due.left -= count;
        if due.left > 0 {
            self.due.push(due);
        }
        Ok(())
    }

    fn record(&mut self) -> Result<(u8, Vec<u8>), BundleError> {
        let header = self.read_bytes(9)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let length = word(1) as usize;
        if length > MAX_PAYLOAD {
            return Err(damaged(format!("a record of {length} bytes is announced")));
        }
        let payload = self.read_bytes(length)?;
        if crc32c::crc32c(&payload) != word(5) {
            return Err(damaged("the checksum of a record does not match"));
        }
        Ok((header[0], payload))
    }

    /// Reads exactly `length` bytes. The buffer grows with the data received, not with the announced length.
    fn read_bytes(&mut self, length: usize) -> Result<Vec<u8>, BundleError> {
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

/// Parses the JSON of a record; an error names the record and the field.
fn parse<T: DeserializeOwned>(payload: &[u8], kind: &str) -> Result<T, BundleError> {
    serde_json::from_slice(payload).map_err(|error| {
        let value: Value = serde_json::from_slice(payload).unwrap_or_default();
        // The name of a trial is a text, that of a study an object.
        let name = value["name"].as_str().or_else(|| value["name"]["name"].as_str()).unwrap_or_default();
        let at = error.column().min(payload.len());
        let what = match (error.line(), field_before(&payload[..at])) {
            // With line breaks in the JSON, only the position is reported.
            (1, Some(field)) => {
                return RecordContext(named(kind, name)).wrong(field, format!("cannot be read: {error}"));
            }
            _ => format!("the record cannot be read: {error}"),
        };
        damaged(format!("{}: {what}", named(kind, name)))
    })
}

/// Returns the last key of the outermost object in `json`, the beginning of a JSON text.
fn field_before(json: &[u8]) -> Option<String> {
    let (mut depth, mut text, mut last, mut field) = (0u32, None, None, None);
    let mut bytes = json.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (byte, text) {
            (b'"', None) => text = Some(at + 1),
            (b'"', Some(begin)) => (last, text) = (json.get(begin..at), None),
            (b'\\', Some(_)) => drop(bytes.next()),
            (b'{' | b'[', None) => depth += 1,
            (b'}' | b']', None) => depth = depth.saturating_sub(1),
            (b':', None) if depth == 1 => field = last,
            _ => {}
        }
    }
    let field = std::str::from_utf8(field?).ok()?;
    let is_plain = field.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_plain.then(|| field.to_owned())
}
