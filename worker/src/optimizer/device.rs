//! Optimizer steps as tensor operations, for devices other than the host.

use crate::ops::kernels::UpdateCoefficients;
use burn::tensor::Tensor;
use dtrain_recipes::OptimizerKind;

/// Performs an optimizer step on a device: returns the new value and moments of one parameter.
pub(super) fn step(
    kind: OptimizerKind,
    n: UpdateCoefficients,
    value: Tensor<1>,
    gradient: Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
) -> (Tensor<1>, Tensor<1>, Tensor<1>) {
    #[cfg(feature = "device")]
    if kind == OptimizerKind::Adamw && !crate::device::is_host(&value.device()) {
        return crate::ops::device::adamw(n, value, gradient, first, second);
    }
    let gradient = gradient * n.scale;
    match kind {
        OptimizerKind::Adamw => {
            let (first, second) = averages(n, gradient, first, second);
            let value = value * (1.0 - n.rate * n.decay) - direction(n, &first, &second) * n.rate;
            (value, first, second)
        }
        OptimizerKind::Sgd => {
            let first = first * n.beta1 + gradient;
            (value * (1.0 - n.rate * n.decay) - first.clone() * n.rate, first, second)
        }
        OptimizerKind::Lion => {
            let sign = (first.clone() * n.beta1 + gradient.clone() * (1.0 - n.beta1)).sign();
            let first = first * n.beta2 + gradient * (1.0 - n.beta2);
            (value * (1.0 - n.rate * n.decay) - sign * n.rate, first, second)
        }
        OptimizerKind::Lamb => {
            let (first, second) = averages(n, gradient, first, second);
            let direction = direction(n, &first, &second) + value.clone() * n.decay;
            let length = |x: &Tensor<1>| (x.clone() * x.clone()).sum().sqrt();
            let (own, other) = (length(&value), length(&direction));
            // If either length is zero, the ratio is 1.
            let unknown = own.clone().equal_elem(0.0).bool_or(other.clone().equal_elem(0.0));
            let ratio = (own / other).mask_fill(unknown, 1.0);
            (value - direction * (ratio * n.rate), first, second)
        }
    }
}

/// Returns both moments of Adam, updated by the gradient.
fn averages(
    n: UpdateCoefficients,
    gradient: Tensor<1>,
    first: Tensor<1>,
    second: Tensor<1>,
) -> (Tensor<1>, Tensor<1>) {
    let square = gradient.clone() * gradient.clone();
    (first * n.beta1 + gradient * (1.0 - n.beta1), second * n.beta2 + square * (1.0 - n.beta2))
}

/// Returns the direction of an Adam step: the step for a learning rate of one.
fn direction(n: UpdateCoefficients, first: &Tensor<1>, second: &Tensor<1>) -> Tensor<1> {
    first.clone() * n.correction1 / ((second.clone() * n.correction2).sqrt() + n.epsilon)
}
