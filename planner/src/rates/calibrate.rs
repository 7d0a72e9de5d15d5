//! Calibration by earlier trials: fits correction factors for the predicted times on this host.

use crate::layout::candidate::Candidate;
use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;
use dtrain_recipes::Seconds;
use serde::{Deserialize, Serialize};

/// The predicted and the measured time of a step, on the same host with the same model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepObservation {
    /// The candidate that was trained.
    pub candidate: Candidate,
    /// Predicted seconds per step of the candidate.
    pub predicted: Seconds,
    /// Median measured seconds per step of the candidate.
    pub measured: Seconds,
}

/// Number of newest trials that count, so that a temporary slowdown of the host is soon forgotten.
const NEWEST: usize = 3;

/// Returns the newest of `observations` (sorted newest first), each with the median step time of the newest
/// ones with the same candidate, learning rates aside.
pub fn newest_observations(observations: &[StepObservation]) -> Vec<StepObservation> {
    let newest = &observations[..observations.len().min(NEWEST)];
    let layout = |one: &StepObservation| Candidate { learning_rate: 0.0, ..one.candidate.clone() };
    let median = |one: &StepObservation| {
        let same = newest.iter().filter(|other| layout(other) == layout(one));
        let mut steps: Vec<f64> = same.map(|other| other.measured.0).collect();
        steps.sort_by(f64::total_cmp);
        // Factors are fitted to logarithms, so the geometric mean is the middle of two.
        (steps[(steps.len() - 1) / 2] * steps[steps.len() / 2]).sqrt()
    };
    newest.iter().map(|one| StepObservation { measured: Seconds(median(one)), ..one.clone() }).collect()
}

/// Calibration factors for the predicted times of compute and communication; 1 means no correction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Factors {
    /// Calibration factor for the time of forward, backward, optimizer and overhead.
    pub compute: f64,
    /// Calibration factor for the time of communication.
    pub communication: f64,
    /// Number of observations to which the factors were fitted.
    pub observations: u32,
}

impl Default for Factors {
    fn default() -> Self {
        Self { compute: 1.0, communication: 1.0, observations: 0 }
    }
}

impl Factors {
    /// Returns the factor for the width of intervals: it shrinks from 1 towards a third as more trials are
    /// observed.
    pub fn doubt_factor(&self) -> f64 {
        1.0 / 3.0 + 2.0 / 3.0 / f64::from(1 + self.observations).sqrt()
    }
}

/// The measured seconds of a step, with the uncorrected prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Predicted seconds of all but communication.
    pub compute: f64,
    /// Predicted seconds of communication.
    pub communication: f64,
    /// Measured seconds of the whole step.
    pub measured: f64,
}

/// Prior standard deviation of the logarithm of a calibration factor: about a third either way.
const PRIOR: f64 = 0.3;

/// Standard deviation of the logarithm of a measured step time around its prediction.
const NOISE: f64 = 0.05;

/// Fits the calibration factors to the residuals, regularized towards 1.
///
/// Minimises `Σ ((ln measured − ln predicted)/noise)² + Σ (ln factor / prior)²` by Nelder-Mead over the two
/// logarithms. Skips residuals that are not positive and finite. Deterministic.
pub fn fit(residuals: &[Residual]) -> Factors {
    let good = |r: &&Residual| {
        r.compute > 0.0
            && r.communication >= 0.0
            && r.measured > 0.0
            && (r.compute + r.communication + r.measured).is_finite()
    };
    let residuals: Vec<Residual> = residuals.iter().filter(good).copied().collect();
    if residuals.is_empty() {
        return Factors::default();
    }
    let observations = u32::try_from(residuals.len()).unwrap_or(u32::MAX);
    let simplex = vec![vec![0.0, 0.0], vec![0.2, 0.0], vec![0.0, 0.2]];
    let solver = NelderMead::new(simplex).with_sd_tolerance(1e-9);
    // If the search fails, the prior stands: no correction.
    let found = solver.and_then(|solver| {
        Executor::new(Misfit { residuals }, solver).configure(|state| state.max_iters(500)).ctrlc(false).run()
    });
    let best = found.ok().and_then(|result| result.state().get_best_param().cloned());
    best.map_or_else(Factors::default, |logs| Factors {
        compute: logs[0].exp(),
        communication: logs[1].exp(),
        observations,
    })
}

/// Objective of the fit: the sum of squares to minimize.
struct Misfit {
    residuals: Vec<Residual>,
}

impl CostFunction for Misfit {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logs: &Vec<f64>) -> Result<f64, Error> {
        let (compute, communication) = (logs[0].exp(), logs[1].exp());
        let misfit = |r: &Residual| {
            let predicted = compute * r.compute + communication * r.communication;
            ((r.measured.ln() - predicted.ln()) / NOISE).powi(2)
        };
        let prior: f64 = logs.iter().map(|log| (log / PRIOR).powi(2)).sum();
        Ok(self.residuals.iter().map(misfit).sum::<f64>() + prior)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residual(compute: f64, communication: f64, factors: (f64, f64)) -> Residual {
        Residual { compute, communication, measured: compute * factors.0 + communication * factors.1 }
    }

    #[test]
    fn factors_are_found_again_from_measured_steps() {
        let truth = (1.25, 0.7);
        let seen: Vec<_> = [(1.0, 0.0), (0.5, 0.5), (0.3, 0.6), (0.9, 0.2), (0.2, 0.8)]
            .map(|(compute, communication)| residual(compute, communication, truth))
            .to_vec();
        let found = fit(&seen);
        assert!((found.compute / truth.0 - 1.0).abs() < 0.03, "{found:?}");
        assert!((found.communication / truth.1 - 1.0).abs() < 0.05, "{found:?}");
        assert_eq!(found.observations, 5);
        assert_eq!(found, fit(&seen), "the same trials give the same factors");
    }

    #[test]
    fn what_was_not_seen_stays_at_the_prior() {
        let found = fit(&[residual(1.0, 0.0, (1.2, 1.0))]);
        assert!((found.communication - 1.0).abs() < 1e-3, "no trial communicated: {found:?}");
        assert!(found.compute > 1.1 && found.compute < 1.2, "one trial is not believed outright: {found:?}");
    }

    #[test]
    fn nothing_seen_corrects_nothing() {
        assert_eq!(fit(&[]), Factors::default());
        assert_eq!(
            fit(&[Residual { compute: 1.0, communication: 0.0, measured: f64::NAN }]),
            Factors::default()
        );
    }

    #[test]
    fn every_trial_narrows_the_interval() {
        let doubt = |observations| Factors { observations, ..Factors::default() }.doubt_factor();
        assert!((doubt(0) - 1.0).abs() < 1e-12);
        assert!((0..10).all(|n| doubt(n + 1) < doubt(n)));
    }
}
