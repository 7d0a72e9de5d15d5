//! Format of the log of open points: the points of each commit, until they are sealed into chunks.
//!
//! A record is `[u32 length][u32 crc32c of the payload][payload]`, little-endian; a length of zero, or the
//! end of the blob, ends the log. The payload is, in varints unless it says otherwise:
//!
//! ```text
//! 0 · or 1 · attempt · offset                    bytes of the attempt's spool that are stored
//! n · n × (attempt · rank · sequence)            the newest stored event of each rank
//! n · step · time · n × (series · n · points)    ids ascend, each as the difference from the one before;
//!                                                points as in a chunk, but the first step and time are
//!                                                differences from those before
//! ```

use super::MetricSample;
use dtrain_protocol::series_codec::{put_varint, read_points, take_varint, write_points};
use dtrain_protocol::{AttemptId, Rank};
use std::ops::Range;

/// Bytes before the payload of a record: its length and its checksum.
const HEADER: usize = 8;

/// Points by series, each given by its row number.
pub(super) type PointsBySeries = Vec<(i64, Vec<MetricSample>)>;

/// Header of a record: everything but the record's points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// Attempt, and the number of bytes of its spool that are stored.
    pub(super) offset: Option<(AttemptId, u64)>,
    /// Newest stored event of each rank: attempt, rank and sequence number.
    pub(super) heard: Vec<(AttemptId, Rank, u64)>,
}

/// Log of records, with the number of bytes in use.
#[derive(Debug, Default)]
pub(super) struct PointLog {
    bytes: Vec<u8>,
    heads: Vec<(RecordHeader, Range<usize>)>,
    used: usize,
}

impl PointLog {
    /// Parses a log; `None` if it is damaged.
    pub(super) fn read(bytes: Vec<u8>) -> Option<Self> {
        let (mut heads, mut used) = (Vec::new(), 0);
        while let Some((header, rest)) = bytes[used..].split_at_checked(HEADER) {
            let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
            let length = usize::try_from(word(0)).ok()?;
            if length == 0 {
                break;
            }
            let payload = rest.get(..length)?;
            if crc32c::crc32c(payload) != word(4) {
                return None;
            }
            let mut body = payload;
            let head = take_head(&mut body)?;
            let end = used + HEADER + length;
            heads.push((head, end - body.len()..end));
            used = end;
        }
        Some(Self { bytes, heads, used })
    }

    /// Returns the number of bytes that the records take.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the size of the log in bytes, unused ones included.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the headers of the records, in order.
    pub(super) fn heads(&self) -> impl Iterator<Item = &RecordHeader> {
        self.heads.iter().map(|(head, _)| head)
    }

    /// Returns all points, in the order in which they were added.
    pub(super) fn points(&self) -> Option<PointsBySeries> {
        let mut all = Vec::new();
        for (_, body) in &self.heads {
            all.extend(take_series(&self.bytes[body.clone()])?);
        }
        Some(all)
    }

    /// Returns the encoded records, without the unused bytes.
    pub(super) fn records(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// Encodes a record. `points` must be sorted by series.
pub(super) fn record(head: &RecordHeader, points: &PointsBySeries) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    let offset = head.offset.map_or(vec![0], |(attempt, offset)| vec![1, attempt.0, offset]);
    offset.into_iter().for_each(|number| put_varint(&mut bytes, number));
    put_varint(&mut bytes, head.heard.len() as u64);
    for (attempt, rank, sequence) in &head.heard {
        for number in [attempt.0, rank.0.into(), *sequence] {
            put_varint(&mut bytes, number);
        }
    }
    put_varint(&mut bytes, points.len() as u64);
    let (mut base, mut before) = ((0, 0), 0);
    for (series, samples) in points {
        put_varint(&mut bytes, series.wrapping_sub(before).cast_unsigned());
        put_varint(&mut bytes, samples.len() as u64);
        write_points(&mut bytes, samples, base);
        base = samples.first().map_or(base, |first| (first.step, first.at_ms));
        before = *series;
    }
    let payload = &bytes[HEADER..];
    let length = u32::try_from(payload.len()).expect("news fit memory many times over");
    let crc = crc32c::crc32c(payload);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..HEADER].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn take_head(bytes: &mut &[u8]) -> Option<RecordHeader> {
    let offset = match take_varint(bytes)? {
        0 => None,
        1 => Some((AttemptId(take_varint(bytes)?), take_varint(bytes)?)),
        _ => return None,
    };
    let count = usize::try_from(take_varint(bytes)?).ok()?;
    if count > bytes.len() / 3 {
        return None;
    }
    let heard = (0..count).map(|_| {
        let attempt = AttemptId(take_varint(bytes)?);
        Some((attempt, Rank(u32::try_from(take_varint(bytes)?).ok()?), take_varint(bytes)?))
    });
    Some(RecordHeader { offset, heard: heard.collect::<Option<_>>()? })
}

fn take_series(mut bytes: &[u8]) -> Option<PointsBySeries> {
    let count = usize::try_from(take_varint(&mut bytes)?).ok()?;
    if count > bytes.len() / 2 {
        return None;
    }
    let (mut base, mut before) = ((0, 0), 0i64);
    let series = (0..count).map(|_| {
        before = before.wrapping_add(take_varint(&mut bytes)?.cast_signed());
        let points = usize::try_from(take_varint(&mut bytes)?).ok()?;
        let samples = read_points(&mut bytes, points, base)?;
        base = samples.first().map_or(base, |first: &MetricSample| (first.step, first.at_ms));
        Some((before, samples))
    });
    let series = series.collect::<Option<_>>()?;
    bytes.is_empty().then_some(series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(points: &PointsBySeries) -> Vec<(i64, Vec<(u64, u64, u64)>)> {
        let of =
            |samples: &[MetricSample]| samples.iter().map(|s| (s.step, s.at_ms, s.value.to_bits())).collect();
        points.iter().map(|(series, samples)| (*series, of(samples))).collect()
    }

    fn padded(records: &[Vec<u8>], zeros: usize) -> Vec<u8> {
        let mut bytes = records.concat();
        bytes.resize(bytes.len() + zeros, 0);
        bytes
    }

    proptest! {
        #[test]
        fn records_come_back_bit_for_bit_and_a_damaged_log_is_refused(
            raw in prop::collection::vec(
                (any::<Option<(u64, u64)>>(), prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>()), 0..4),
                 prop::collection::btree_map(1i64..999, prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..6), 0..6)),
                0..5),
            zeros in 0usize..40, flip in any::<prop::sample::Index>(),
        ) {
            let wanted: Vec<(RecordHeader, PointsBySeries)> = raw.into_iter().map(|(offset, heard, points)| {
                let heard = heard.into_iter().map(|(a, r, s)| (AttemptId(a), Rank(r), s)).collect();
                let head = RecordHeader { offset: offset.map(|(attempt, offset)| (AttemptId(attempt), offset)), heard };
                let sample = |(step, at_ms, value)| MetricSample { step, at_ms, value: f64::from_bits(value) };
                (head, points.into_iter().map(|(id, all)| (id, all.into_iter().map(sample).collect())).collect())
            }).collect();
            let records: Vec<_> = wanted.iter().map(|(head, points)| record(head, points)).collect();
            let bytes = padded(&records, zeros);
            let log = PointLog::read(bytes.clone()).expect("as written");
            prop_assert_eq!(log.used(), bytes.len() - zeros);
            prop_assert!(log.heads().eq(wanted.iter().map(|(head, _)| head)));
            let all: PointsBySeries = wanted.iter().flat_map(|(_, points)| points.clone()).collect();
            prop_assert_eq!(bits(&log.points().expect("as written")), bits(&all));
            if log.used() > 0 {
                let mut damaged = bytes;
                let at = flip.index(log.used());
                damaged[at] ^= 4;
                let back = PointLog::read(damaged).and_then(|log| log.points());
                prop_assert!(back.is_none_or(|back| bits(&back) != bits(&all)), "not read as if nothing were wrong");
            }
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(PointLog::read(bytes.clone()));
            drop(take_series(&bytes));
            drop(take_head(&mut bytes.as_slice()));
        }
    }

    #[test]
    fn a_step_of_one_rank_takes_little() {
        let sample = |value: f64| MetricSample { step: 12_345, at_ms: 1_700_000_000_000, value };
        let points: PointsBySeries =
            (0..17).map(|series| (1000 + series, vec![sample(0.1 * series as f64)])).collect();
        let head = RecordHeader {
            offset: Some((AttemptId(1), 1 << 20)),
            heard: vec![(AttemptId(1), Rank(0), 12_345)],
        };
        let bytes = record(&head, &points).len();
        assert!(bytes <= 17 * 12 + 40, "{bytes} bytes");
    }
}
