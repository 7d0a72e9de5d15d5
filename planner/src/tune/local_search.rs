//! Local search for a point with a higher score, from a promising starting point.

use super::scale::{cell, middle};
use super::space::SearchSpace;
use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;

/// Edge of the first Nelder-Mead simplex, in widths of the unit cube.
const REACH: f64 = 0.05;

/// Number of Nelder-Mead iterations for each continuous dimension; each evaluates one or two points.
const ITERATIONS: u64 = 40;

/// Highest number of rounds, each a continuous search followed by a discrete step.
const ROUNDS: usize = 8;

/// Largest number of values of a dimension for which a step tries all of them.
const STEPS_MOST: usize = 64;

/// Returns a point near `start` whose score is not lower. Alternates between Nelder-Mead along the continuous
/// dimensions and the best single step along a discrete one.
pub fn maximize_locally(space: &SearchSpace, start: &[f64], score: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
    let dimensions = space.dimensions();
    let free: Vec<usize> = (0..start.len()).filter(|k| dimensions[*k].is_continuous()).collect();
    let mut best = nelder_mead(start, &free, score);
    if free.len() == start.len() {
        return best;
    }
    let mut reached = score(&best);
    for _ in 0..ROUNDS {
        let steps = neighbors(space, &best).map(|place| (score(&place), place));
        let Some((stepped, place)) = steps.max_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        if stepped <= reached {
            break;
        }
        best = nelder_mead(&place, &free, score);
        reached = score(&best).max(stepped);
    }
    best
}

/// Returns the points that differ from `from` in one discrete dimension only.
fn neighbors(space: &SearchSpace, from: &[f64]) -> impl Iterator<Item = Vec<f64>> {
    let stepped = space.dimensions().iter().enumerate().filter(|(_, dimension)| !dimension.is_continuous());
    let counted = stepped.filter_map(|(k, dimension)| Some((k, dimension.count()?)));
    counted.filter(|(_, count)| *count <= STEPS_MOST).flat_map(move |(k, count)| {
        let here = cell(from[k], count);
        (0..count).filter(move |place| *place != here).map(move |place| {
            let mut moved = from.to_vec();
            moved[k] = middle(place, count);
            moved
        })
    })
}

/// Maximizes `score` along the dimensions `free` by Nelder-Mead, within the unit cube.
fn nelder_mead(start: &[f64], free: &[usize], score: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
    if free.is_empty() {
        return start.to_vec();
    }
    let surface = AcquisitionSurface { start, free, score };
    let solver = NelderMead::new(surface.simplex()).with_sd_tolerance(1e-6);
    let steps = ITERATIONS * u64::try_from(free.len()).expect("a few dimensions");
    let found = solver.and_then(|solver| {
        Executor::new(&surface, solver).configure(|state| state.max_iters(steps)).ctrlc(false).run()
    });
    let best = found.ok().and_then(|result| result.state().get_best_param().cloned());
    best.map_or_else(|| start.to_vec(), |moved| surface.place(&moved))
}

/// The score of a point as a function of its free coordinates.
struct AcquisitionSurface<'a> {
    start: &'a [f64],
    free: &'a [usize],
    score: &'a dyn Fn(&[f64]) -> f64,
}

impl AcquisitionSurface<'_> {
    /// Returns the point with the free coordinates `moved`, clamped to the unit cube.
    fn place(&self, moved: &[f64]) -> Vec<f64> {
        let mut place = self.start.to_vec();
        for (k, coordinate) in self.free.iter().zip(moved) {
            place[*k] = coordinate.clamp(0.0, 1.0);
        }
        place
    }

    /// Returns the initial simplex: the starting point, and one step from it along each free dimension, away
    /// from the nearer bound.
    fn simplex(&self) -> Vec<Vec<f64>> {
        let start: Vec<f64> = self.free.iter().map(|k| self.start[*k]).collect();
        let stepped = |k: usize| {
            let mut corner = start.clone();
            corner[k] += if corner[k] > 0.5 { -REACH } else { REACH };
            corner
        };
        let steps = (0..start.len()).map(stepped);
        [start.clone()].into_iter().chain(steps).collect()
    }
}

impl CostFunction for &AcquisitionSurface<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, moved: &Vec<f64>) -> Result<f64, Error> {
        Ok(-(self.score)(&self.place(moved)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Dimension, Scale, TrialValue};

    /// Returns a space of two continuous dimensions and one of two values.
    fn space() -> SearchSpace {
        let unit = Scale::Uniform { low: 0.0, high: 1.0 };
        let levels = Scale::Levels([1, 2].map(TrialValue::Whole).to_vec());
        SearchSpace::new(vec![
            Dimension::new("x", unit.clone()),
            Dimension::new("y", unit),
            Dimension::new("level", levels),
        ])
    }

    fn peak(place: &[f64]) -> f64 {
        -(place[0] - 0.4).powi(2) - 3.0 * (place[1] - 0.7).powi(2) - place[2]
    }

    #[test]
    fn the_top_is_found_along_slopes_and_steps() {
        let found = maximize_locally(&space(), &[0.5, 0.5, 0.75], &peak);
        assert!((found[0] - 0.4).abs() < 1e-2 && (found[1] - 0.7).abs() < 1e-2, "{found:?}");
        assert!((found[2] - 0.25).abs() < 1e-12, "the step leads down from 0.75: {found:?}");
    }

    #[test]
    fn steps_lead_to_a_top_that_no_single_one_reaches() {
        let levels = Scale::Levels((0..5).map(TrialValue::Whole).collect());
        let names = Scale::Names(["a", "b", "c"].map(|word| TrialValue::Word(word.into())).to_vec());
        let space = SearchSpace::new(vec![Dimension::new("level", levels), Dimension::new("name", names)]);
        let score = |place: &[f64]| -(place[0] - 0.9).abs() - if place[1] > 0.6 { 0.0 } else { 0.3 };
        let found = maximize_locally(&space, &[0.1, 0.5 / 3.0], &score);
        assert!((found[0] - 0.9).abs() < 1e-12 && (found[1] - 2.5 / 3.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_top_outside_the_cube_is_met_at_the_wall() {
        let found = maximize_locally(&space(), &[0.97, 0.1, 0.25], &|place| place[0] - place[1]);
        assert!(found[0] > 0.999 && found[0] <= 1.0 && (0.0..0.001).contains(&found[1]), "{found:?}");
    }
}
