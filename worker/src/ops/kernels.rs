//! Loops over slices, compiled for AVX-512, AVX2 and the baseline, and chosen when they run.
//!
//! The only file of the mathematics with unsafe code: it calls code for a processor feature that was detected.
//! It knows slices only, neither tensors nor threads.
#![expect(
    unsafe_code,
    reason = "calls of functions compiled for a detected processor feature, and raw products"
)]

/// The numbers of one optimizer step, for one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    /// Learning rate.
    pub(crate) rate: f32,
    /// Decoupled weight decay.
    pub(crate) decay: f32,
    /// Clip factor of the gradient.
    pub(crate) scale: f32,
    /// `1 / (1 - beta^t)`, which makes up for moments that began at zero.
    pub(crate) correction1: f32,
    pub(crate) correction2: f32,
}

/// Compiles each function three times and calls the best that this processor can run.
macro_rules! simd {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => { $(
        $(#[$doc])*
        #[inline]
        #[allow(clippy::too_many_arguments, reason = "some loops read many slices at once")]
        pub(crate) fn $name($($argument: $kind),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "some loops read many slices at once")]
            fn body($($argument: $kind),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,fma,avx2")]
                #[allow(clippy::too_many_arguments, reason = "some loops read many slices at once")]
                fn v4($($argument: $kind),*) $(-> $result)? { body($($argument),*) }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "some loops read many slices at once")]
                fn v3($($argument: $kind),*) $(-> $result)? { body($($argument),*) }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                {
                    // SAFETY: the features were detected just now (each of these implies avx2 and fma).
                    return unsafe { v4($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the features were detected just now.
                    return unsafe { v3($($argument),*) };
                }
            }
            body($($argument),*)
        }
    )* };
}

/// Sum of `f(0) + … + f(n - 1)` in sixteen lanes, which are added in order at the end.
#[inline(always)]
fn sum16(n: usize, f: impl Fn(usize) -> f32) -> f32 {
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

/// Largest value; `f32::MIN` when there is none.
#[inline(always)]
fn max16(values: &[f32]) -> f32 {
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

/// `e^x` after Cephes; relative error below 3e-7. Clamped to finite results.
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.3);
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest whole number.
    let n = (x * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let p = ((((1.987_569_1e-4 * r + 1.398_2e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r
        + 1.666_666_5e-1)
        * r
        + 0.5;
    let y = p * r * r + r + 1.0;
    f32::from_bits((y.to_bits() as i32).wrapping_add((n as i32) << 23) as u32)
}

/// The error function of `x`, given `e^(-x²)`, after Abramowitz and Stegun 7.1.26; absolute error below 6e-7.
#[inline(always)]
fn erf(x: f32, bell: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let p = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    (1.0 - p * bell).copysign(x)
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

simd! {
    /// Softmax of the first `first + i + 1` values, at most `n`, of each row `i`, each `n` long; the rest becomes 0.
    /// `log_sums` receives the logarithm of each row's sum of exponentials.
    fn causal_softmax(rows: &mut [f32], n: usize, first: usize, log_sums: &mut [f32]) {
        for (i, (row, log_sum)) in rows.chunks_exact_mut(n).zip(log_sums).enumerate() {
            let (seen, ahead) = row.split_at_mut((first + i + 1).min(n));
            let largest = max16(seen);
            for x in seen.iter_mut() {
                *x = exp(*x - largest);
            }
            let sum = sum16(seen.len(), |j| seen[j]);
            let inverse = 1.0 / sum;
            for x in seen.iter_mut() {
                *x *= inverse;
            }
            ahead.fill(0.0);
            *log_sum = largest + sum.ln();
        }
    }

    /// Softmax of rows, each `n` long, that are the continuation of others: each of `log_sums` is the logarithm of
    /// the sum of exponentials of a row so far, and takes these in. What was made from the part before must be
    /// multiplied by its factor in `factors`.
    fn softmax_on(rows: &mut [f32], n: usize, log_sums: &mut [f32], factors: &mut [f32]) {
        for ((row, log_sum), factor) in rows.chunks_exact_mut(n).zip(log_sums).zip(factors) {
            let largest = max16(row).max(*log_sum);
            for x in row.iter_mut() {
                *x = exp(*x - largest);
            }
            let before = exp(*log_sum - largest);
            let sum = sum16(n, |j| row[j]) + before;
            let inverse = 1.0 / sum;
            for x in row.iter_mut() {
                *x *= inverse;
            }
            *factor = before * inverse;
            *log_sum = largest + sum.ln();
        }
    }

    /// Gradient of [`causal_softmax`]: `scores` become probabilities again, by their `log_sums`, and `gradient`, of
    /// the probabilities, becomes that of the scores times `scale`. `dots` has each row's sum of probability times
    /// gradient, where these are a part of the rows only.
    fn softmax_back(
        scores: &mut [f32],
        gradient: &mut [f32],
        n: usize,
        first: usize,
        log_sums: &[f32],
        dots: Option<&[f32]>,
        scale: f32,
    ) {
        let rows = scores.chunks_exact_mut(n).zip(gradient.chunks_exact_mut(n)).zip(log_sums);
        for (i, ((p, d), log_sum)) in rows.enumerate() {
            let seen = (first + i + 1).min(n);
            let (p, p_ahead) = p.split_at_mut(seen);
            let (d, d_ahead) = d.split_at_mut(seen);
            for x in p.iter_mut() {
                *x = exp(*x - *log_sum);
            }
            let dot = dots.map_or_else(|| sum16(seen, |j| p[j] * d[j]), |dots| dots[i]);
            for (d, p) in d.iter_mut().zip(p.iter()) {
                *d = *p * (*d - dot) * scale;
            }
            p_ahead.fill(0.0);
            d_ahead.fill(0.0);
        }
    }

    /// Dot products of the rows of `left` and `right`, `[t, heads, width]` each, into `dots`: `[heads, t]`.
    fn head_dots(left: &[f32], right: &[f32], dots: &mut [f32], t: usize, width: usize) {
        let heads = dots.len() / t;
        for (row, (left, right)) in left.chunks_exact(width).zip(right.chunks_exact(width)).enumerate() {
            dots[row % heads * t + row / heads] = sum16(width, |j| left[j] * right[j]);
        }
    }

    /// LayerNorm of rows as long as `weight`; `stats` receives mean and inverse deviation of each.
    fn layer_norm(x: &[f32], out: &mut [f32], stats: &mut [f32], weight: &[f32], bias: &[f32], epsilon: f32) {
        let n = weight.len();
        let rows = x.chunks_exact(n).zip(out.chunks_exact_mut(n)).zip(stats.chunks_exact_mut(2));
        for ((x, out), stats) in rows {
            let mean = sum16(n, |j| x[j]) / n as f32;
            let variance = sum16(n, |j| (x[j] - mean) * (x[j] - mean)) / n as f32;
            let inverse = 1.0 / (variance + epsilon).sqrt();
            for (((out, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = (*x - mean) * inverse * *w + *b;
            }
            stats[0] = mean;
            stats[1] = inverse;
        }
    }

    /// Gradient of [`layer_norm`], in place in `d`; adds to those of weight and bias.
    fn layer_norm_back(
        x: &[f32],
        d: &mut [f32],
        stats: &[f32],
        weight: &[f32],
        d_weight: &mut [f32],
        d_bias: &mut [f32],
    ) {
        let n = weight.len();
        let (d_weight, d_bias) = (&mut d_weight[..n], &mut d_bias[..n]);
        for ((x, d), stats) in x.chunks_exact(n).zip(d.chunks_exact_mut(n)).zip(stats.chunks_exact(2)) {
            let (mean, inverse) = (stats[0], stats[1]);
            for j in 0..n {
                d_weight[j] += d[j] * (x[j] - mean) * inverse;
                d_bias[j] += d[j];
                d[j] *= weight[j];
            }
            let flat = sum16(n, |j| d[j]) / n as f32;
            let along = sum16(n, |j| d[j] * (x[j] - mean)) * inverse / n as f32;
            for j in 0..n {
                d[j] = inverse * (d[j] - flat - (x[j] - mean) * inverse * along);
            }
        }
    }

    /// RMSNorm of rows as long as `weight`; `stats` receives the inverse root mean square of each.
    fn rms_norm(x: &[f32], out: &mut [f32], stats: &mut [f32], weight: &[f32], epsilon: f32) {
        let n = weight.len();
        for ((x, out), inverse) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)).zip(stats) {
            *inverse = 1.0 / (sum16(n, |j| x[j] * x[j]) / n as f32 + epsilon).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                *out = *x * *inverse * *w;
            }
        }
    }

    /// Gradient of [`rms_norm`], in place in `d`; adds to that of the weight.
    fn rms_norm_back(x: &[f32], d: &mut [f32], stats: &[f32], weight: &[f32], d_weight: &mut [f32]) {
        let n = weight.len();
        let d_weight = &mut d_weight[..n];
        for ((x, d), inverse) in x.chunks_exact(n).zip(d.chunks_exact_mut(n)).zip(stats) {
            let inverse = *inverse;
            for j in 0..n {
                d_weight[j] += d[j] * x[j] * inverse;
                d[j] *= weight[j];
            }
            let along = sum16(n, |j| d[j] * x[j]) * inverse * inverse / n as f32;
            for j in 0..n {
                d[j] = inverse * (d[j] - x[j] * along);
            }
        }
    }

    /// `out = x · Φ(x)`
    fn gelu(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            let bell = exp(-0.5 * *x * *x);
            *out = 0.5 * *x * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2, bell));
        }
    }

    /// Gradient of [`gelu`], in place in `d`.
    fn gelu_back(x: &[f32], d: &mut [f32]) {
        for (d, x) in d.iter_mut().zip(x) {
            let bell = exp(-0.5 * *x * *x);
            let below = 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2, bell));
            *d *= below + *x * 0.398_942_3 * bell;
        }
    }

    /// `out = silu(gate) · up` of rows `gate | up`, each half `n` long.
    fn swiglu(packed: &[f32], out: &mut [f32], n: usize) {
        for (packed, out) in packed.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            let (gate, up) = packed.split_at(n);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = *gate * sigmoid(*gate) * *up;
            }
        }
    }

    /// Gradient of [`swiglu`], in place in `packed`.
    fn swiglu_back(packed: &mut [f32], d: &[f32], n: usize) {
        for (packed, d) in packed.chunks_exact_mut(2 * n).zip(d.chunks_exact(n)) {
            let (gate, up) = packed.split_at_mut(n);
            for ((gate, up), d) in gate.iter_mut().zip(up).zip(d) {
                let (g, u) = (*gate, *up);
                let s = sigmoid(g);
                *gate = *d * u * s * (1.0 + g * (1.0 - s));
                *up = *d * g * s;
            }
        }
    }

    /// Replaces a row of scores by its softmax minus the target; returns the cross-entropy and whether no other
    /// class has a higher score.
    fn cross_entropy_row(row: &mut [f32], target: usize) -> (f32, bool) {
        let largest = max16(row);
        let wanted = row[target];
        for x in row.iter_mut() {
            *x = exp(*x - largest);
        }
        let sum = sum16(row.len(), |j| row[j]);
        let inverse = 1.0 / sum;
        for x in row.iter_mut() {
            *x *= inverse;
        }
        row[target] -= 1.0;
        (sum.ln() + largest - wanted, wanted >= largest)
    }

    /// Largest of a row of scores.
    fn largest(row: &[f32]) -> f32 {
        max16(row)
    }

    /// Replaces every score by `e^(score - largest)`; returns their sum.
    fn exp_row(row: &mut [f32], largest: f32) -> f32 {
        for x in row.iter_mut() {
            *x = exp(*x - largest);
        }
        sum16(row.len(), |j| row[j])
    }

    /// Turns each pair `(x[i], x[half + i])` of one head by its angle.
    fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        let half = cos.len();
        let (low, high) = head.split_at_mut(half);
        for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let (a, b, sin) = (*low, *high, *sin * sign);
            *low = a * *cos - b * sin;
            *high = b * *cos + a * sin;
        }
    }

    /// `values *= factor`
    fn scale(values: &mut [f32], factor: f32) {
        for v in values {
            *v *= factor;
        }
    }

    /// Adds each row of `rows`, as long as `sum`, to `sum`.
    fn add_rows(sum: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sum.len()) {
            for (s, v) in sum.iter_mut().zip(row) {
                *s += *v;
            }
        }
    }

    /// Adds `row` to each row of `rows`.
    fn add_to_rows(rows: &mut [f32], row: &[f32]) {
        for r in rows.chunks_exact_mut(row.len()) {
            for (r, v) in r.iter_mut().zip(row) {
                *r += *v;
            }
        }
    }

    /// `sum += values`
    fn add(sum: &mut [f32], values: &[f32]) {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += *v;
        }
    }

    /// `sum += factor · values`
    fn add_scaled(sum: &mut [f32], values: &[f32], factor: f32) {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += factor * *v;
        }
    }

    /// Sum of squares, in f64 over blocks of 256.
    fn square_sum(values: &[f32]) -> f64 {
        values.chunks(256).map(|block| f64::from(sum16(block.len(), |i| block[i] * block[i]))).sum()
    }

    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    fn adamw(values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], n: &Numbers) {
        let keep = 1.0 - n.rate * n.decay;
        for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = *g * n.scale;
            *m = n.beta1 * *m + (1.0 - n.beta1) * g;
            *v = n.beta2 * *v + (1.0 - n.beta2) * g * g;
            *p = *p * keep - n.rate * (*m * n.correction1) / ((*v * n.correction2).sqrt() + n.epsilon);
        }
    }

    /// Heavy-ball momentum.
    fn sgd(values: &mut [f32], gradient: &[f32], first: &mut [f32], n: &Numbers) {
        let keep = 1.0 - n.rate * n.decay;
        for ((p, g), m) in values.iter_mut().zip(gradient).zip(first) {
            *m = n.beta1 * *m + *g * n.scale;
            *p = *p * keep - n.rate * *m;
        }
    }

    /// Sign of an interpolated momentum (Chen et al. 2023).
    fn lion(values: &mut [f32], gradient: &[f32], first: &mut [f32], n: &Numbers) {
        let keep = 1.0 - n.rate * n.decay;
        for ((p, g), m) in values.iter_mut().zip(gradient).zip(first) {
            let g = *g * n.scale;
            let mixed = n.beta1 * *m + (1.0 - n.beta1) * g;
            let sign = f32::from(i8::from(mixed > 0.0) - i8::from(mixed < 0.0));
            *p = *p * keep - n.rate * sign;
            *m = n.beta2 * *m + (1.0 - n.beta2) * g;
        }
    }

    /// Adam's step of unit rate plus weight decay, before the trust ratio.
    fn lamb_direction(
        direction: &mut [f32],
        values: &[f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        n: &Numbers,
    ) {
        for ((((d, p), g), m), v) in direction.iter_mut().zip(values).zip(gradient).zip(first).zip(second) {
            let g = *g * n.scale;
            *m = n.beta1 * *m + (1.0 - n.beta1) * g;
            *v = n.beta2 * *v + (1.0 - n.beta2) * g * g;
            *d = (*m * n.correction1) / ((*v * n.correction2).sqrt() + n.epsilon) + n.decay * *p;
        }
    }
}

/// A view of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// The `rows × columns` matrix that begins at the first of `values`; panics when it does not fit.
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        assert!(extent([rows, columns], strides) <= values.len(), "a matrix lies inside its values");
        Self { values, rows, columns, strides }
    }

    /// Rows one after the other.
    pub(crate) fn dense(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, [rows, columns], [columns, 1])
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn transposed(self) -> Self {
        let Self { values, rows, columns, strides: [row, column] } = self;
        Self { values, rows: columns, columns: rows, strides: [column, row] }
    }

    /// The part of `size` whose first value is at `row`, `column`.
    pub(crate) fn part(self, [row, column]: [usize; 2], size: [usize; 2]) -> Self {
        let offset = row * self.strides[0] + column * self.strides[1];
        Self::new(&self.values[offset.min(self.values.len())..], size, self.strides)
    }
}

/// A matrix to be written; several may interleave in one slice, column beside column.
pub(crate) struct MatrixMut<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    strides: [usize; 2],
    owner: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: no two of these share a value (see `new` and `columns`), so each is as good as a `&mut [f32]`.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// As [`Matrix::new`].
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        assert!(extent([rows, columns], strides) <= values.len(), "a matrix lies inside its values");
        Self { first: values.as_mut_ptr(), rows, columns, strides, owner: std::marker::PhantomData }
    }

    /// As [`Matrix::dense`].
    pub(crate) fn dense(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, [rows, columns], [columns, 1])
    }

    /// Cuts dense rows into matrices of these widths, side by side.
    pub(crate) fn columns(values: &'a mut [f32], rows: usize, widths: &[usize]) -> Vec<Self> {
        let row = widths.iter().sum();
        assert_eq!(values.len(), rows * row, "the widths fill a row");
        let first = values.as_mut_ptr();
        let mut before = 0;
        let matrices = widths.iter().map(|width| {
            // SAFETY: `before <= row`, and a slice with rows holds at least one; without rows nothing is read.
            let first = if rows == 0 { first } else { unsafe { first.add(before) } };
            before += width;
            Self { first, rows, columns: *width, strides: [row, 1], owner: std::marker::PhantomData }
        });
        matrices.collect()
    }

    /// Multiplies each row by its factor. Panics unless the values of a row lie side by side.
    pub(crate) fn scale_rows(&mut self, factors: &[f32]) {
        assert_eq!((factors.len(), self.strides[1]), (self.rows, 1), "a factor for each dense row");
        for (row, factor) in factors.iter().enumerate() {
            // SAFETY: the row lies inside this matrix, which nobody else reads or writes.
            let values = unsafe {
                std::slice::from_raw_parts_mut(self.first.add(row * self.strides[0]), self.columns)
            };
            scale(values, *factor);
        }
    }

    /// The part of `size` whose first value is at `row`, `column`, borrowed for a while.
    pub(crate) fn part(&mut self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> MatrixMut<'_> {
        assert!(row + rows <= self.rows && column + columns <= self.columns, "a part lies inside its matrix");
        let offset = row * self.strides[0] + column * self.strides[1];
        // SAFETY: the part lies inside this matrix, which lies inside its slice.
        let first = if rows * columns == 0 { self.first } else { unsafe { self.first.add(offset) } };
        MatrixMut { first, rows, columns, strides: self.strides, owner: std::marker::PhantomData }
    }
}

/// Number of values from the first to the last of a matrix.
fn extent([rows, columns]: [usize; 2], strides: [usize; 2]) -> usize {
    if rows * columns == 0 { 0 } else { (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1 }
}

/// What a product does with the values that were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    Overwrite,
    Add,
}

/// Where a product may compute. The result is the same to the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    One,
    Pool,
}

/// `out = factor · left · right`, or `out += …`.
pub(crate) fn product(
    out: MatrixMut<'_>,
    into: Into,
    factor: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: Threads,
) {
    assert_eq!(
        [out.rows, out.columns, left.columns],
        [left.rows, right.columns, right.rows],
        "shapes of a product"
    );
    // SAFETY: all three lie inside their slices, `out` is borrowed mutably and so overlaps neither.
    unsafe { product_at(out.first, out.strides, into, factor, left, right, threads) }
}

/// `left · right` in a new vector, rows one after the other.
pub(crate) fn product_of(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    assert_eq!(left.columns, right.rows, "shapes of a product");
    let len = left.rows * right.columns;
    let mut out = Vec::with_capacity(len);
    // SAFETY: the product fills all `len` values of the new allocation without reading them.
    unsafe {
        product_at(out.as_mut_ptr(), [right.columns, 1], Into::Overwrite, 1.0, left, right, Threads::Pool);
        out.set_len(len);
    }
    out
}

/// # Safety
/// `out` must be valid for writes of a `left.rows × right.columns` matrix with these strides, for reads too
/// when it is added to, and must not overlap `left` or `right`, whose inner dimensions agree.
unsafe fn product_at(
    out: *mut f32,
    strides: [usize; 2],
    into: Into,
    factor: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: Threads,
) {
    let parallelism = match threads {
        Threads::Pool if rayon::current_num_threads() > 1 => gemm::Parallelism::Rayon(0),
        Threads::Pool | Threads::One => gemm::Parallelism::None,
    };
    let signed = |stride: usize| stride.cast_signed();
    // SAFETY: promised by the caller; strides of a matrix inside a slice fit an `isize`.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out,
            signed(strides[1]),
            signed(strides[0]),
            into == Into::Add,
            left.values.as_ptr(),
            signed(left.strides[1]),
            signed(left.strides[0]),
            right.values.as_ptr(),
            signed(right.strides[1]),
            signed(right.strides[0]),
            1.0,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
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
        assert!(exp(-1e9) < 2e-38 && exp(f32::MIN) >= 0.0 && exp(1e9).is_finite());
        assert!(erf(9.0, exp(-81.0)) == 1.0 && erf(-9.0, exp(-81.0)) == -1.0);
    }

    #[test]
    fn products_of_strided_parts_are_those_of_copies() {
        let values: Vec<f32> = (0..200).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
        let left = Matrix::new(&values[3..], [5, 4], [9, 2]);
        let right = Matrix::new(&values[1..], [3, 4], [11, 3]).transposed();
        let at = |m: Matrix<'_>, i: usize, j: usize| m.values[i * m.strides[0] + j * m.strides[1]];
        let mut out = vec![1.0; 5 * 7];
        let mut parts = MatrixMut::columns(&mut out, 5, &[2, 3, 2]);
        product(parts[1].part([0, 0], [5, 3]), Into::Add, 2.0, left, right, Threads::One);
        let fresh = product_of(left, right);
        for i in 0..5 {
            for j in 0..3 {
                let wanted: f32 = (0..4).map(|k| at(left, i, k) * at(right, k, j)).sum();
                assert_eq!(out[i * 7 + 2 + j], 1.0 + 2.0 * wanted);
                assert_eq!(fresh[i * 3 + j], wanted);
            }
            assert_eq!([out[i * 7], out[i * 7 + 1], out[i * 7 + 5]], [1.0; 3]);
        }
    }
}
