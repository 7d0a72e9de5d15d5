//! Importance of each dimension for the result of a trial: PED-ANOVA (Watanabe et al. 2023).
//!
//! Compares, along each dimension, the density of the good trials with that of all trials: where the two
//! agree, the dimension does not matter. The measure is the Pearson divergence `E[(good/all − 1)²]`.

use super::observations::StudyObservations;
use super::scale::{Dimension, cell};
use super::space::SearchSpace;
use super::study_state::StudyState;

/// Reciprocal of the fraction of the trials that count as good.
const GOOD: usize = 4;

/// Lowest number of trials with a cost for which importances are computed.
const TRIALS_LEAST: usize = 12;

/// Number of cells into which a dimension with many values is divided.
const CELLS: usize = 20;

/// Returns the importance of each dimension, with a sum of 1; `None` with fewer than twelve trials that have
/// a cost, or when no dimension matters.
pub fn importance(space: &SearchSpace, study_state: &StudyState) -> Option<Vec<f64>> {
    let mut costs = StudyObservations::of(study_state).costs;
    if costs.len() < TRIALS_LEAST {
        return None;
    }
    costs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let good = costs.len() / GOOD;
    let along = |k: usize| -> Vec<Option<f64>> { costs.iter().map(|(place, _)| place[k]).collect() };
    let pairs = space.dimensions().iter().enumerate();
    let found: Vec<f64> = pairs.map(|(k, dimension)| divergence(dimension, &along(k), good)).collect();
    let sum: f64 = found.iter().sum();
    (sum > 0.0).then(|| found.into_iter().map(|one| one / sum).collect())
}

/// Returns the Pearson divergence of the first `good` coordinates along a dimension from all coordinates.
fn divergence(dimension: &Dimension, all: &[Option<f64>], good: usize) -> f64 {
    let count = dimension.count().unwrap_or(CELLS).min(CELLS);
    let is_smooth = dimension.is_continuous();
    let (few, many) = (density(&all[..good], count, is_smooth), density(all, count, is_smooth));
    few.iter().zip(&many).map(|(few, many)| many * (few / many - 1.0).powi(2)).sum()
}

/// Returns the probability that a trial is in each cell, and last that the dimension is inactive. Empty cells
/// get a small probability. With `is_smooth`, a trial counts for neighboring cells too, over a width that
/// shrinks with the number of trials.
fn density(coordinates: &[Option<f64>], count: usize, is_smooth: bool) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let (trials, cells) = (coordinates.len() as f64, count as f64);
    // Scott's rule (1992), for numbers uniform in the unit interval.
    let width = 0.29 * trials.powf(-0.2) * cells;
    let mut found = vec![1.0 / (cells + 1.0); count + 1];
    for coordinate in coordinates {
        let Some(at) = coordinate else {
            found[count] += 1.0;
            continue;
        };
        let here = cell(*at, count);
        if !is_smooth {
            found[here] += 1.0;
            continue;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few cells")]
        let near = |place: usize| (-0.5 * ((place.abs_diff(here) as f64) / width).powi(2)).exp();
        let sum: f64 = (0..count).map(near).sum();
        for (place, one) in found[..count].iter_mut().enumerate() {
            *one += near(place) / sum;
        }
    }
    found.iter().map(|one| one / (trials + 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::sobol::Sobol;
    use crate::tune::{Scale, Study, StudyEvent, TrialOutcome, TrialResult, TrialValue};

    #[test]
    fn what_decides_is_found_and_what_does_not_has_little() {
        let names = Scale::Names(["a", "b", "c"].map(|word| TrialValue::Word(word.into())).to_vec());
        let beside_c = vec![(1, vec![TrialValue::Word("c".into())])];
        let space = SearchSpace::new(vec![
            Dimension::new("rate", Scale::Log { low: 1e-4, high: 1.0 }),
            Dimension::new("name", names),
            Dimension::new("nothing", Scale::Uniform { low: 0.0, high: 1.0 }),
            Dimension { when: beside_c, ..Dimension::new("rare", Scale::Uniform { low: 0.0, high: 1.0 }) },
        ]);
        let sobol = Sobol::new(4, 1);
        let trial = |index| {
            let point = sobol.point(index);
            let cost = 9.0 * (point[0] - 0.3).powi(2) + if point[1] < 1.0 / 3.0 { 0.0 } else { 0.4 };
            TrialResult { values: space.values(&point), outcome: TrialOutcome::done(cost) }
        };
        let of = |count| {
            let ended: Vec<TrialResult> = (0..count).map(trial).collect();
            let study = Study::new(space.clone(), 0);
            importance(&space, &StudyState::of(&study, &StudyEvent::of(&ended)))
        };
        assert_eq!(of(11), None);
        let found = of(64).expect("64 trials");
        assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(found[0] > found[1] && found[1] > 2.0 * found[2] && found[2] < 0.1, "{found:?}");
    }
}
