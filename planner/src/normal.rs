//! The standard normal distribution, with logarithms that stay exact far out in the tails.

use std::f64::consts::TAU;

/// Standard deviations on either side of the mean that contain 90 % of a normal distribution.
pub(super) const NINETY_PERCENT: f64 = 1.645;

/// Bound below which tails use a continued fraction, and above which a series. Both have twelve digits here.
const TAIL: f64 = -2.0;

/// Number of terms of the continued fraction: enough for sixteen digits from 2 on.
const TERMS: u32 = 80;

/// Returns the density of the standard normal distribution at `z`.
pub fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / TAU.sqrt()
}

/// Returns the probability that a standard normal number is below `z`.
pub fn cumulative(z: f64) -> f64 {
    if z < TAIL {
        density(z) * mills(-z)
    } else if z > -TAIL {
        1.0 - cumulative(-z)
    } else {
        0.5 + density(z) * series(z)
    }
}

/// Returns the natural logarithm of [`cumulative`], to full precision for every `z`.
pub fn log_cumulative(z: f64) -> f64 {
    if z < TAIL {
        log_density(z) + mills(-z).ln()
    } else if z > -TAIL {
        (-cumulative(-z)).ln_1p()
    } else {
        cumulative(z).ln()
    }
}

/// Returns the natural logarithm of `φ(z) + z·Φ(z)`, the expected improvement of a standard normal variable
/// (Ament et al. 2023, equation 9).
///
/// The two terms cancel for very negative `z`: digits are lost from −8 on, and none is left from −39 on. With
/// Laplace's continued fraction of the Mills ratio, `Φ(−x)/φ(x) = 1/(x + K)`, the sum is `φ(x)·K/(x + K)`, in
/// which nothing cancels.
pub fn log_improvement(z: f64) -> f64 {
    if z < TAIL {
        let rest = rest(-z);
        log_density(z) + (rest / (rest - z)).ln()
    } else {
        (density(z) + z * cumulative(z)).ln()
    }
}

fn log_density(z: f64) -> f64 {
    -0.5 * (z * z + TAU.ln())
}

/// Returns the Mills ratio `Φ(−x)/φ(x)` for `x` of 2 and more.
fn mills(x: f64) -> f64 {
    1.0 / (x + rest(x))
}

/// Returns `1/(x + 2/(x + 3/(x + …)))`, the `K` of the continued fraction.
fn rest(x: f64) -> f64 {
    (1..=TERMS).rev().fold(0.0, |sum, k| f64::from(k) / (x + sum))
}

/// Returns `(Φ(z) − ½)/φ(z) = z + z³/3 + z⁵/(3·5) + …` (Marsaglia 2004), for `z` between −2 and 2.
fn series(z: f64) -> f64 {
    let next = |term: f64, k: u32| term * z * z / f64::from(2 * k + 1);
    let (sum, _) = (1..40).fold((z, z), |(sum, term), k| {
        let term = next(term, k);
        (sum + term, term)
    });
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(f: fn(f64) -> f64, known: &[(f64, f64)]) {
        for &(z, wanted) in known {
            let found = f(z);
            assert!((found - wanted).abs() <= 2e-13 * wanted.abs(), "at {z}: {found}, not {wanted}");
        }
    }

    #[test]
    fn the_logarithm_of_the_improvement_is_that_of_sixty_digits() {
        // Reference values computed with 60 decimal digits.
        check(
            log_improvement,
            &[
                (-1e6, -500_000_000_028.55),
                (-1e3, -500_014.734_452_091_16),
                (-40.0, -808.298_568_356_62),
                (-10.0, -55.553_122_036_122_35),
                (-5.0, -16.744_301_162_660_99),
                (-3.0, -7.869_686_059_603_029),
                (-2.5, -6.212_541_645_443_513),
                (-2.0, -4.768_783_523_917_114),
                (-1.5, -3.529_935_920_805_71),
                (-1.0, -2.485_121_025_712_641_3),
                (-0.5, -1.620_516_264_387_32),
                (0.0, -0.918_938_533_204_672_7),
                (0.5, -0.359_827_683_745_063_8),
                (1.0, 0.080_026_218_849_306_94),
                (3.0, 1.098_739_665_327_707_8),
                (6.0, 1.791_759_469_254_114_5),
                (20.0, 2.995_732_273_553_991),
            ],
        );
    }

    #[test]
    fn the_logarithm_of_the_probability_is_that_of_sixty_digits() {
        check(
            log_cumulative,
            &[
                (-40.0, -804.608_442_013_753_8),
                (-10.0, -53.231_285_150_512_47),
                (-5.0, -15.064_998_393_988_726),
                (-2.0, -3.783_184_333_682_032),
                (-1.0, -1.841_021_645_009_263_5),
                (-0.1, -0.776_154_592_730_273_3),
                (0.0, -std::f64::consts::LN_2),
                (0.7, -0.277_023_942_277_131_24),
                (2.0, -0.023_012_909_328_963_488),
                (5.0, -2.866_516_129_637_636e-7),
                (9.0, -1.128_588_405_953_840_6e-19),
            ],
        );
    }

    #[test]
    fn both_ways_agree_where_they_meet() {
        for f in [log_improvement, log_cumulative] {
            let (below, above) = (f(TAIL - 1e-9), f(TAIL + 1e-9));
            assert!(below < above && above - below < 1e-8, "{below} {above}");
        }
    }
}
