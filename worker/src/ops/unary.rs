//! Operations of one input that bring their own gradient as tensors, so that they run on every device.

#[cfg(feature = "cuda")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::Tensor;
use std::sync::{Arc, Mutex};

/// The gradient of the input from that of the output, without autodiff.
type Gradient = Box<dyn FnOnce(Tensor<3>) -> Tensor<3> + Send>;

/// `x`, whose gradient `seen` is told when it passes by on its way back.
pub(super) fn tap(x: Tensor<3>, seen: impl FnOnce(Tensor<3>) + Send + 'static) -> Tensor<3> {
    let value = x.clone().inner();
    let gradient = move |d: Tensor<3>| {
        seen(d.clone());
        d
    };
    unary(x, value, Box::new(gradient))
}

/// `compute(x)`, of which only `x` is kept: backward computes it again.
pub(super) fn again(x: Tensor<3>, compute: impl Fn(Tensor<3>) -> Tensor<3> + Send + 'static) -> Tensor<3> {
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
    unary(x, value, Box::new(gradient))
}

/// `value` as the result of an operation on `x`, which is on a tape.
fn unary(x: Tensor<3>, value: Tensor<3>, gradient: Gradient) -> Tensor<3> {
    #[cfg(feature = "cuda")]
    if !crate::device::is_host(&x.device().inner()) {
        return unary_on::<Cube>(x, value, gradient);
    }
    unary_on::<Flex>(x, value, gradient)
}

fn unary_on<B: Backend>(x: Tensor<3>, value: Tensor<3>, gradient: Gradient) -> Tensor<3>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    const ONE: &str = "an operation and its result are on one device";
    let (_, guard) = x.try_into_primitive::<Autodiff<B>>().expect(ONE).into_parts();
    let value = value.try_into_primitive::<B>().expect(ONE);
    let output = match Unary.prepare::<NoCheckpointing>([guard]).compute_bound().stateful() {
        OpsKind::Tracked(operation) => operation.finish(Tape(Arc::new(Mutex::new(Some(gradient)))), value),
        OpsKind::UnTracked(operation) => operation.finish(value),
    };
    Tensor::from_primitive::<Autodiff<B>>(output)
}

/// The saved gradient; it runs once.
#[derive(Clone)]
struct Tape(Arc<Mutex<Option<Gradient>>>);

impl std::fmt::Debug for Tape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tape")
    }
}

#[derive(Debug)]
struct Unary;

impl<B: Backend> Backward<B, 1> for Unary
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        const ONE: &str = "a gradient is on the device of its value";
        let output = Tensor::from_primitive::<B>(gradients.consume::<B>(&ops.node));
        let gradient = ops.state.0.lock().ok().and_then(|mut gradient| gradient.take());
        let gradient = gradient.expect("a graph is walked back once");
        let [parent] = ops.parents;
        let input = gradient(output);
        if let Some(parent) = parent {
            gradients.register::<B>(parent.id, input.try_into_primitive::<B>().expect(ONE));
        }
    }
}
