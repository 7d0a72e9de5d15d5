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

simd! {
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
