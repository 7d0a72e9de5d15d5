//! Gradient noise scale: the share of chance in the gradients, estimated from the replicas' own gradients and
//! their sum (McCandlish et al. 2018).
//!
//! The gradient of a small batch is longer than that of a large one, because chance cancels out less. From
//! the squared norms of both follow those of the gradient without chance, and of the chance that each
//! sample adds.

use crate::gradient_accumulation::Gradients;
use crate::mesh::Mesh;
use dtrain_protocol::{Arrangement, GradientNoise, Hyperparameters};
use dtrain_recipes::Compression;

/// A gauge of the gradient noise, which compares each replica's gradient with their sum. The replicas' norms
/// of a batch are exchanged with the next batch.
#[derive(Debug)]
pub struct NoiseGauge {
    replicas: f64,
    batch: f64,
    /// Batch size divided by this replica's part of it.
    parts: f64,
    /// Weighted squared norm of this replica's gradient of its newest batch.
    own: f64,
    /// Squared norm of the summed gradient in the newest update.
    whole: Option<f64>,
}

impl NoiseGauge {
    /// Creates the gauge; `None` if there is nothing to compare: one replica, parts of gradients, or
    /// inexact sums.
    #[expect(clippy::cast_precision_loss, reason = "samples of a batch")]
    pub fn of(training: &Hyperparameters, arrangement: &Arrangement, mesh: &Mesh) -> Option<Self> {
        let replicas = arrangement.layout.data.get();
        let is_alone = replicas == 1 || replicas != arrangement.layout.world() || mesh.cuts_gradients();
        let is_exact = match arrangement.sync.compress {
            Compression::None | Compression::F16 | Compression::Bf16 => arrangement.sync.local.is_none(),
            Compression::PowerSgd { .. } | Compression::TopK { .. } => false,
        };
        let part = training.share.end - training.share.start;
        let parts = training.batch as f64 / part as f64;
        (!is_alone && is_exact).then_some(Self {
            replicas: replicas.into(),
            batch: training.batch as f64,
            parts,
            own: 0.0,
            whole: None,
        })
    }

    /// Returns this replica's weighted squared norm, to be sent with its next batch; 0 before the first.
    pub fn own(&self) -> f64 {
        self.own
    }

    /// Records this replica's gradient of its newest batch, which is scaled by `scale`.
    pub fn measure(&mut self, gradients: &Gradients, scale: f32) {
        self.own = self.weighed(gradients.norm_squared() / f64::from(scale).powi(2));
    }

    /// Weights a squared norm by the replica's number of samples, so that all replicas' norms together count
    /// like those of equal parts of the batch.
    fn weighed(&self, norm_squared: f64) -> f64 {
        norm_squared * self.parts
    }

    /// Records the squared norm `whole` of the summed gradient in an update, and returns the noise of the
    /// update before it, for which all replicas `told` their norms.
    pub fn compare(&mut self, whole: f64, told: f64) -> Option<GradientNoise> {
        let before = self.whole.replace(whole).filter(|_| told > 0.0 && told.is_finite())?;
        let noise = self.batch * (told - before) / (self.replicas - 1.0);
        Some(GradientNoise { signal: before - noise / self.batch, noise })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::shuffle::splitmix64;

    /// Values of a gradient, and the value of each without chance.
    const WIDTH: usize = 64;
    const MEAN: f64 = 0.5;

    /// Returns a pseudo-random value of mean 0 and variance 1.
    fn chance(seed: u64) -> f64 {
        let unit = |index: u64| splitmix64(seed, index) as f64 / u64::MAX as f64;
        ((0..12).map(unit).sum::<f64>()) - 6.0
    }

    /// Replicas of unequal size recover the signal and the noise that the samples were made of.
    #[test]
    fn signal_and_noise_are_found_again() {
        let shares = [2u64, 6, 4];
        let batch = 12.0;
        let gauge = |share: u64| NoiseGauge {
            replicas: 3.0,
            batch,
            parts: batch / share as f64,
            own: 0.0,
            whole: None,
        };
        let mut gauges = shares.map(gauge);
        let (mut signal, mut noise, mut count) = (0.0, 0.0, 0.0);
        let mut told = 0.0;
        for step in 0..2000u64 {
            let mut whole = [0.0; WIDTH];
            let mut own = 0.0;
            for (rank, share) in shares.into_iter().enumerate() {
                let sample = |at: usize, sample: u64| {
                    MEAN + chance(splitmix64(step, (rank as u64) << 40 | sample << 20 | at as u64))
                };
                let part: Vec<f64> =
                    (0..WIDTH).map(|at| (0..share).map(|s| sample(at, s)).sum::<f64>() / batch).collect();
                whole.iter_mut().zip(&part).for_each(|(sum, value)| *sum += value);
                own += gauges[rank].weighed(part.iter().map(|value| value * value).sum());
            }
            let square = whole.iter().map(|value| value * value).sum();
            let all: Vec<_> = gauges.iter_mut().map(|gauge| gauge.compare(square, told)).collect();
            assert!(all.iter().all(|one| *one == all[0]), "all replicas know the same");
            assert_eq!(all[0].is_some(), step > 0, "the first has none before it");
            if let Some(found) = all[0] {
                (signal, noise, count) = (signal + found.signal, noise + found.noise, count + 1.0);
            }
            told = own;
        }
        let (signal, noise) = (signal / count, noise / count);
        let (true_signal, true_noise) = (WIDTH as f64 * MEAN * MEAN, WIDTH as f64);
        assert!((signal / true_signal - 1.0).abs() < 0.03, "{signal}, not {true_signal}");
        assert!((noise / true_noise - 1.0).abs() < 0.03, "{noise}, not {true_noise}");
    }
}
