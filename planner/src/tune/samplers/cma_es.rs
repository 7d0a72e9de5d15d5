//! CMA-ES (Hansen 2016): a normal distribution that moves towards good trials and adapts its shape to the
//! path to them.
//!
//! The distribution is computed from the log: each `λ` trials, in the order in which they ended, are a
//! generation, whichever distribution they were drawn from; so no trial waits for the rest of a generation.
//! Points too far from the mean to have been drawn are pulled in (Hansen 2011). The evolution path uses the
//! Cholesky factor in place of the matrix root.

use super::ask_context::AskContext;
use super::sobol;
use crate::linear_algebra::{Cholesky, dot};
use crate::tune::event::ProposalSource;
use crate::tune::observations::StudyObservations;
use crate::tune::rng::TrialRng;
use crate::tune::scale::Dimension;
use crate::tune::space::{Coordinates, fill_inactive};
use crate::tune::value::TrialValue;

/// Initial standard deviation of a step, in widths of the unit cube.
const STEP: f64 = 0.25;

/// Step size below which the distribution has converged and restarts elsewhere.
const REST: f64 = 1e-3;

/// Lowest standard deviation along a dimension of few values, in distances between them: with less, a value
/// would never be left.
const CELLS: f64 = 0.4;

/// Probability that a name is drawn uniformly; otherwise the name of one of the best trials is taken.
const ODD: f64 = 0.1;

/// Highest number of draws in which an untried point is looked for.
const TRIES: usize = 64;

/// Draws untried values from the adapted normal distribution.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let tries = StudyObservations::of(context.study_state).tries;
    let mut rng = TrialRng::new(context.seed, context.trial);
    let Some(state) = State::of(context, &tries) else { return sobol::next(context) };
    let named = context.space.categorical();
    let mut best: Vec<&(u64, Coordinates, f64)> = tries.iter().filter(|one| one.2.is_finite()).collect();
    best.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    best.truncate(best.len().div_ceil(4));
    for _ in 0..TRIES {
        let mut point = state.draw(context.space.dimensions(), &mut rng);
        for k in (0..point.len()).filter(|k| named[*k]) {
            let of = best[rng.below(best.len())].1[k];
            point[k] = of.filter(|_| rng.unit() >= ODD).unwrap_or_else(|| rng.unit());
        }
        let values = context.space.values(&point);
        if context.is_untried(&values) {
            return Some((values, ProposalSource::CmaEs { step: state.step }));
        }
    }
    sobol::next(context)
}

/// The adapted normal distribution and its evolution paths.
struct State {
    mean: Vec<f64>,
    step: f64,
    /// Covariance matrix of the distribution, row-major.
    covariance: Vec<f64>,
    factor: Cholesky,
    /// Evolution path of the step size, whose length tells if steps are too short or too long.
    round: Vec<f64>,
    /// Evolution path of the covariance matrix.
    long: Vec<f64>,
    generation: i32,
}

/// Constants of the adaptation, from table 1 of Hansen 2016.
struct CmaConstants {
    weights: Vec<f64>,
    effective: f64,
    round: f64,
    damping: f64,
    long: f64,
    rank_one: f64,
    rank_many: f64,
    /// Expected length of a standard normal vector.
    length: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a few dimensions")]
fn rates(size: usize, population: usize) -> CmaConstants {
    let n = size as f64;
    let parents = population / 2;
    let raw: Vec<f64> =
        (1..=parents).map(|i| ((population as f64 + 1.0) / 2.0).ln() - (i as f64).ln()).collect();
    let sum: f64 = raw.iter().sum();
    let weights: Vec<f64> = raw.iter().map(|weight| weight / sum).collect();
    let effective = 1.0 / dot(&weights, &weights);
    let round = (effective + 2.0) / (n + effective + 5.0);
    let rank_one = 2.0 / ((n + 1.3).powi(2) + effective);
    let many = 2.0 * (effective - 2.0 + 1.0 / effective) / ((n + 2.0).powi(2) + effective);
    CmaConstants {
        round,
        damping: 1.0 + 2.0 * (((effective - 1.0) / (n + 1.0)).sqrt() - 1.0).max(0.0) + round,
        long: (4.0 + effective / n) / (n + 4.0 + 2.0 * effective / n),
        rank_one,
        rank_many: many.min(1.0 - rank_one),
        length: n.sqrt() * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n)),
        weights,
        effective,
    }
}

impl State {
    /// Returns the distribution after the given trials; `None` before the first generation is complete or
    /// while all failed.
    fn of(context: &AskContext, tries: &[(u64, Coordinates, f64)]) -> Option<Self> {
        let size = context.size();
        if size == 0 {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a small positive number"
        )]
        let population = 4 + (3.0 * (size as f64).ln()) as usize;
        let rates = rates(size, population);
        let mut state: Option<Self> = None;
        for generation in tries.chunks_exact(population) {
            let mut ranked: Vec<_> = generation.iter().filter(|(_, _, cost)| cost.is_finite()).collect();
            ranked.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
            let points: Vec<Vec<f64>> = ranked.iter().map(|(_, place, _)| fill_inactive(place)).collect();
            match &mut state {
                Some(state) => state.learn(&points, &rates),
                None => state = points.first().map(|best| Self::at(best.clone())),
            }
            if let Some(rested) = state.as_mut().filter(|state| state.step < REST) {
                let elsewhere = TrialRng::new(context.seed, generation[0].0);
                *rested = Self::at((0..size).scan(elsewhere, |rng, _| Some(rng.unit())).collect());
            }
        }
        state
    }

    fn at(mean: Vec<f64>) -> Self {
        let n = mean.len();
        let covariance: Vec<f64> = (0..n * n).map(|k| if k % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
        let factor = Cholesky::of(covariance.clone(), n).expect("the identity has a factor");
        let none = vec![0.0; n];
        Self { mean, step: STEP, covariance, factor, round: none.clone(), long: none, generation: 0 }
    }

    /// Updates mean, covariance and step size from the points of a generation, best first.
    fn learn(&mut self, points: &[Vec<f64>], rates: &CmaConstants) {
        let n = self.mean.len();
        #[expect(clippy::cast_precision_loss, reason = "a few dimensions")]
        let far = (n as f64).sqrt() + 2.0 * n as f64 / (n as f64 + 2.0);
        let steps: Vec<Vec<f64>> = points
            .iter()
            .take(rates.weights.len())
            .map(|point| {
                let step: Vec<f64> = point.iter().zip(&self.mean).map(|(x, m)| (x - m) / self.step).collect();
                let round = self.factor.solve_lower(&step);
                let shorter = (far / dot(&round, &round).sqrt().max(1e-12)).min(1.0);
                step.into_iter().map(|coordinate| coordinate * shorter).collect()
            })
            .collect();
        // If most of a generation failed, the few others share all the weight.
        let sum: f64 = rates.weights.iter().take(steps.len()).sum();
        if steps.is_empty() {
            return;
        }
        let weighted =
            |k: usize| rates.weights.iter().zip(&steps).map(|(w, step)| w / sum * step[k]).sum::<f64>();
        let moved: Vec<f64> = (0..n).map(weighted).collect();
        for (mean, moved) in self.mean.iter_mut().zip(&moved) {
            *mean = (*mean + self.step * moved).clamp(0.0, 1.0);
        }
        self.generation += 1;
        let grown = (rates.round * (2.0 - rates.round) * rates.effective).sqrt();
        for (path, moved) in self.round.iter_mut().zip(self.factor.solve_lower(&moved)) {
            *path = (1.0 - rates.round) * *path + grown * moved;
        }
        let length = dot(&self.round, &self.round).sqrt();
        let settled = (1.0 - (1.0 - rates.round).powi(2 * (self.generation + 1))).sqrt();
        #[expect(clippy::cast_precision_loss, reason = "a few dimensions")]
        let is_short = length / settled < (1.4 + 2.0 / (n as f64 + 1.0)) * rates.length;
        let grown = if is_short { (rates.long * (2.0 - rates.long) * rates.effective).sqrt() } else { 0.0 };
        for (path, moved) in self.long.iter_mut().zip(&moved) {
            *path = (1.0 - rates.long) * *path + grown * moved;
        }
        let lost = if is_short { 0.0 } else { rates.rank_one * rates.long * (2.0 - rates.long) };
        let kept = 1.0 - rates.rank_one - rates.rank_many + lost;
        for i in 0..n {
            for j in 0..n {
                let many = rates.weights.iter().zip(&steps).map(|(w, step)| w / sum * step[i] * step[j]);
                let many: f64 = many.sum();
                let one = self.long[i] * self.long[j];
                let entry = &mut self.covariance[i * n + j];
                *entry = kept * *entry + rates.rank_one * one + rates.rank_many * many;
            }
        }
        self.step *= (rates.round / rates.damping * (length / rates.length - 1.0)).min(1.0).exp();
        self.step = self.step.min(2.0 * STEP);
        match Cholesky::of(self.covariance.clone(), n) {
            Some(factor) => self.factor = factor,
            None => *self = Self::at(self.mean.clone()),
        }
    }

    /// Draws a point within the unit cube from the distribution.
    fn draw(&self, dimensions: &[Dimension], rng: &mut TrialRng) -> Vec<f64> {
        let normal: Vec<f64> = self.mean.iter().map(|_| rng.normal()).collect();
        let mut point = Vec::with_capacity(normal.len());
        for (k, dimension) in dimensions.iter().enumerate() {
            let row = &self.factor.row(k)[..=k];
            let deviation = self.step * dot(row, row).sqrt();
            #[expect(clippy::cast_precision_loss, reason = "a few values")]
            let least = match dimension.count() {
                Some(count) if !dimension.is_continuous() => CELLS / count as f64,
                _ => 0.0,
            };
            let wider = (least / deviation.max(1e-12)).max(1.0);
            let at = self.mean[k] + self.step * wider * dot(row, &normal[..=k]);
            point.push(at.clamp(0.0, 1.0));
        }
        point
    }
}
