//! Local search from a promising place, along the dimensions that have no steps.

use argmin::core::{CostFunction, Error, Executor, State};
use argmin::solver::neldermead::NelderMead;

/// Reach of the first simplex, in widths of the cube.
const REACH: f64 = 0.05;

/// Steps for each dimension that is searched; each looks at one or two places.
const ITERATIONS: u64 = 40;

/// A place near `start` where `score` is not lower: Nelder and Mead's search along the dimensions that are `free`, within the unit cube.
pub fn climb(start: &[f64], free: &[bool], score: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
    let free: Vec<usize> = (0..start.len()).filter(|k| free[*k]).collect();
    if free.is_empty() {
        return start.to_vec();
    }
    let hill = Hill { start, free: &free, score };
    let solver = NelderMead::new(hill.simplex()).with_sd_tolerance(1e-6);
    let steps = ITERATIONS * u64::try_from(free.len()).expect("a few dimensions");
    let found = solver.and_then(|solver| {
        Executor::new(&hill, solver).configure(|state| state.max_iters(steps)).ctrlc(false).run()
    });
    let best = found.ok().and_then(|result| result.state().get_best_param().cloned());
    best.map_or_else(|| start.to_vec(), |moved| hill.place(&moved))
}

/// The score as a function of the free coordinates.
struct Hill<'a> {
    start: &'a [f64],
    free: &'a [usize],
    score: &'a dyn Fn(&[f64]) -> f64,
}

impl Hill<'_> {
    /// The place of free coordinates, brought back into the cube.
    fn place(&self, moved: &[f64]) -> Vec<f64> {
        let mut place = self.start.to_vec();
        for (k, coordinate) in self.free.iter().zip(moved) {
            place[*k] = coordinate.clamp(0.0, 1.0);
        }
        place
    }

    /// The start, and a step from it along each free dimension, away from the nearer wall.
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

impl CostFunction for &Hill<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, moved: &Vec<f64>) -> Result<f64, Error> {
        Ok(-(self.score)(&self.place(moved)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(place: &[f64]) -> f64 {
        -(place[0] - 0.4).powi(2) - 3.0 * (place[1] - 0.7).powi(2) - place[2]
    }

    #[test]
    fn the_top_is_found_along_what_is_free() {
        let found = climb(&[0.5, 0.5, 0.25], &[true, true, false], &peak);
        assert!((found[0] - 0.4).abs() < 1e-2 && (found[1] - 0.7).abs() < 1e-2, "{found:?}");
        assert!((found[2] - 0.25).abs() < 1e-12, "what is not free stays");
        assert_eq!(climb(&[0.5, 0.5, 0.25], &[false; 3], &peak), [0.5, 0.5, 0.25]);
    }

    #[test]
    fn a_top_outside_the_cube_is_met_at_the_wall() {
        let found = climb(&[0.97, 0.1], &[true, true], &|place| place[0] - place[1]);
        assert!(found[0] > 0.999 && found[0] <= 1.0 && (0.0..0.001).contains(&found[1]), "{found:?}");
    }
}
