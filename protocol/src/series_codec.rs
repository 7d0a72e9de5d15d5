//! The binary encoding of the points of a series, which takes about ten bytes per point.
//!
//! ```text
//! u8 codec (1) · varint n · n × zigzag varint Δ²step · n × zigzag varint Δ²time · n × f64, little-endian
//! ```
//! Δ² is the difference of differences, so that evenly spaced steps and times take one byte each. Values keep
//! their bits, also those of a NaN.

use serde::{Deserialize, Serialize};

const CODEC: u8 = 1;

/// A point of a series: the value of a figure at one step and time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSample {
    /// Steps completed; for figures of the host, seconds since the Unix epoch.
    pub step: u64,
    /// Time of the point in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Value of the figure; may be infinite or NaN.
    pub value: f64,
}

/// Encodes the points of a series.
pub fn encode(samples: &[MetricSample]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + samples.len() * 11);
    bytes.push(CODEC);
    put_varint(&mut bytes, samples.len() as u64);
    write_points(&mut bytes, samples, (0, 0));
    bytes
}

/// Decodes the output of [`encode`]; `None` if it is invalid.
pub fn decode(bytes: &[u8]) -> Option<Vec<MetricSample>> {
    let (codec, mut rest) = bytes.split_first()?;
    if *codec != CODEC {
        return None;
    }
    let count = usize::try_from(take_varint(&mut rest)?).ok()?;
    let samples = read_points(&mut rest, count, (0, 0))?;
    rest.is_empty().then_some(samples)
}

/// Writes the steps, times and values of points; the first step and time as differences from `base`.
pub fn write_points(bytes: &mut Vec<u8>, samples: &[MetricSample], base: (u64, u64)) {
    put_deltas(bytes, base.0, samples.iter().map(|sample| sample.step));
    put_deltas(bytes, base.1, samples.iter().map(|sample| sample.at_ms));
    for sample in samples {
        bytes.extend(sample.value.to_le_bytes());
    }
}

/// Reads `count` points, written by [`write_points`], from the start of `bytes`, and advances `bytes`; `None`
/// if they are invalid.
pub fn read_points(bytes: &mut &[u8], count: usize, base: (u64, u64)) -> Option<Vec<MetricSample>> {
    // A point has at least ten bytes, so a damaged count cannot allocate much.
    if count > bytes.len() / 10 {
        return None;
    }
    let steps = take_deltas(bytes, base.0, count)?;
    let times = take_deltas(bytes, base.1, count)?;
    let (values, rest) = bytes.split_at_checked(8 * count)?;
    *bytes = rest;
    let points = steps.into_iter().zip(times).zip(values.as_chunks::<8>().0);
    Some(
        points
            .map(|((step, at_ms), value)| MetricSample { step, at_ms, value: f64::from_le_bytes(*value) })
            .collect(),
    )
}

/// Writes numbers as differences of differences, so that even spacing gives zeros; wrapping, so that any
/// numbers can be encoded.
fn put_deltas(bytes: &mut Vec<u8>, base: u64, numbers: impl Iterator<Item = u64>) {
    let (mut last, mut slope) = (base, 0u64);
    for number in numbers {
        let delta = number.wrapping_sub(last);
        put_varint(bytes, zigzag(delta.wrapping_sub(slope).cast_signed()));
        (last, slope) = (number, delta);
    }
}

fn take_deltas(bytes: &mut &[u8], base: u64, count: usize) -> Option<Vec<u64>> {
    let (mut last, mut slope) = (base, 0u64);
    (0..count)
        .map(|_| {
            slope = slope.wrapping_add(unzigzag(take_varint(bytes)?).cast_unsigned());
            last = last.wrapping_add(slope);
            Some(last)
        })
        .collect()
}

/// Maps numbers of small magnitude and either sign to small unsigned numbers.
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Writes a number with seven bits per byte, lowest first.
pub fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number as u8) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads a number, written by [`put_varint`], from the start of `bytes`, and advances `bytes`; `None` if it
/// is invalid.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(samples: &[MetricSample]) -> Vec<(u64, u64, u64)> {
        samples.iter().map(|s| (s.step, s.at_ms, s.value.to_bits())).collect()
    }

    proptest! {
        #[test]
        fn any_points_come_back_bit_for_bit(
            raw in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..600),
        ) {
            let samples: Vec<_> = raw
                .iter()
                .map(|(step, at_ms, value)| MetricSample { step: *step, at_ms: *at_ms, value: f64::from_bits(*value) })
                .collect();
            let back = decode(&encode(&samples)).expect("made by encode");
            prop_assert_eq!(bits(&back), bits(&samples));
        }

        #[test]
        fn damaged_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(samples) = decode(&bytes) {
                prop_assert!(samples.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_are_kept_and_even_steps_are_cheap() {
        let value = |step: u64| [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1.5][(step % 5) as usize];
        let samples: Vec<_> = (0..512)
            .map(|i| MetricSample { step: i * 10, at_ms: 1_700_000_000_000 + i * 250, value: value(i) })
            .collect();
        let bytes = encode(&samples);
        assert!(bytes.len() <= 512 * 10 + 32, "{} bytes", bytes.len());
        assert_eq!(bits(&decode(&bytes).expect("made by encode")), bits(&samples));
        assert_eq!(decode(&bytes[..bytes.len() - 1]).map(|s| s.len()), None, "a torn chunk is refused");
    }
}
