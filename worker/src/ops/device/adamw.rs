//! AdamW step on a device, value by value.

use super::{CubeValues, dense, of_each, owned, values};
use crate::ops::kernels::UpdateCoefficients;
use burn::backend::Cube;
use burn::tensor::Tensor;
use cubecl::prelude::*;

/// Performs an AdamW step on a device: returns the new value and moments of one parameter, in place if not
/// shared.
pub(crate) fn adamw(
    n: UpdateCoefficients,
    value: Tensor<1>,
    gradient: Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    let gradient = dense(values(gradient));
    let changed = [value, first, second].map(|tensor| owned(values(tensor)));
    let [own, of, with] = &changed;
    let count = gradient.meta.shape().iter().product();
    let (cubes, cube, indices) = of_each(count, [&gradient, own, of, with]);
    let [value, first, second] =
        changed.each_ref().map(|tensor: &CubeValues| tensor.clone().into_buffer_arg());
    adamw_step::launch(
        &gradient.client.clone(),
        cubes,
        cube,
        indices,
        gradient.into_buffer_arg(),
        value,
        first,
        second,
        n.scale,
        n.beta1,
        n.beta2,
        n.epsilon,
        n.rate,
        1.0 - n.rate * n.decay,
        n.correction1,
        n.correction2,
    );
    let [value, first, second] = changed.map(Tensor::from_primitive::<Cube>);
    (value, first, second)
}

/// Kernel: an Adam step with decoupled weight decay; `keep` is the factor that the decay leaves of a value.
#[cube(launch, address_type = "dynamic")]
fn adamw_step(
    gradient: &[f32],
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    scale: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    rate: f32,
    keep: f32,
    correction1: f32,
    correction2: f32,
) {
    if ABSOLUTE_POS < values.len() {
        let g = gradient[ABSOLUTE_POS] * scale;
        let m = beta1 * first[ABSOLUTE_POS] + (1.0f32 - beta1) * g;
        let v = beta2 * second[ABSOLUTE_POS] + (1.0f32 - beta2) * g * g;
        first[ABSOLUTE_POS] = m;
        second[ABSOLUTE_POS] = v;
        let step = rate * (m * correction1) / ((v * correction2).sqrt() + epsilon);
        values[ABSOLUTE_POS] = values[ABSOLUTE_POS] * keep - step;
    }
}
