//! SIMD kernels: loops over slices, compiled for AVX-512, AVX2 and the baseline, and chosen at run time.
//!
//! The only module of the mathematics with unsafe code: it calls code for a detected processor feature. It
//! knows slices only, neither tensors nor threads.
#![expect(
    unsafe_code,
    reason = "calls of functions compiled for a detected processor feature, and raw products"
)]

/// Defines functions that are each compiled three times, of which a call runs the best one for this
/// processor.
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

mod activation;
mod adamw;
mod matmul;
mod norm;
mod optimizer_step;
mod scalar;
mod softmax;
mod vector;

pub(crate) use activation::{
    geglu, geglu_back, gelu, gelu_back, gelu_tanh, gelu_tanh_back, rotate, swiglu, swiglu_back,
};
pub(crate) use adamw::adamw;
pub(crate) use matmul::{Accumulate, Matrix, MatrixMut, ThreadUse, matmul, matmul_to_vec};
pub(crate) use norm::{layer_norm, layer_norm_back, rms_norm, rms_norm_back};
pub(crate) use optimizer_step::{UpdateCoefficients, lamb_direction, lion, sgd};
pub(crate) use softmax::{
    cross_entropy_row, exp_row, head_dots, largest, masked_softmax, softmax_back, softmax_on,
};
pub(crate) use vector::{add, add_rows, add_scaled, add_to_rows, scale, square_sum};
