//! Splits sealed points of a series into chunks that fill the pages of the history file.

use super::MetricSample;
use dtrain_protocol::series_codec::encode;

/// Bytes of a full chunk: with its key, the chunk fills the part of a row that SQLite keeps in the tree, and
/// one more page.
const FULL: usize = 5_060;

/// Bytes of a chunk that fits into the tree without another page.
const SMALL: usize = 980;

/// Splits `samples` into chunks that waste little of a page; returns the chunks and the number of samples in
/// them. With `all`, the last chunk may be short; otherwise only full chunks are returned.
pub(super) fn cut(samples: &[MetricSample], all: bool) -> (Vec<Vec<u8>>, usize) {
    let (mut chunks, mut done) = (Vec::new(), 0);
    while done < samples.len() {
        let rest = &samples[done..];
        let (full, count) = fill(rest, FULL);
        if count == rest.len() && !all {
            break;
        }
        let is_full = count < rest.len() || full.len() <= SMALL || full.len() > FULL - 100;
        let (chunk, count) = if is_full { (full, count) } else { fill(rest, SMALL) };
        chunks.push(chunk);
        done += count;
    }
    (chunks, done)
}

/// Returns a chunk of at most `bytes` bytes, and the number of leading samples that it holds.
fn fill(samples: &[MetricSample], bytes: usize) -> (Vec<u8>, usize) {
    let mut count = samples.len().min(bytes / 10);
    loop {
        let chunk = encode(&samples[..count]);
        if chunk.len() <= bytes || count <= 1 {
            return (chunk, count);
        }
        count = (count * bytes / chunk.len()).clamp(1, count - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::series_codec::decode;
    use proptest::prelude::*;

    fn bits(samples: &[MetricSample]) -> Vec<(u64, u64, u64)> {
        samples.iter().map(|s| (s.step, s.at_ms, s.value.to_bits())).collect()
    }

    proptest! {
        #[test]
        fn cut_points_come_back_and_no_chunk_wastes_a_page(
            raw in prop::collection::vec((0u64..9, 0u64..400, any::<u64>()), 0..1800), all: bool,
        ) {
            let (mut step, mut at_ms) = (0, 1_700_000_000_000);
            let samples: Vec<_> = raw
                .iter()
                .map(|(by, after, value)| {
                    (step, at_ms) = (step + by, at_ms + after);
                    MetricSample { step, at_ms, value: f64::from_bits(*value) }
                })
                .collect();
            let (chunks, held) = cut(&samples, all);
            let back: Vec<_> = chunks.iter().flat_map(|chunk| decode(chunk).expect("made by cut")).collect();
            prop_assert_eq!(bits(&back), bits(&samples[..held]));
            prop_assert!(!all || held == samples.len());
            for chunk in &chunks {
                let length = chunk.len();
                prop_assert!(length <= SMALL || (FULL - 120..=FULL).contains(&length), "{length} bytes");
            }
        }
    }
}
