//! Optimizer steps on the host: one pass over slices, in chunks.

use crate::ops::chunks::{self, VALUES};
use crate::ops::kernels::{self, UpdateCoefficients};
use dtrain_recipes::OptimizerKind;

/// Performs an optimizer step of one parameter. All slices have the same length; `second` is empty if the
/// optimizer has none.
pub(super) fn step(
    kind: OptimizerKind,
    n: UpdateCoefficients,
    values: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    let parts = values.chunks_mut(VALUES).zip(gradient.chunks(VALUES)).zip(first.chunks_mut(VALUES));
    match kind {
        OptimizerKind::Adamw => chunks::each(parts.zip(second.chunks_mut(VALUES)), |(((p, g), m), v)| {
            kernels::adamw(p, g, m, v, &n);
        }),
        OptimizerKind::Sgd => chunks::each(parts, |((p, g), m)| kernels::sgd(p, g, m, &n)),
        OptimizerKind::Lion => chunks::each(parts, |((p, g), m)| kernels::lion(p, g, m, &n)),
        OptimizerKind::Lamb => lamb(n, values, gradient, first, second),
    }
}

/// Performs a LAMB step: the AdamW update, rescaled to the norm of the parameter (You et al. 2020).
fn lamb(n: UpdateCoefficients, values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
    let direction = lamb_direction(n, values, gradient, first, second);
    let factor = lamb_factor(n.rate, square(values), square(&direction));
    add_scaled(values, &direction, factor);
}

/// Updates the moments, and returns the direction of an AdamW step with the weight decay.
pub(super) fn lamb_direction(
    n: UpdateCoefficients,
    values: &[f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
) -> Vec<f32> {
    let mut direction = vec![0.0; values.len()];
    let parts = direction.chunks_mut(VALUES).zip(values.chunks(VALUES)).zip(gradient.chunks(VALUES));
    let moments = first.chunks_mut(VALUES).zip(second.chunks_mut(VALUES));
    chunks::each(parts.zip(moments), |(((d, p), g), (m, v))| kernels::lamb_direction(d, p, g, m, v, &n));
    direction
}

/// Returns the factor of LAMB's direction from the squared L2 norms of the values (`own`) and of the
/// direction (`other`); the ratio of both is 1 if either is zero.
pub(super) fn lamb_factor(rate: f32, own: f64, other: f64) -> f32 {
    let (own, other) = (own.sqrt(), other.sqrt());
    let ratio = if own > 0.0 && other > 0.0 { own / other } else { 1.0 };
    -(f64::from(rate) * ratio) as f32
}

/// Computes `values += factor · direction`.
pub(super) fn add_scaled(values: &mut [f32], direction: &[f32], factor: f32) {
    let parts = values.chunks_mut(VALUES).zip(direction.chunks(VALUES));
    chunks::each(parts, |(p, d)| kernels::add_scaled(p, d, factor));
}

/// Returns the squared L2 norm of `values`, summed chunk by chunk in order.
pub(super) fn square(values: &[f32]) -> f64 {
    chunks::map(values.chunks(VALUES), kernels::square_sum).into_iter().sum()
}
