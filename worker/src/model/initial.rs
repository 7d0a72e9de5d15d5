//! First values: a function of (seed, name, index), so that every layout starts from the same weights.

use dtrain_protocol::order::mix;
use rayon::prelude::*;

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Initial {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

/// The first `len` values of the parameter called `name`.
pub(crate) fn values(initial: Initial, seed: u64, name: &str, len: usize) -> Vec<f32> {
    match initial {
        Initial::Ones => vec![1.0; len],
        Initial::Zeros => vec![0.0; len],
        Initial::Normal(deviation) => normal(mix(seed, hash(name)), deviation, len),
    }
}

/// Box and Muller's transform: two uniform words give two normal values.
fn normal(key: u64, deviation: f64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    values.par_chunks_mut(2).enumerate().with_min_len(1024).for_each(|(pair, out)| {
        let uniform = |word: u64| (mix(key, 2 * pair as u64 + word) >> 11) as f64 / (1u64 << 53) as f64;
        let radius = deviation * (-2.0 * (1.0 - uniform(0)).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * uniform(1)).sin_cos();
        for (value, direction) in out.iter_mut().zip([cos, sin]) {
            *value = (radius * direction) as f32;
        }
    });
    values
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_and_depend_on_seed_and_name() {
        let draw = |seed, name| values(Initial::Normal(0.02), seed, name, 100_001);
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
    fn a_longer_parameter_begins_alike() {
        let long = values(Initial::Normal(1.0), 3, "w", 64);
        assert_eq!(values(Initial::Normal(1.0), 3, "w", 7), long[..7]);
    }
}
