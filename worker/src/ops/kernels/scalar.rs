//! Scalar functions, and sums and maxima in lanes, which the other kernels use.

/// Returns `f(0) + … + f(n - 1)`, summed in sixteen lanes, which are added in order at the end.
#[inline(always)]
pub(super) fn sum16(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let whole = n / 16 * 16;
    for block in (0..whole).step_by(16) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(block + lane);
        }
    }
    let mut total: f32 = lanes.iter().sum();
    for i in whole..n {
        total += f(i);
    }
    total
}

/// Returns the largest of `values`; `f32::MIN` if there is none.
#[inline(always)]
pub(super) fn max16(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::MIN; 16];
    let mut blocks = values.chunks_exact(16);
    for block in &mut blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, *value);
        }
    }
    lanes.into_iter().chain(blocks.remainder().iter().copied()).fold(f32::MIN, larger)
}

/// Returns `e^x` after Cephes; relative error below 3e-7. Clamped to finite results.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    // Adding 1.5 · 2^23 rounds to the nearest whole number n, which the low bits of the sum then are. A
    // conversion of n to an integer would saturate, and such a conversion has no vector instruction.
    let sum = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = sum - 12_582_912.0;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_2e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r
        + 1.666_666_5e-1)
        * r
        + 0.5;
    let y = p * r * r + r + 1.0;
    let scaled = f32::from_bits(y.to_bits().wrapping_add(sum.to_bits() << 23));
    // The low bits of a NaN may be anything.
    if y.is_nan() { y } else { scaled }
}

/// Returns the error function of `x`, given `e^(-x²)`, after Abramowitz and Stegun 7.1.26; absolute error
/// below 6e-7.
#[inline(always)]
pub(super) fn erf(x: f32, bell: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let p = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    (1.0 - p * bell).copysign(x)
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_erf_are_as_exact_as_they_say() {
        let wanted = |x: f64| {
            // The Maclaurin series of erf, exact in f64 for |x| < 4.
            let (mut term, mut sum) = (x, x);
            for n in 1..120 {
                let n = f64::from(n);
                term *= -x * x / n;
                sum += term / (2.0 * n + 1.0);
            }
            sum * 2.0 / std::f64::consts::PI.sqrt()
        };
        for i in -4000..4000 {
            let x = i as f32 / 1000.0;
            let error = (f64::from(erf(x, exp(-x * x))) - wanted(f64::from(x))).abs();
            assert!(error < 6e-7, "erf({x}) is off by {error}");
            let x = i as f32 / 50.0;
            let error = (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs();
            assert!(error < 3e-7, "exp({x}) is off by {error}");
        }
        assert!(exp(f32::NAN).is_nan() && exp(f32::from_bits(0x7fc0_0001)).is_nan());
        assert!(exp(-1e9) < 2e-38 && exp(f32::MIN) >= 0.0 && exp(1e9).is_finite());
        assert!(erf(9.0, exp(-81.0)) == 1.0 && erf(-9.0, exp(-81.0)) == -1.0);
    }
}
