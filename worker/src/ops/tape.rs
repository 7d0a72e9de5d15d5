//! Lets an operation on the host bring its own gradient.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Flex};
use burn::tensor::{Tensor, TensorData};
use std::sync::{Arc, Mutex};

/// Most inputs of an operation: a projection of one input by three weights with biases, plus a residual.
const INPUTS: usize = 8;

/// An argument of an operation.
pub(crate) enum Input {
    Constant(FlexTensor),
    Tracked(FloatTensor<Autodiff<Flex>>),
}

/// Gradients of the inputs, in their order, from that of the output; only those asked for need be there.
pub(crate) type Gradient = Box<dyn FnOnce(FlexTensor, [bool; INPUTS]) -> Vec<Option<FlexTensor>> + Send>;

/// `tensor` as an argument; panics when it is not on the host.
pub(crate) fn input<const D: usize>(tensor: Tensor<D>) -> Input {
    const HOST: &str = "fused operations read tensors on the host";
    if tensor.is_autodiff() {
        Input::Tracked(tensor.try_into_primitive::<Autodiff<Flex>>().expect(HOST))
    } else {
        Input::Constant(tensor.try_into_primitive::<Flex>().expect(HOST))
    }
}

/// Applies `run` to the values of `inputs` and puts its gradient on the tape, when any input is on one.
pub(crate) fn record<const D: usize>(
    inputs: Vec<Input>,
    run: impl FnOnce(Vec<FlexTensor>) -> (FlexTensor, Gradient),
) -> Tensor<D> {
    if inputs.iter().all(|input| matches!(input, Input::Constant(_))) {
        let values = inputs.into_iter().map(|input| match input {
            Input::Constant(value) => value,
            Input::Tracked(_) => unreachable!("all inputs are constant"),
        });
        return Tensor::from_primitive::<Flex>(run(values.collect()).0);
    }
    let constant = <Autodiff<Flex> as AutodiffBackend>::from_inner;
    let (mut values, mut guards) = (Vec::new(), Vec::new());
    for input in inputs {
        let tracked = match input {
            Input::Constant(value) => constant(value),
            Input::Tracked(tracked) => tracked,
        };
        let (value, guard) = tracked.into_parts();
        values.push(value);
        guards.push(guard);
    }
    guards.resize_with(INPUTS.max(guards.len()), || constant(vector(Vec::new(), [0])).into_parts().1);
    let guards: [_; INPUTS] = guards.try_into().unwrap_or_else(|_| panic!("at most {INPUTS} inputs"));
    let (output, gradient) = run(values);
    let output = match Recorded.prepare::<NoCheckpointing>(guards).compute_bound().stateful() {
        OpsKind::Tracked(operation) => operation.finish(Tape(Arc::new(Mutex::new(Some(gradient)))), output),
        OpsKind::UnTracked(operation) => operation.finish(output),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}

/// A tensor of these values.
pub(crate) fn vector<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// The values of a dense tensor.
pub(crate) fn slice(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the tensor is dense and f32")
}

/// The tensor with its values one after the other from the first on.
pub(crate) fn dense(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        return tensor;
    }
    tensor.to_contiguous()
}

/// The dimensions of a tensor.
pub(crate) fn shape<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    let layout = tensor.layout();
    let shape: Vec<usize> = layout.shape().iter().copied().collect();
    shape.try_into().unwrap_or_else(|shape| panic!("wanted {D} dimensions, found {shape:?}"))
}

/// The saved gradient; it runs once, and so may reuse what it saved.
#[derive(Clone)]
struct Tape(Arc<Mutex<Option<Gradient>>>);

impl std::fmt::Debug for Tape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tape")
    }
}

#[derive(Debug)]
struct Recorded;

impl Backward<Flex, INPUTS> for Recorded {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, INPUTS>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let output = gradients.consume::<Flex>(&ops.node);
        let gradient = ops.state.0.lock().ok().and_then(|mut gradient| gradient.take());
        let gradient = gradient.expect("a graph is walked back once");
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(gradient(output, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
