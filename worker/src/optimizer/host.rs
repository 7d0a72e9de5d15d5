//! The rules as one pass over slices, in chunks.

use crate::ops::chunks::{self, VALUES};
use crate::ops::kernels::{self, Numbers};
use dtrain_recipes::OptimizerKind;

/// One step of one parameter. All slices have the same length; `second` is empty when the rule has none.
pub(super) fn step(
    kind: OptimizerKind,
    n: Numbers,
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

/// AdamW's direction, rescaled to the length of the parameter (You et al. 2020).
fn lamb(n: Numbers, values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
    let mut direction = vec![0.0; values.len()];
    let parts = direction.chunks_mut(VALUES).zip(values.chunks(VALUES)).zip(gradient.chunks(VALUES));
    let moments = first.chunks_mut(VALUES).zip(second.chunks_mut(VALUES));
    chunks::each(parts.zip(moments), |(((d, p), g), (m, v))| kernels::lamb_direction(d, p, g, m, v, &n));
    let (own, other) = (length(values), length(&direction));
    let ratio = if own > 0.0 && other > 0.0 { own / other } else { 1.0 };
    let factor = -(f64::from(n.rate) * ratio) as f32;
    let parts = values.chunks_mut(VALUES).zip(direction.chunks(VALUES));
    chunks::each(parts, |(p, d)| kernels::add_scaled(p, d, factor));
}

/// L2 norm, summed chunk by chunk in order.
fn length(values: &[f32]) -> f64 {
    chunks::map(values.chunks(VALUES), kernels::square_sum).into_iter().sum::<f64>().sqrt()
}
