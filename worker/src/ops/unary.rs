//! Operations on one tensor that define their gradient as tensors, so that they run on every device.

use super::custom_autograd::finish;
#[cfg(feature = "device")]
use burn::backend::Cube;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::Tensor;

/// Returns `x`; the backward pass calls `seen` with its gradient.
pub(super) fn tap(x: Tensor<3>, seen: impl FnOnce(Tensor<3>) + Send + 'static) -> Tensor<3> {
    let value = x.clone().inner();
    let gradient = move |d: Tensor<3>| {
        seen(d.clone());
        d
    };
    unary(x, value, gradient)
}

/// Returns `compute(x)`, of which only `x` is saved: backward recomputes it.
pub(super) fn recompute_in_backward(
    x: Tensor<3>,
    compute: impl Fn(Tensor<3>) -> Tensor<3> + Send + 'static,
) -> Tensor<3> {
    let input = x.clone().inner();
    let value = compute(input.clone());
    if !x.is_tracked() {
        return value;
    }
    let gradient = move |d: Tensor<3>| {
        let input = input.autodiff().require_grad();
        let mut found = (compute(input.clone()) * d.autodiff()).sum().backward();
        input.grad_remove(&mut found).expect("what is computed depends on its input")
    };
    unary(x, value, gradient)
}

/// Wraps `value` as the result of an operation on `x`, which is tracked. `gradient` computes the gradient of
/// `x` from that of the result, without autodiff.
fn unary(
    x: Tensor<3>,
    value: Tensor<3>,
    gradient: impl FnOnce(Tensor<3>) -> Tensor<3> + Send + 'static,
) -> Tensor<3> {
    #[cfg(feature = "device")]
    if !crate::device::is_host(&x.device().inner()) {
        return unary_on::<Cube>(x, value, gradient);
    }
    unary_on::<Flex>(x, value, gradient)
}

fn unary_on<B: Backend>(
    x: Tensor<3>,
    value: Tensor<3>,
    gradient: impl FnOnce(Tensor<3>) -> Tensor<3> + Send + 'static,
) -> Tensor<3>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    const ONE: &str = "an operation, its result and its gradient are on one device";
    let (_, guard) = x.try_into_primitive::<Autodiff<B>>().expect(ONE).into_parts();
    let value = value.try_into_primitive::<B>().expect(ONE);
    let gradient = move |d, _: [bool; 1]| {
        let d = gradient(Tensor::from_primitive::<B>(d));
        vec![Some(d.try_into_primitive::<B>().expect(ONE))]
    };
    Tensor::from_primitive::<Autodiff<B>>(finish::<B, 1>([guard], value, gradient))
}
