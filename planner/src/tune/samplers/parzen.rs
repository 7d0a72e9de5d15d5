//! A density over a space that is made of one kernel for each of some places, and a flat one.
//!
//! A kernel is the product of one for each dimension (Falkner et al. 2018): a normal distribution cut off at the ends of the
//! unit interval, its mass summed over cells where there are few values, or a preference for one name. All kernels are as wide,
//! and the narrower the more there are. A dimension that does not exist at a kernel's place is flat there.

use crate::tune::chance::Chance;
use crate::tune::scale::{Dimension, cell, middle};
use crate::tune::space::{Place, Space};
use crate::tune::value::Value;

/// Width of the kernels of one place.
const WIDEST: f64 = 0.2;

/// Values of a dimension up to which it is treated as cells.
const CELLS_MOST: usize = 64;

/// A density.
pub(super) struct Parzen<'a> {
    space: &'a Space,
    places: Vec<&'a Place>,
    factors: Vec<Factor>,
    width: f64,
    /// For each place, what is taken from the logarithm of its kernel: the mass that lies outside of the cube.
    inside: Vec<f64>,
}

/// What all kernels have in common along one dimension.
enum Factor {
    /// A normal distribution.
    Smooth,
    /// The logarithm of the probability of cell `b` by a kernel in cell `a`, at `a·count + b`.
    Cells { count: usize, logs: Vec<f64> },
}

impl<'a> Parzen<'a> {
    /// The density of these places.
    pub(super) fn new(space: &'a Space, places: Vec<&'a Place>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let (count, size) = (places.len().max(1) as f64, space.dimensions().len() as f64);
        // The rule of Scott 1992.
        let width = WIDEST * count.powf(-1.0 / (size + 4.0));
        let factors: Vec<Factor> =
            space.dimensions().iter().map(|one| Factor::new(one, width, count)).collect();
        let mut parzen = Self { space, places, factors, width, inside: Vec::new() };
        parzen.inside = parzen.places.iter().map(|place| parzen.log_inside(place)).collect();
        parzen
    }

    fn log_inside(&self, place: &Place) -> f64 {
        let smooth = place.iter().zip(&self.factors).filter(|(_, factor)| matches!(factor, Factor::Smooth));
        let logs = smooth.filter_map(|(at, _)| at.map(|at| (self.width * inside(at, self.width)).ln()));
        logs.sum()
    }

    /// A place drawn from the density: a kernel by chance, then each dimension that exists beside those before it.
    pub(super) fn draw(&self, chance: &mut Chance) -> Vec<f64> {
        let kernel = self.places.get(chance.below(self.places.len() + 1));
        let mut values = Vec::with_capacity(self.factors.len());
        let mut point = Vec::with_capacity(self.factors.len());
        for (k, factor) in self.factors.iter().enumerate() {
            let at = kernel.and_then(|place| place[k]);
            let coordinate = match at {
                Some(at) => factor.draw(at, self.width, chance),
                None => chance.unit(),
            };
            let dimension = &self.space.dimensions()[k];
            let is_active = self.space.is_active(k, &values);
            values.push(if is_active { dimension.value(coordinate) } else { Value::Inactive });
            point.push(coordinate);
        }
        point
    }

    /// The natural logarithm of the density at a place, in units of the flat density of the same dimensions.
    pub(super) fn log_density(&self, place: &Place) -> f64 {
        // Where it lies in each dimension, looked up once for all kernels.
        let cells: Vec<usize> = place
            .iter()
            .zip(&self.factors)
            .map(|(at, factor)| match (at, factor) {
                (Some(at), Factor::Cells { count, .. }) => cell(*at, *count),
                _ => 0,
            })
            .collect();
        let scale = 0.5 / (self.width * self.width);
        let mut sum = 1.0;
        for (kernel, inside) in self.places.iter().zip(&self.inside) {
            let mut log = -inside;
            for k in 0..cells.len() {
                let Some((at, from)) = place[k].zip(kernel[k]) else {
                    // Flat; what lies outside was taken away for a dimension that does not exist here.
                    if let (Factor::Smooth, Some(from)) = (&self.factors[k], kernel[k]) {
                        log += (self.width * self::inside(from, self.width)).ln();
                    }
                    continue;
                };
                log += match &self.factors[k] {
                    Factor::Smooth => -scale * (at - from) * (at - from),
                    Factor::Cells { count, logs } => logs[cell(from, *count) * count + cells[k]],
                };
            }
            if log > -40.0 {
                sum += log.exp();
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let count = (self.places.len() + 1) as f64;
        (sum / count).ln()
    }
}

impl Factor {
    fn new(dimension: &Dimension, width: f64, kernels: f64) -> Self {
        let Some(count) = dimension.count().filter(|count| *count <= CELLS_MOST) else { return Self::Smooth };
        #[expect(clippy::cast_precision_loss, reason = "a few values")]
        let flat = 1.0 / count as f64;
        let mut logs = Vec::with_capacity(count * count);
        for a in 0..count {
            let from = middle(a, count);
            let of = |b: usize| match dimension.is_named() {
                // As if each name had been seen once by all kernels together.
                true => {
                    (f64::from(u8::from(a == b)) + 1.0 / (kernels + 1.0))
                        / (1.0 + 1.0 / (kernels + 1.0) / flat)
                }
                false => mass(middle(b, count) - 0.5 * flat, middle(b, count) + 0.5 * flat, from, width),
            };
            let masses: Vec<f64> = (0..count).map(of).collect();
            let sum: f64 = masses.iter().sum();
            logs.extend(masses.iter().map(|mass| (mass / sum / flat).max(1e-12).ln()));
        }
        Self::Cells { count, logs }
    }

    /// A coordinate by a kernel at `at`.
    fn draw(&self, at: f64, width: f64, chance: &mut Chance) -> f64 {
        match self {
            Self::Smooth => loop {
                // At least half of a kernel is inside.
                let drawn = at + width * chance.normal();
                if (0.0..=1.0).contains(&drawn) {
                    return drawn;
                }
                if !(0.0..=1.0).contains(&at) {
                    return drawn.clamp(0.0, 1.0);
                }
            },
            Self::Cells { count, logs } => {
                let row = &logs[cell(at, *count) * count..][..*count];
                #[expect(clippy::cast_precision_loss, reason = "a few values")]
                let mut left = chance.unit() * *count as f64;
                for (place, log) in row.iter().enumerate() {
                    left -= log.exp();
                    if left <= 0.0 {
                        return middle(place, *count);
                    }
                }
                middle(count - 1, *count)
            }
        }
    }
}

/// `√(2π)` times the mass of a kernel within the unit interval.
fn inside(at: f64, width: f64) -> f64 {
    std::f64::consts::TAU.sqrt() * mass(0.0, 1.0, at, width)
}

/// The mass between two bounds of a normal distribution.
fn mass(low: f64, high: f64, middle: f64, width: f64) -> f64 {
    let root = width * std::f64::consts::SQRT_2;
    (0.5 * (erf((high - middle) / root) - erf((low - middle) / root))).max(1e-12)
}

/// The error function to 1.5e-7 (Abramowitz and Stegun 1964, equation 7.1.26).
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

    fn space() -> Space {
        let names = Scale::Names(["a", "b", "c"].map(|word| Value::Word(word.into())).to_vec());
        let beside = vec![(0, vec![Value::Word("a".into()), Value::Word("c".into())])];
        Space::new(vec![
            Dimension::new("name", names),
            Dimension::new("x", Scale::Uniform { low: 0.0, high: 1.0 }),
            Dimension { when: beside, ..Dimension::new("y", Scale::Uniform { low: 0.0, high: 1.0 }) },
            Dimension::new("level", Scale::Levels([1, 2, 4, 8].map(Value::Whole).to_vec())),
        ])
    }

    fn place(point: [f64; 4]) -> Place {
        space().place(&space().values(&point)).expect("values of the space")
    }

    #[test]
    fn a_density_has_mass_one_and_is_high_where_its_places_are() {
        let (space, sobol) = (space(), Sobol::new(4, 1));
        let places = [place([0.1, 0.02, 0.9, 0.1]), place([0.5, 0.5, 0.5, 0.9]), place([0.9, 1.0, 0.3, 0.4])];
        let parzen = Parzen::new(&space, places.iter().collect());
        let density = |point: [f64; 4]| parzen.log_density(&place(point)).exp();
        let count = 16_384u32;
        let all = (0..count).map(|index| density(sobol.point(index).try_into().expect("four")));
        let mass = all.sum::<f64>() / f64::from(count);
        assert!((mass - 1.0).abs() < 0.02, "{mass}");
        assert!(density([0.1, 0.02, 0.9, 0.1]) > 10.0 * density([0.1, 0.02, 0.1, 0.9]));
    }

    #[test]
    fn what_is_drawn_is_spread_as_the_density_says() {
        let space = space();
        let places = [place([0.1, 0.9, 0.2, 0.1])];
        let parzen = Parzen::new(&space, places.iter().collect());
        let mut chance = Chance::new(1, 2);
        let (mut near, mut named) = (0u32, 0u32);
        for _ in 0..4000 {
            let point = parzen.draw(&mut chance);
            assert!(point.iter().all(|at| (0.0..=1.0).contains(at)));
            near += u32::from((point[1] - 0.9).abs() < 0.1);
            named += u32::from(point[0] < 1.0 / 3.0);
        }
        // Half of all by the kernel, of which 0.383 of 0.691 lie as near; half by chance, of which a fifth does.
        assert!((f64::from(near) / 4000.0 - 0.377).abs() < 0.03, "{near}");
        // By the kernel 1 + ½ of 1 + 3·½, which is 0.6, by chance a third.
        assert!((f64::from(named) / 4000.0 - 0.467).abs() < 0.03, "{named}");
    }
}
