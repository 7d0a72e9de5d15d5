//! Layer norm and RMS norm of rows, and their gradients.

use super::scalar::sum16;

simd! {
    /// Computes LayerNorm of rows as long as `weight`; `stats` receives the mean and the inverse deviation of
    /// each row.
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

    /// Computes the gradient of [`layer_norm`], in place in `d`; adds to the gradients of weight and bias.
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

    /// Computes RMSNorm of rows as long as `weight`; `stats` receives the inverse root mean square of each
    /// row.
    fn rms_norm(x: &[f32], out: &mut [f32], stats: &mut [f32], weight: &[f32], epsilon: f32) {
        let n = weight.len();
        for ((x, out), inverse) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)).zip(stats) {
            *inverse = 1.0 / (sum16(n, |j| x[j] * x[j]) / n as f32 + epsilon).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                *out = *x * *inverse * *w;
            }
        }
    }

    /// Computes the gradient of [`rms_norm`], in place in `d`; adds to the gradient of the weight.
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
}
