//! Random numbers that depend only on a seed and the number of a trial, so that a trial always draws the same
//! numbers.

use dtrain_protocol::shuffle::splitmix64;
use std::f64::consts::TAU;

/// A stream of random numbers for one trial.
#[derive(Clone, Debug)]
pub struct TrialRng {
    key: u64,
    drawn: u64,
}

impl TrialRng {
    /// Returns the stream of random numbers for trial `number` of a study with the given seed.
    pub fn new(seed: u64, number: u64) -> Self {
        Self { key: splitmix64(seed, number), drawn: 0 }
    }

    fn bits(&mut self) -> u64 {
        self.drawn += 1;
        splitmix64(self.key, self.drawn)
    }

    /// Returns a uniform random number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let digits = (self.bits() >> 11) as f64;
        digits / 9_007_199_254_740_992.0
    }

    /// Returns a uniform random integer below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        let wide = u128::from(self.bits()) * u128::try_from(count).expect("it fits");
        usize::try_from(wide >> 64).expect("it is below the count")
    }

    /// Returns a standard normal random number (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_as_they_should_be() {
        let mut rng = TrialRng::new(3, 4);
        let count = 20_000;
        let (mut sum, mut squares, mut below) = (0.0, 0.0, [0u32; 3]);
        for _ in 0..count {
            let normal = rng.normal();
            sum += normal;
            squares += normal * normal;
            below[rng.below(3)] += 1;
        }
        let count = f64::from(count);
        assert!((sum / count).abs() < 0.03 && (squares / count - 1.0).abs() < 0.05);
        assert!(below.iter().all(|one| (f64::from(*one) / count - 1.0 / 3.0).abs() < 0.02), "{below:?}");
    }

    #[test]
    fn a_trial_draws_the_same_again_and_another_draws_others() {
        let draw = |seed, number| {
            (0..4)
                .map({
                    let mut c = TrialRng::new(seed, number);
                    move |_| c.unit()
                })
                .collect::<Vec<f64>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert!(draw(1, 2) != draw(1, 3) && draw(1, 2) != draw(2, 2));
    }
}
