//! The spool: the events of one attempt, as frames in an append-only file.

use crate::fact::AttemptEnd;
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{AttemptId, Event, StampedEvent, StepId};
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One record of a spool. The records tell the events of one attempt in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpoolRecord {
    /// The ranks are about to be started. Always the first record.
    Began {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of ranks in the attempt.
        ranks: u32,
    },
    /// An event of a rank, or the end of a rank that gave no reason.
    Event(StampedEvent),
    /// All ranks saved a step, and the checkpoint is durable under its final name.
    Committed {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// Path of the committed checkpoint's folder.
        folder: PathBuf,
    },
    /// All ranks saved a step, but the checkpoint could not be committed.
    CommitFailed {
        /// Number of the attempt.
        attempt: AttemptId,
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// The reason why it could not be committed.
        reason: String,
    },
    /// A foreign program reached its target: its ranks must stop within
    /// [`STOP_GRACE_PERIOD`](crate::control_protocol::STOP_GRACE_PERIOD).
    TargetReached {
        /// Number of the attempt.
        attempt: AttemptId,
    },
    /// Stands for an intact record that this version cannot parse. Never written.
    Unreadable {
        /// Offset of the record in bytes.
        at: u64,
        /// The error from parsing the record.
        reason: String,
    },
    /// No rank's process is alive. Always the last record.
    Over {
        /// Number of the attempt.
        attempt: AttemptId,
        /// The result of the attempt.
        ended: AttemptEnd,
    },
}

impl SpoolRecord {
    /// Returns `true` if the record must be on disk before anything else happens.
    pub fn must_be_durable(&self) -> bool {
        match self {
            Self::Began { .. } | Self::Committed { .. } | Self::Over { .. } => true,
            Self::CommitFailed { .. } | Self::TargetReached { .. } | Self::Unreadable { .. } => false,
            Self::Event(stamped) => match stamped.event {
                Event::Saved { .. } | Event::Finished { .. } | Event::Failed(_) => true,
                Event::Listening(_)
                | Event::Ready { .. }
                | Event::Step(_)
                | Event::Validated { .. }
                | Event::Validating { .. }
                | Event::Metrics { .. }
                | Event::Notice(_)
                | Event::SaveFailed { .. } => false,
            },
        }
    }
}

/// Longest time before a record is flushed to disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Bytes of the disk that a spool keeps for records to come: those of some thousand steps of a rank.
const RESERVE_BYTES: u64 = 4 << 20;

/// The writer of a spool.
pub(crate) struct SpoolWriter {
    file: File,
    length: u64,
    /// Length up to which the disk has room for the file, as far as it was reserved.
    reserved: u64,
    synced: Instant,
    dirty: bool,
}

impl SpoolWriter {
    /// Creates the spool file at `path`. `Err` if the file exists: no attempt is launched twice.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        crate::durable::sync_folder(path.parent().unwrap_or(Path::new("/")))?;
        Ok(Self { file, length: 0, reserved: 0, synced: Instant::now(), dirty: false })
    }

    /// Prevents the later creation of a spool at `path`: creates an empty one if there is none.
    pub(crate) fn prevent_creation(path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        crate::files::make_folder(folder)?;
        match Self::create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Appends a record and returns its encoded bytes. It is durable after the next [`SpoolWriter::sync`].
    pub(crate) fn append(&mut self, record: &SpoolRecord) -> io::Result<Vec<u8>> {
        let bytes = frame::encode(record);
        self.reserve();
        self.file.write_all(&bytes)?;
        self.length += bytes.len() as u64;
        self.dirty = true;
        Ok(bytes)
    }

    /// Keeps room for records to come, so that an attempt whose disk becomes full still records how it ends. The length of
    /// the file stays. A file system that reserves nothing is written to as before.
    fn reserve(&mut self) {
        if self.length + RESERVE_BYTES / 2 > self.reserved
            && fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.length, RESERVE_BYTES).is_ok()
        {
            self.reserved = self.length + RESERVE_BYTES;
        }
    }

    /// Returns the length of the spool in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Flushes records to disk that have waited for too long.
    pub(crate) fn sync_if_due(&mut self) -> io::Result<()> {
        if self.dirty && self.synced.elapsed() >= SYNC_EVERY { self.sync() } else { Ok(()) }
    }

    /// Flushes all appended records to disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        (self.dirty, self.synced) = (false, Instant::now());
        Ok(())
    }
}

/// Number of bytes of a spool that readers may read, and a flag that is set at its end.
#[derive(Default)]
pub(crate) struct HighWatermark {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl HighWatermark {
    /// Makes the spool readable up to `length`.
    pub(crate) fn extend(&self, length: u64) {
        self.lock().0 = length;
        self.changed.notify_all();
    }

    /// Marks the end of the spool: nothing more will be appended.
    pub(crate) fn close(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }

    /// Waits until more than `read` bytes are readable and returns their number; `None` if they never will
    /// be.
    pub(crate) fn beyond(&self, read: u64) -> Option<u64> {
        let state = self.lock();
        let state = self.changed.wait_while(state, |(length, closed)| *length <= read && !*closed);
        let (length, _) = *state.unwrap_or_else(PoisonError::into_inner);
        (length > read).then_some(length)
    }

    fn lock(&self) -> MutexGuard<'_, (u64, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of spool records, from a file or a socket.
pub(crate) struct SpoolReader<R> {
    from: R,
    offset: u64,
}

/// The reason why the reading of a spool ended.
#[derive(Debug)]
pub(crate) enum SpoolEnd {
    /// The reader is at the end, or within a record whose writer was killed.
    End,
    /// The reader is at a damaged record, or the stream failed.
    Damaged(FrameError),
}

impl<R: Read> SpoolReader<R> {
    /// Creates a reader of `from`, which is at byte `offset` of the spool.
    pub(crate) fn at(offset: u64, from: R) -> Self {
        Self { from, offset }
    }

    /// Returns the number of bytes read; always at the end of a record.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next record; blocks until it is complete.
    pub(crate) fn next(&mut self) -> Result<SpoolRecord, SpoolEnd> {
        let mut counted = CountingReader { from: &mut self.from, read: 0 };
        match frame::read(&mut counted) {
            Ok(record) => {
                self.offset += counted.read;
                Ok(record)
            }
            // Another version or program wrote a record that this version cannot parse, or a bit of it
            // flipped; its length still leads to the next one.
            Err(error @ (FrameError::Json(_) | FrameError::Corrupt)) if counted.read > HEADER => {
                let reason = match &error {
                    FrameError::Json(detail) => detail.to_string(),
                    error => error.to_string(),
                };
                let at = self.offset;
                self.offset += counted.read;
                Ok(SpoolRecord::Unreadable { at, reason })
            }
            Err(FrameError::Closed | FrameError::Torn) => Err(SpoolEnd::End),
            Err(error) => Err(SpoolEnd::Damaged(error)),
        }
    }
}

/// Length in bytes of the header of a record.
const HEADER: u64 = frame::HEADER as u64;

/// A reader that counts the bytes read through it.
struct CountingReader<R> {
    from: R,
    read: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> Vec<SpoolRecord> {
        let attempt = AttemptId(3);
        let failed = SpoolRecord::CommitFailed { attempt, step: StepId(1), reason: "full".into() };
        vec![SpoolRecord::Began { attempt, ranks: 2 }, failed.clone(), failed]
    }

    fn read_all(bytes: &[u8]) -> (Vec<SpoolRecord>, u64, SpoolEnd) {
        let (mut reader, mut found) = (SpoolReader::at(0, bytes), Vec::new());
        loop {
            match reader.next() {
                Ok(record) => found.push(record),
                Err(end) => return (found, reader.offset(), end),
            }
        }
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_only_the_torn_record() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.spool");
        let mut writer = SpoolWriter::create(&path).expect("a new file");
        let ends: Vec<u64> = records()
            .iter()
            .map(|record| {
                writer.append(record).expect("room on disk");
                writer.length()
            })
            .collect();
        assert!(SpoolWriter::create(&path).is_err(), "a spool has one writer in its life");
        let bytes = std::fs::read(&path).expect("just written");
        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut as u64).count();
            let (found, offset, end) = read_all(&bytes[..cut]);
            assert_eq!(found, records()[..whole]);
            assert_eq!(offset, whole.checked_sub(1).map_or(0, |last| ends[last]));
            assert!(matches!(end, SpoolEnd::End), "cut at {cut}: {end:?}");
        }
    }

    #[test]
    fn an_attempt_that_was_given_up_cannot_create_its_spool() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("attempts/a.spool");
        SpoolWriter::prevent_creation(&path).expect("the folder can be written");
        let refused = SpoolWriter::create(&path).err().expect("the attempt is launched too late");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        // The spool of an attempt that was faster keeps its records.
        std::fs::write(&path, b"records").expect("room on disk");
        SpoolWriter::prevent_creation(&path).expect("it is there");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"records");
    }

    #[test]
    fn a_record_with_a_flipped_bit_is_skipped_and_named() {
        let records = records();
        let bytes: Vec<u8> = records.iter().flat_map(frame::encode).collect();
        let (second, third) =
            (frame::encode(&records[0]).len(), bytes.len() - frame::encode(&records[2]).len());
        for place in second + 4..third {
            let mut bytes = bytes.clone();
            bytes[place] ^= 1;
            let (found, offset, end) = read_all(&bytes);
            let reason = "the checksum of a frame does not match".to_owned();
            let skipped = SpoolRecord::Unreadable { at: second as u64, reason };
            assert_eq!(found, [records[0].clone(), skipped, records[2].clone()], "{place}");
            assert_eq!((offset, matches!(end, SpoolEnd::End)), (bytes.len() as u64, true), "{place}");
        }
    }

    #[test]
    fn a_damaged_length_is_damage_and_not_an_end() {
        let mut bytes: Vec<u8> = records().iter().flat_map(frame::encode).collect();
        let second = frame::encode(&records()[0]).len();
        bytes[second + 3] ^= 0x80;
        let (found, offset, end) = read_all(&bytes);
        assert_eq!((found.len(), offset), (1, second as u64));
        assert!(matches!(end, SpoolEnd::Damaged(FrameError::TooLong(..))), "{end:?}");
    }

    proptest! {
        #[test]
        fn of_any_spool_only_what_was_written_is_read(
            noise in prop::collection::vec(any::<u8>(), 0..40),
            at in any::<prop::sample::Index>(),
        ) {
            let right: Vec<u8> = records().iter().flat_map(frame::encode).collect();
            let cut = at.index(right.len() + 1);
            let bytes = [&right[..cut], &noise, &right[cut..]].concat();
            let (found, offset, _) = read_all(&bytes);
            prop_assert!(offset <= bytes.len() as u64);
            let is_read = |record: &&SpoolRecord| !matches!(record, SpoolRecord::Unreadable { .. });
            let read: Vec<_> = found.iter().filter(is_read).collect();
            // Records before the noise are read unchanged, and no record is made up.
            let (mut ends, mut whole) = (0, 0);
            for record in records() {
                ends += frame::encode(&record).len();
                whole += usize::from(ends <= cut);
            }
            prop_assert!(read.len() >= whole && read.iter().all(|record| records().contains(record)), "{:?}", found);
            prop_assert!(read.iter().zip(records()).take(whole).all(|(read, record)| **read == record));
        }
    }

    #[test]
    fn a_follower_sees_each_length_and_then_the_end() {
        let high_watermark = HighWatermark::default();
        high_watermark.extend(10);
        assert_eq!(high_watermark.beyond(0), Some(10));
        high_watermark.close();
        assert_eq!(high_watermark.beyond(9), Some(10));
        assert_eq!(high_watermark.beyond(10), None);
    }
}
