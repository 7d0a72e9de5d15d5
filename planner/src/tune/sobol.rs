//! Sobol's quasi-random sequence with hash-based Owen scrambling; each point is computed from its index
//! alone.
//!
//! Sobol 1967 with the direction numbers of Joe and Kuo 2008 (`new-joe-kuo-6`), and the nested scrambling of
//! Owen 1995 by the hash of Laine and Karras 2011 as in Burley 2020. The order is not shuffled: the first
//! `2^m` points are a net for every seed.

use dtrain_protocol::shuffle::splitmix64;

/// Number of dimensions for which there are direction numbers.
pub const DIMENSIONS_MOST: usize = 16;

/// A row of Joe and Kuo's table: degree, inner coefficients of the primitive polynomial, first direction
/// numbers.
struct JoeKuoRow {
    degree: u32,
    coefficients: u32,
    first: &'static [u32],
}

const fn row(degree: u32, coefficients: u32, first: &'static [u32]) -> JoeKuoRow {
    JoeKuoRow { degree, coefficients, first }
}

/// Rows for dimensions 2 to 16; the first dimension is van der Corput's and needs no row.
const TABLE: [JoeKuoRow; DIMENSIONS_MOST - 1] = [
    row(1, 0, &[1]),
    row(2, 1, &[1, 3]),
    row(3, 1, &[1, 3, 1]),
    row(3, 2, &[1, 1, 1]),
    row(4, 1, &[1, 1, 3, 3]),
    row(4, 4, &[1, 3, 5, 13]),
    row(5, 2, &[1, 1, 5, 5, 17]),
    row(5, 4, &[1, 1, 5, 5, 5]),
    row(5, 7, &[1, 1, 7, 11, 19]),
    row(5, 11, &[1, 1, 5, 1, 1]),
    row(5, 13, &[1, 1, 1, 3, 11]),
    row(5, 14, &[1, 3, 5, 5, 31]),
    row(6, 1, &[1, 3, 3, 9, 7, 49]),
    row(6, 13, &[1, 1, 1, 15, 21, 21]),
    row(6, 16, &[1, 3, 1, 13, 27, 49]),
];

/// Direction numbers of one dimension, with the binary point before the highest bit.
type DirectionNumbers = [u32; 32];

/// A scrambled Sobol sequence.
#[derive(Clone, Debug)]
pub struct Sobol {
    directions: Vec<DirectionNumbers>,
    /// Scrambling seeds, one for each dimension.
    seeds: Vec<u32>,
}

impl Sobol {
    /// Creates a sequence of `dimensions` coordinates, scrambled by `seed`. Coordinates beyond
    /// [`DIMENSIONS_MOST`] are uniform random numbers.
    pub fn new(dimensions: usize, seed: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a hash is as good in its lower half")]
        let seeds = (0u64..).take(dimensions).map(|dimension| splitmix64(seed, dimension) as u32).collect();
        Self { directions: (0..dimensions.min(DIMENSIONS_MOST)).map(directions).collect(), seeds }
    }

    /// Returns point number `index`, every coordinate in [0, 1) and a multiple of 2⁻³².
    pub fn point(&self, index: u32) -> Vec<f64> {
        let digits = self.directions.iter().map(|directions| digits(directions, index));
        let even = digits.zip(&self.seeds).map(|(digits, seed)| fraction(scrambled(digits, *seed)));
        even.chain(self.seeds.iter().skip(DIMENSIONS_MOST).map(|seed| fraction(hash(*seed, index)))).collect()
    }
}

/// Returns the upper half of a 64-bit hash of `seed` and `index`.
fn hash(seed: u32, index: u32) -> u32 {
    u32::try_from(splitmix64(seed.into(), index.into()) >> 32).expect("the upper half")
}

/// Returns the direction numbers of the dimension with index `dimension`.
fn directions(dimension: usize) -> DirectionNumbers {
    let mut numbers = [0; 32];
    let Some(JoeKuoRow { degree, coefficients, first }) = dimension.checked_sub(1).map(|row| &TABLE[row])
    else {
        for (bit, number) in (0u32..).zip(&mut numbers) {
            *number = 1 << (31 - bit);
        }
        return numbers;
    };
    let reach = first.len();
    for bit in 0..32 {
        numbers[bit] = match first.get(bit) {
            Some(number) => number << (31 - bit),
            None => {
                let oldest = numbers[bit - reach];
                let taken = (1..reach).filter(|k| coefficients >> (reach - 1 - k) & 1 == 1);
                taken.fold(oldest ^ (oldest >> degree), |sum, k| sum ^ numbers[bit - k])
            }
        };
    }
    numbers
}

/// Returns the coordinate of point `index` before scrambling, as 32 binary digits.
fn digits(directions: &DirectionNumbers, index: u32) -> u32 {
    let taken = directions.iter().enumerate().filter(|(bit, _)| index >> bit & 1 == 1);
    taken.fold(0, |sum, (_, number)| sum ^ number)
}

/// Flips each of `digits` by a hash of the digits above it: Owen's scrambling, which keeps every net a net.
fn scrambled(digits: u32, seed: u32) -> u32 {
    hashed(digits.reverse_bits(), seed).reverse_bits()
}

/// Returns the hash of `bits` by Laine and Karras, which is invertible: a bit of the result depends only on
/// the bits up to it.
fn hashed(bits: u32, seed: u32) -> u32 {
    const MULTIPLIERS: [u32; 4] = [0x6c50_b47c, 0xb82f_1e52, 0xc7af_e638, 0x8d22_f6e6];
    MULTIPLIERS.iter().fold(bits.wrapping_add(seed), |x, multiplier| x ^ x.wrapping_mul(*multiplier))
}

fn fraction(digits: u32) -> f64 {
    f64::from(digits) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn unscrambled(dimension: usize, index: u32) -> f64 {
        fraction(digits(&directions(dimension), index))
    }

    #[test]
    fn unscrambled_points_are_those_of_the_published_sequence() {
        // In the natural order; Gray code order visits the same points in every block of 2^m.
        let known = [
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [0.5, 0.5, 0.5, 0.5, 0.5],
            [0.25, 0.75, 0.75, 0.75, 0.25],
            [0.75, 0.25, 0.25, 0.25, 0.75],
            [0.125, 0.625, 0.375, 0.125, 0.125],
            [0.625, 0.125, 0.875, 0.625, 0.625],
            [0.375, 0.375, 0.625, 0.875, 0.375],
            [0.875, 0.875, 0.125, 0.375, 0.875],
        ];
        for (index, point) in (0u32..).zip(known) {
            for (dimension, coordinate) in point.into_iter().enumerate() {
                let found = unscrambled(dimension, index);
                assert!((found - coordinate).abs() < 1e-15, "point {index}, dimension {dimension}: {found}");
            }
        }
    }

    #[test]
    fn the_table_holds_primitive_polynomials_and_odd_direction_numbers() {
        let mut seen = BTreeSet::new();
        for (place, JoeKuoRow { degree, coefficients, first }) in TABLE.iter().enumerate() {
            assert_eq!(first.len(), *degree as usize, "row {place}");
            for (k, number) in first.iter().enumerate() {
                assert!(number % 2 == 1 && *number < 2 << k, "row {place}: {number}");
            }
            let polynomial = 1 << degree | coefficients << 1 | 1;
            assert!(seen.insert(polynomial), "row {place}: every dimension has its own polynomial");
            assert_eq!(order_of_x(polynomial, *degree), (1 << degree) - 1, "row {place}: not primitive");
        }
    }

    /// Returns the smallest power of x that is 1 modulo the polynomial over GF(2).
    fn order_of_x(polynomial: u32, degree: u32) -> u32 {
        let mut power = 1;
        for order in 1..=1 << degree {
            power <<= 1;
            if power >> degree & 1 == 1 {
                power ^= polynomial;
            }
            if power == 1 {
                return order;
            }
        }
        0
    }

    /// Returns `true` if the first `2^m` points put `2^t` into every box of volume `2^(t−m)`.
    fn is_net(points: &[Vec<f64>], dimensions: &[usize], t: u32) -> bool {
        let m = points.len().ilog2();
        shapes(m - t, dimensions.len()).iter().all(|shape| {
            let mut counts = std::collections::BTreeMap::new();
            for point in points {
                *counts.entry(boxed(point, dimensions, shape)).or_insert(0u32) += 1;
            }
            counts.len() == 1 << (m - t) && counts.values().all(|count| *count == 1 << t)
        })
    }

    /// Returns the box of a point where dimension `k` is divided into `2^shape[k]`.
    fn boxed(point: &[f64], dimensions: &[usize], shape: &[u32]) -> Vec<u32> {
        let cuts = dimensions.iter().zip(shape);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few cuts of [0, 1)")]
        cuts.map(|(dimension, halvings)| (point[*dimension] * f64::from(1 << halvings)) as u32).collect()
    }

    /// Returns all ways to distribute `halvings` halvings over `count` dimensions.
    fn shapes(halvings: u32, count: usize) -> Vec<Vec<u32>> {
        if count == 1 {
            return vec![vec![halvings]];
        }
        let with = |first: u32| {
            shapes(halvings - first, count - 1).into_iter().map(move |rest| [vec![first], rest].concat())
        };
        (0..=halvings).flat_map(with).collect()
    }

    #[test]
    fn scrambled_points_are_nets_of_the_quality_that_the_polynomials_promise() {
        // Sobol 1967: t is the sum of each degree minus one.
        for seed in [0, 1, 77] {
            let sobol = Sobol::new(DIMENSIONS_MOST, seed);
            let points: Vec<Vec<f64>> = (0..256).map(|index| sobol.point(index)).collect();
            assert!(is_net(&points, &[0, 1], 0), "seed {seed}");
            assert!(is_net(&points, &[0, 1, 2], 1), "seed {seed}");
            assert!(is_net(&points, &[0, 1, 2, 3], 3), "seed {seed}");
            assert!((0..DIMENSIONS_MOST).all(|dimension| is_net(&points, &[dimension], 0)), "seed {seed}");
        }
    }

    #[test]
    fn dimensions_without_direction_numbers_are_left_to_chance() {
        let sobol = Sobol::new(DIMENSIONS_MOST + 2, 3);
        let points: Vec<Vec<f64>> = (0..512).map(|index| sobol.point(index)).collect();
        assert_eq!(points[7][..DIMENSIONS_MOST], Sobol::new(DIMENSIONS_MOST, 3).point(7));
        for dimension in [DIMENSIONS_MOST, DIMENSIONS_MOST + 1] {
            let mean = points.iter().map(|point| point[dimension]).sum::<f64>() / 512.0;
            assert!((mean - 0.5).abs() < 0.05, "{mean}");
        }
        assert!(points.iter().all(|point| (point[16] - point[17]).abs() > 1e-9));
    }

    #[test]
    fn the_check_of_nets_refuses_what_is_none() {
        let diagonal: Vec<Vec<f64>> = (0..256).map(|k| vec![f64::from(k) / 256.0; 2]).collect();
        assert!(is_net(&diagonal, &[0], 0) && !is_net(&diagonal, &[0, 1], 0));
    }

    #[test]
    fn a_point_depends_on_seed_and_number_alone() {
        let (sobol, again, other) = (Sobol::new(4, 5), Sobol::new(4, 5), Sobol::new(4, 6));
        let points: Vec<_> = (0..64).map(|index| sobol.point(index)).collect();
        for index in (0..64).rev() {
            assert_eq!(again.point(index), points[index as usize]);
        }
        assert!((0..64).all(|index| other.point(index) != points[index as usize]));
        assert_eq!(Sobol::new(2, 5).point(9), sobol.point(9)[..2], "a dimension does not know of later ones");
    }
}
