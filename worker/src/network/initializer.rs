//! Initial values of parameters: a function of (seed, name, index), so that every layout starts from the
//! same weights.

use crate::network::Initializer;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{ContiguousRun, Region};
use rayon::prelude::*;

/// Returns the initial values of one region of the parameter called `name`.
pub(crate) fn values(initial: &Initializer, seed: u64, name: &str, region: &Region) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "it lies in memory")]
    let len = region.elements() as usize;
    match initial {
        Initializer::Ones => vec![1.0; len],
        Initializer::Zeros => vec![0.0; len],
        Initializer::Normal(deviation) => normal(splitmix64(seed, hash(name)), *deviation, region),
        Initializer::Values(whole) => {
            let mut values = Vec::with_capacity(len);
            for run in region.runs() {
                #[expect(clippy::cast_possible_truncation, reason = "it lies in memory")]
                let [begin, end] = [run.global, run.global + run.length].map(|at| at as usize);
                values.extend_from_slice(&whole[begin..end]);
            }
            values
        }
    }
}

/// Draws normally distributed values by the Box-Muller transform: two uniform words give two adjacent
/// values.
fn normal(key: u64, deviation: f64, region: &Region) -> Vec<f32> {
    let pair = |pair: u64| {
        let uniform = |word: u64| (splitmix64(key, 2 * pair + word) >> 11) as f64 / (1u64 << 53) as f64;
        let radius = deviation * (-2.0 * (1.0 - uniform(0)).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * uniform(1)).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    };
    // An element is the half of its pair that it is in the whole parameter: a run may begin and end inside
    // a pair.
    let run = |run: ContiguousRun| {
        let elements = run.global..run.global + run.length;
        let pairs = elements.start / 2..elements.end.div_ceil(2);
        let both = pairs.flat_map(move |at| pair(at).into_iter().zip(2 * at..));
        both.filter(move |(_, element)| elements.contains(element)).map(|(value, _)| value)
    };
    let pieces = region.runs().flat_map(|whole| {
        let starts = (0..whole.length).step_by(PIECE);
        starts.map(move |begin| ContiguousRun {
            global: whole.global + begin,
            local: whole.local + begin,
            length: (whole.length - begin).min(PIECE as u64),
        })
    });
    let pieces: Vec<_> = pieces.collect();
    pieces.into_par_iter().flat_map_iter(run).collect()
}

/// Number of values that a thread draws at a time.
const PIECE: usize = 4096;

/// Hashes the name of a parameter with FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_and_depend_on_seed_and_name() {
        let draw = |seed, name| values(&Initializer::Normal(0.02), seed, name, &Region::whole(&[100_001]));
        let x = draw(1, "a");
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let deviation = (x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64).sqrt();
        let within = x.iter().filter(|v| v.abs() < 0.02).count() as f64 / x.len() as f64;
        assert!(mean.abs() < 3e-4, "{mean}");
        assert!((deviation - 0.02).abs() < 2e-4, "{deviation}");
        assert!((within - 0.6827).abs() < 0.01, "{within}");
        assert_eq!(x, draw(1, "a"));
        assert_ne!(x, draw(2, "a"));
        assert_ne!(x, draw(1, "b"));
    }

    #[test]
    fn a_part_begins_as_it_does_in_the_whole() {
        let shape = [130, 77];
        let all = values(&Initializer::Normal(1.0), 3, "w", &Region::whole(&shape));
        for (rows, columns) in [(3..130, 0..77), (0..130, 5..38), (129..130, 76..77), (4..4, 0..77)] {
            let region = Region { shape: shape.to_vec(), sides: vec![rows, columns] };
            let runs = region.runs().flat_map(|run| run.global..run.global + run.length);
            let expected: Vec<_> = runs.map(|at| all[at as usize]).collect();
            assert_eq!(values(&Initializer::Normal(1.0), 3, "w", &region), expected);
        }
    }
}
