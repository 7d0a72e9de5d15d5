//! The rules as one pass over slices.

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
    match kind {
        OptimizerKind::Adamw => kernels::adamw(values, gradient, first, second, &n),
        OptimizerKind::Sgd => kernels::sgd(values, gradient, first, &n),
        OptimizerKind::Lion => kernels::lion(values, gradient, first, &n),
        OptimizerKind::Lamb => lamb(n, values, gradient, first, second),
    }
}

/// AdamW's direction, rescaled to the length of the parameter (You et al. 2020).
fn lamb(n: Numbers, values: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32]) {
    let mut direction = vec![0.0; values.len()];
    kernels::lamb_direction(&mut direction, values, gradient, first, second, &n);
    let (value, length) = (kernels::square_sum(values).sqrt(), kernels::square_sum(&direction).sqrt());
    let ratio = if value > 0.0 && length > 0.0 { value / length } else { 1.0 };
    kernels::add_scaled(values, &direction, -(f64::from(n.rate) * ratio) as f32);
}
