//! Activations, rotary rotation, and their gradients.

use super::scalar::{erf, exp, sigmoid};
use crate::ops::{CUBIC, SLOPE};

simd! {
    /// Computes GELU into `out`: `out = x · Φ(x)`
    fn gelu(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            let bell = exp(-0.5 * *x * *x);
            *out = 0.5 * *x * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2, bell));
        }
    }

    /// Computes the gradient of [`gelu`], in place in `d`.
    fn gelu_back(x: &[f32], d: &mut [f32]) {
        for (d, x) in d.iter_mut().zip(x) {
            let bell = exp(-0.5 * *x * *x);
            let below = 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2, bell));
            *d *= below + *x * 0.398_942_3 * bell;
        }
    }

    /// Computes the tanh form of GELU: `out = x · σ(2u)` with `u = √(2/π) · (x + 0.044715·x³)`, which is
    /// `x/2 · (1 + tanh u)`
    fn gelu_tanh(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = *x * sigmoid(SLOPE * *x * (1.0 + CUBIC * *x * *x));
        }
    }

    /// Computes the gradient of [`gelu_tanh`], in place in `d`.
    fn gelu_tanh_back(x: &[f32], d: &mut [f32]) {
        for (d, x) in d.iter_mut().zip(x) {
            let s = sigmoid(SLOPE * *x * (1.0 + CUBIC * *x * *x));
            *d *= s + *x * s * (1.0 - s) * SLOPE * (1.0 + 3.0 * CUBIC * *x * *x);
        }
    }

    /// Computes SwiGLU: `out = silu(gate) · up` of rows `gate | up`, each half `n` long.
    fn swiglu(packed: &[f32], out: &mut [f32], n: usize) {
        for (packed, out) in packed.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            let (gate, up) = packed.split_at(n);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = *gate * sigmoid(*gate) * *up;
            }
        }
    }

    /// Computes the gradient of [`swiglu`], in place in `packed`.
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

    /// Computes GeGLU: `out = gelu_tanh(gate) · up` of rows `gate | up`, each half `n` long.
    fn geglu(packed: &[f32], out: &mut [f32], n: usize) {
        for (packed, out) in packed.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            let (gate, up) = packed.split_at(n);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = *gate * sigmoid(SLOPE * *gate * (1.0 + CUBIC * *gate * *gate)) * *up;
            }
        }
    }

    /// Computes the gradient of [`geglu`], in place in `packed`.
    fn geglu_back(packed: &mut [f32], d: &[f32], n: usize) {
        for (packed, d) in packed.chunks_exact_mut(2 * n).zip(d.chunks_exact(n)) {
            let (gate, up) = packed.split_at_mut(n);
            for ((gate, up), d) in gate.iter_mut().zip(up).zip(d) {
                let (g, u) = (*gate, *up);
                let s = sigmoid(SLOPE * g * (1.0 + CUBIC * g * g));
                *gate = *d * u * (s + g * s * (1.0 - s) * SLOPE * (1.0 + 3.0 * CUBIC * g * g));
                *up = *d * g * s;
            }
        }
    }

    /// Rotates each pair `(x[i], x[half + i])` of one head by its angle.
    fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        let half = cos.len();
        let (low, high) = head.split_at_mut(half);
        for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let (a, b, sin) = (*low, *high, *sin * sign);
            *low = a * *cos - b * sin;
            *high = b * *cos + a * sin;
        }
    }
}
