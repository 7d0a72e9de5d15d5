//! Parzen density estimate over a search space, with one kernel for each given point and one wide kernel.
//!
//! A kernel is a product over the dimensions (Falkner et al. 2018): a normal distribution truncated to the
//! unit interval, summed over cells where there are few values, or a preference for one name. Along a
//! continuous dimension its width is the distance to the farther neighbor (Bergstra et al. 2011; Watanabe
//! 2023, arXiv 2304.11127). Along cells all kernels have one width, narrower the more there are. Along an
//! inactive dimension a kernel is flat.

use crate::tune::rng::TrialRng;
use crate::tune::scale::{Dimension, cell, middle};
use crate::tune::space::{Coordinates, SearchSpace};
use crate::tune::value::TrialValue;

/// Width of a kernel along cells when there is a single point.
const WIDEST: f64 = 0.2;

/// Largest number of values of a dimension that is treated as cells.
const CELLS_MOST: usize = 64;

/// Distance below the largest logarithm of a sum from which on a logarithm adds nothing.
const FAR: f64 = 40.0;

/// Number of the newest trials that have full weight.
const RECENT: usize = 25;

/// Inverse of the least width of a kernel in the unit interval.
const NARROWEST: f64 = 100.0;

/// A density over a search space, as a weighted sum of kernels.
pub(super) struct ParzenEstimator<'a> {
    space: &'a SearchSpace,
    factors: Vec<DimensionDensity>,
    /// Weight of each kernel, the wide kernel's last; they sum to one.
    shares: Vec<f64>,
    log_shares: Vec<f64>,
}

/// All kernels along one dimension, in the order of their points.
enum DimensionDensity {
    /// Kernels along a continuous dimension: truncated normal distributions.
    Smooth(TruncatedNormals),
    /// Kernels along a discrete dimension: the logarithm of the probability of cell `b` under a kernel in
    /// cell `a`, at `b·(count + 1) + a`, where `a` is `count` for a flat kernel; and the cell of each kernel.
    Cells { count: usize, logs: Vec<f64>, cells: Vec<usize> },
}

/// Truncated normal distributions with the log density `height − narrow·(x − middle)²`. A flat one has no
/// height and a `narrow` of 0.
#[derive(Default)]
struct TruncatedNormals {
    middles: Vec<f64>,
    narrow: Vec<f64>,
    heights: Vec<f64>,
    /// Standard deviations of the kernels; infinite where a kernel is flat.
    widths: Vec<f64>,
}

impl<'a> ParzenEstimator<'a> {
    /// Builds the density with a kernel at each of the points `places`, the oldest first.
    pub(super) fn new(space: &'a SearchSpace, places: &[&Coordinates]) -> Self {
        let of = |(k, one): (usize, &Dimension)| {
            let along: Vec<Option<f64>> = places.iter().map(|place| place[k]).collect();
            DimensionDensity::new(one, &along, space.dimensions().len())
        };
        let factors = space.dimensions().iter().enumerate().map(of).collect();
        let weights: Vec<f64> = weights(places.len()).chain([1.0]).collect();
        let sum: f64 = weights.iter().sum();
        let shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
        let log_shares = shares.iter().map(|share| share.ln()).collect();
        Self { space, factors, shares, log_shares }
    }

    /// Draws a point: a random kernel, then each dimension that is active for the values of those before it.
    pub(super) fn draw(&self, rng: &mut TrialRng) -> Vec<f64> {
        let mut left = rng.unit();
        let is_it = |share: &f64| {
            left -= share;
            left < 0.0
        };
        let kernel = self.shares.iter().position(is_it).unwrap_or(self.shares.len() - 1);
        let mut values = Vec::with_capacity(self.factors.len());
        let mut point = Vec::with_capacity(self.factors.len());
        for (k, factor) in self.factors.iter().enumerate() {
            let coordinate = factor.draw(kernel, rng);
            let dimension = &self.space.dimensions()[k];
            let is_active = self.space.is_active(k, &values);
            values.push(if is_active { dimension.value(coordinate) } else { TrialValue::Inactive });
            point.push(coordinate);
        }
        point
    }

    /// Returns the natural logarithm of the density at `place`, relative to the uniform density of the same
    /// dimensions.
    pub(super) fn log_density(&self, place: &Coordinates) -> f64 {
        let mut logs = self.log_shares.clone();
        for (at, factor) in place.iter().zip(&self.factors) {
            if let Some(at) = at {
                factor.add(*at, &mut logs);
            }
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let near = logs.iter().map(|log| log - most).filter(|log| *log > -FAR);
        most + near.map(f64::exp).sum::<f64>().ln()
    }
}

/// Returns the weights of `count` trials, the oldest first: the newest 25 have full weight, those before them
/// less with age (Watanabe 2023, arXiv 2304.11127).
#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn weights(count: usize) -> impl Iterator<Item = f64> {
    let old = count.saturating_sub(RECENT);
    let least = 1.0 / count.max(1) as f64;
    let step = (1.0 - least) / old.saturating_sub(1).max(1) as f64;
    (0..count).map(move |k| if k < old { least + step * k as f64 } else { 1.0 })
}

impl DimensionDensity {
    /// Builds the kernels at the coordinates `along`, flat where there is no coordinate, and the wide one.
    fn new(dimension: &Dimension, along: &[Option<f64>], size: usize) -> Self {
        let Some(count) = dimension.count().filter(|count| *count <= CELLS_MOST) else {
            return Self::Smooth(TruncatedNormals::new(along));
        };
        let cells = along.iter().map(|at| at.map_or(count, |at| cell(at, count))).chain([count]).collect();
        Self::Cells { count, logs: cell_logs(dimension, count, along.len(), size), cells }
    }

    /// Adds the logarithm of each kernel at the coordinate `at` to `logs`.
    fn add(&self, at: f64, logs: &mut [f64]) {
        match self {
            Self::Smooth(normals) => normals.add(at, logs),
            Self::Cells { count, logs: table, cells } => {
                let row = &table[cell(at, *count) * (count + 1)..][..=*count];
                for (log, from) in logs.iter_mut().zip(cells) {
                    *log += row[*from];
                }
            }
        }
    }

    /// Draws a coordinate from the kernel with index `kernel`.
    fn draw(&self, kernel: usize, rng: &mut TrialRng) -> f64 {
        match self {
            Self::Smooth(normals) => normals.draw(kernel, rng),
            Self::Cells { count, logs, cells } => {
                let from = cells[kernel];
                if from == *count {
                    return rng.unit();
                }
                #[expect(clippy::cast_precision_loss, reason = "a few values")]
                let mut left = rng.unit() * *count as f64;
                for place in 0..*count {
                    left -= logs[place * (count + 1) + from].exp();
                    if left <= 0.0 {
                        return middle(place, *count);
                    }
                }
                middle(count - 1, *count)
            }
        }
    }
}

/// Returns the table of [`DimensionDensity::Cells`] for a dimension of `count` values.
#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn cell_logs(dimension: &Dimension, count: usize, kernels: usize, size: usize) -> Vec<f64> {
    let (kernels, flat) = (kernels.max(1) as f64, 1.0 / count as f64);
    // Scott's rule (1992).
    let width = WIDEST * kernels.powf(-1.0 / (size as f64 + 4.0));
    let mut logs = vec![0.0; count * (count + 1)];
    for a in 0..count {
        let from = middle(a, count);
        let of = |b: usize| match dimension.is_categorical() {
            // As if all kernels together had seen each name once.
            true => {
                (f64::from(u8::from(a == b)) + 1.0 / (kernels + 1.0)) / (1.0 + 1.0 / (kernels + 1.0) / flat)
            }
            false => mass(middle(b, count) - 0.5 * flat, middle(b, count) + 0.5 * flat, from, width),
        };
        let masses: Vec<f64> = (0..count).map(of).collect();
        let sum: f64 = masses.iter().sum();
        for (b, mass) in masses.iter().enumerate() {
            logs[b * (count + 1) + a] = (mass / sum / flat).max(1e-12).ln();
        }
    }
    logs
}

impl TruncatedNormals {
    /// Builds the kernels at the coordinates `along`, flat where there is no coordinate, and one over the
    /// whole interval.
    fn new(along: &[Option<f64>]) -> Self {
        let mut normals = Self::default();
        for (at, width) in along.iter().zip(widths(along)) {
            match at {
                Some(at) => normals.push(*at, width),
                None => normals.push_flat(),
            }
        }
        normals.push(0.5, 1.0);
        normals
    }

    fn push(&mut self, middle: f64, width: f64) {
        self.middles.push(middle);
        self.narrow.push(0.5 / (width * width));
        self.heights.push(-(width * inside(middle, width)).ln());
        self.widths.push(width);
    }

    fn push_flat(&mut self) {
        self.middles.push(0.5);
        self.narrow.push(0.0);
        self.heights.push(0.0);
        self.widths.push(f64::INFINITY);
    }

    fn add(&self, at: f64, logs: &mut [f64]) {
        let kernels = self.middles.iter().zip(&self.narrow).zip(&self.heights);
        for (log, ((middle, narrow), height)) in logs.iter_mut().zip(kernels) {
            let far = at - middle;
            *log += height - narrow * far * far;
        }
    }

    fn draw(&self, kernel: usize, rng: &mut TrialRng) -> f64 {
        let (middle, width) = (self.middles[kernel], self.widths[kernel]);
        if width.is_infinite() {
            return rng.unit();
        }
        loop {
            // At least a third of a kernel's mass is inside.
            let drawn = middle + width * rng.normal();
            if (0.0..=1.0).contains(&drawn) {
                return drawn;
            }
            if !(0.0..=1.0).contains(&middle) {
                return drawn.clamp(0.0, 1.0);
            }
        }
    }
}

/// Returns the width of each kernel: the distance to its farther neighbor (Bergstra et al. 2011). The bounds
/// of the interval are neighbors only of a single kernel, since good points crowd at a bound and the
/// outermost must not be wide for it. No kernel is narrower than if all were evenly spaced, up to a limit
/// (magic clipping in Watanabe 2023).
#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn widths(along: &[Option<f64>]) -> Vec<f64> {
    let mut order: Vec<(f64, usize)> =
        along.iter().enumerate().filter_map(|(kernel, at)| at.map(|at| (at, kernel))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let least = 1.0 / NARROWEST.min((order.len() + 2) as f64);
    let mut widths = vec![1.0; along.len()];
    for (rank, (at, kernel)) in order.iter().enumerate() {
        let below = rank.checked_sub(1).map(|rank| at - order[rank].0);
        let above = order.get(rank + 1).map(|(next, _)| next - at);
        let far = match (below, above) {
            (None, None) => at.max(1.0 - at),
            _ => below.into_iter().chain(above).fold(0.0, f64::max),
        };
        widths[*kernel] = far.clamp(least, 1.0);
    }
    widths
}

/// Returns `√(2π)` times the mass within the unit interval of a kernel at `at`.
fn inside(at: f64, width: f64) -> f64 {
    std::f64::consts::TAU.sqrt() * mass(0.0, 1.0, at, width)
}

/// Returns the mass between `low` and `high` of the normal distribution with mean `middle` and deviation
/// `width`.
fn mass(low: f64, high: f64, middle: f64, width: f64) -> f64 {
    let root = width * std::f64::consts::SQRT_2;
    (0.5 * (erf((high - middle) / root) - erf((low - middle) / root))).max(1e-12)
}

/// Returns the error function at `x` to 1.5e-7 (Abramowitz and Stegun 1964, equation 7.1.26).
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let series = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = series.iter().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::Scale;
    use crate::tune::sobol::Sobol;

    fn space() -> SearchSpace {
        let names = Scale::Names(["a", "b", "c"].map(|word| TrialValue::Word(word.into())).to_vec());
        let beside = vec![(0, vec![TrialValue::Word("a".into()), TrialValue::Word("c".into())])];
        SearchSpace::new(vec![
            Dimension::new("name", names),
            Dimension::new("x", Scale::Uniform { low: 0.0, high: 1.0 }),
            Dimension { when: beside, ..Dimension::new("y", Scale::Uniform { low: 0.0, high: 1.0 }) },
            Dimension::new("level", Scale::Levels([1, 2, 4, 8].map(TrialValue::Whole).to_vec())),
        ])
    }

    fn place(point: [f64; 4]) -> Coordinates {
        space().coordinates(&space().values(&point)).expect("values of the space")
    }

    #[test]
    fn a_density_has_mass_one_and_is_high_where_its_places_are() {
        let (space, sobol) = (space(), Sobol::new(4, 1));
        let places = [place([0.1, 0.02, 0.9, 0.1]), place([0.5, 0.5, 0.5, 0.9]), place([0.9, 1.0, 0.3, 0.4])];
        let parzen = ParzenEstimator::new(&space, &places.iter().collect::<Vec<_>>());
        let density = |point: [f64; 4]| parzen.log_density(&place(point)).exp();
        let count = 16_384u32;
        let all = (0..count).map(|index| density(sobol.point(index).try_into().expect("four")));
        let mass = all.sum::<f64>() / f64::from(count);
        assert!((mass - 1.0).abs() < 0.02, "{mass}");
        assert!(density([0.1, 0.02, 0.9, 0.1]) > 3.0 * density([0.1, 0.02, 0.1, 0.9]));
    }

    #[test]
    fn a_kernel_is_as_wide_as_the_farther_of_its_neighbours_is_far() {
        let near = |found: Vec<f64>, wanted: &[f64]| {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-12)
        };
        // The third is inactive; the bounds of the interval are no neighbors of the first and the last.
        let along = [Some(0.9), Some(0.1), None, Some(0.4)];
        assert!(near(widths(&along), &[0.5, 0.3, 1.0, 0.5]));
        assert!(near(widths(&[Some(0.3)]), &[0.7]), "it is alone");
        assert!(
            near(widths(&[Some(0.3), Some(0.3), None]), &[0.25, 0.25, 1.0]),
            "as if four were evenly apart"
        );
        assert!(widths(&vec![Some(0.3); 500]).iter().all(|width| *width == 0.01));
    }

    #[test]
    fn old_trials_count_less() {
        let few: Vec<f64> = weights(25).collect();
        assert!(few.iter().all(|weight| *weight == 1.0));
        let many: Vec<f64> = weights(100).collect();
        assert!(
            (many[0] - 0.01).abs() < 1e-12 && many.is_sorted() && many[75..].iter().all(|one| *one == 1.0)
        );
        assert!((many[74] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_drawn_is_spread_as_the_density_says() {
        let space = space();
        let places = [0.85, 0.9, 0.95].map(|x| place([0.1, x, 0.2, 0.1]));
        let parzen = ParzenEstimator::new(&space, &places.iter().collect::<Vec<_>>());
        let mut rng = TrialRng::new(1, 2);
        let (mut near, mut named) = (0u32, 0u32);
        for _ in 0..4000 {
            let point = parzen.draw(&mut rng);
            assert!(point.iter().all(|at| (0.0..=1.0).contains(at)));
            near += u32::from((point[1] - 0.9).abs() < 0.1);
            named += u32::from(point[0] < 1.0 / 3.0);
        }
        // The kernels are 0.2 wide: of what is inside, 0.481, 0.554 and 0.622 lie as near, and 0.192 of the
        // wide one.
        assert!((f64::from(near) / 4000.0 - 0.462).abs() < 0.03, "{near}");
        // By each kernel 1 + ¼ of 1 + 3·¼, which is 0.714, by chance a third.
        assert!((f64::from(named) / 4000.0 - 0.619).abs() < 0.03, "{named}");
    }
}
