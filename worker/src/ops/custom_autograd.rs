//! Custom gradients: operations that define their own backward, either on values in host memory, wherever
//! the tensors are, or on the tensors of a device.

#[cfg(feature = "device")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
};
use burn::tensor::{Tensor, TensorData};
use std::sync::{Arc, Mutex};

/// Limit on the number of inputs of an operation: a projection of one input by three weights with biases,
/// plus a residual.
pub(super) const INPUTS: usize = 8;

/// An input of an operation with a custom gradient.
pub(crate) struct OpArgument {
    tensor: DispatchTensor,
    is_tracked: bool,
    #[cfg(feature = "device")]
    is_here: bool,
}

/// A backward function: returns the gradients of the inputs, in their order, from that of the output; only
/// the requested ones are needed.
pub(crate) type BackwardFn = Box<dyn FnOnce(FlexTensor, [bool; INPUTS]) -> Vec<Option<FlexTensor>> + Send>;

/// Wraps `tensor` as an input of an operation.
pub(crate) fn input<const D: usize>(tensor: Tensor<D>) -> OpArgument {
    OpArgument {
        is_tracked: tensor.is_autodiff(),
        #[cfg(feature = "device")]
        is_here: tensor.device().inner() == burn::tensor::Device::flex(),
        tensor: tensor.into_dispatch(),
    }
}

/// Computes an operation: applies `run` to the values of `inputs`, and records its gradient on the autodiff
/// tape if any input is tracked.
///
/// Values of another device are copied to the host and the results back, forward and backward.
pub(crate) fn record<const D: usize>(
    inputs: Vec<OpArgument>,
    run: impl FnOnce(Vec<FlexTensor>) -> (FlexTensor, BackwardFn),
) -> Tensor<D> {
    #[cfg(feature = "device")]
    if inputs.iter().any(|input| !input.is_here) {
        return record_here::<Cube, D>(inputs, run);
    }
    record_here::<Flex, D>(inputs, run)
}

/// A backend whose tensors can be read on the host.
trait HostReadable: Backend {
    /// Copies `tensor` to host memory.
    fn fetch(tensor: FloatTensor<Self>) -> FlexTensor;

    /// Copies `values` from host memory to `device`.
    fn put(values: FlexTensor, device: &Device<Self>) -> FloatTensor<Self> {
        Self::float_from_data(Tensor::<1>::from_primitive::<Flex>(values).into_data(), device)
    }
}

impl HostReadable for Flex {
    fn fetch(tensor: FlexTensor) -> FlexTensor {
        tensor
    }

    fn put(values: FlexTensor, _: &Device<Self>) -> FlexTensor {
        values
    }
}

#[cfg(feature = "device")]
impl HostReadable for Cube {
    fn fetch(tensor: FloatTensor<Self>) -> FlexTensor {
        // The number of dimensions in the type differs from that of the tensor, and is not used.
        FlexTensor::from_data(Tensor::<1>::from_primitive::<Self>(tensor).into_data())
    }
}

/// Computes [`record`] for tensors that are all on backend `B`.
fn record_here<B: HostReadable, const D: usize>(
    inputs: Vec<OpArgument>,
    run: impl FnOnce(Vec<FlexTensor>) -> (FlexTensor, BackwardFn),
) -> Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    record_on::<B, D>(inputs, |values| {
        let device = values.first().expect("an operation has an argument").device();
        let (output, gradient) = run(values.into_iter().map(B::fetch).collect());
        let output = B::put(output, &device);
        let gradient = move |d, wanted: [bool; INPUTS]| {
            let found = gradient(B::fetch(d), wanted).into_iter().zip(wanted);
            found.map(|(d, is_wanted)| d.filter(|_| is_wanted).map(|d| B::put(d, &device))).collect()
        };
        (output, Box::new(gradient))
    })
}

/// Computes an operation on inputs that are all on backend `B`, and records its gradient on the autodiff tape
/// if any input is tracked. Nothing leaves the device.
pub(super) fn record_on<B: Backend, const D: usize>(
    inputs: Vec<OpArgument>,
    run: impl FnOnce(Vec<FloatTensor<B>>) -> (FloatTensor<B>, BackwardFnOn<B, INPUTS>),
) -> Tensor<D>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    const ONE: &str = "the arguments of an operation live on one device";
    let constant = |tensor| Tensor::<D>::from_dispatch(tensor).try_into_primitive::<B>().expect(ONE);
    let tracked = |tensor| Tensor::<D>::from_dispatch(tensor).try_into_primitive::<Autodiff<B>>().expect(ONE);
    if inputs.iter().all(|input| !input.is_tracked) {
        let values = inputs.into_iter().map(|input| constant(input.tensor)).collect();
        return Tensor::from_primitive::<B>(run(values).0);
    }
    let lift = <Autodiff<B> as AutodiffBackend>::from_inner;
    let (mut values, mut guards) = (Vec::new(), Vec::new());
    for input in inputs {
        let argument = if input.is_tracked { tracked(input.tensor) } else { lift(constant(input.tensor)) };
        let (value, guard) = argument.into_parts();
        values.push(value);
        guards.push(guard);
    }
    let any = values.first().expect("an operation has an argument").clone();
    guards.resize_with(INPUTS.max(guards.len()), || lift(any.clone()).into_parts().1);
    // A sole owner of the values may change them in place.
    drop(any);
    let guards: [_; INPUTS] = guards.try_into().unwrap_or_else(|_| panic!("at most {INPUTS} inputs"));
    let (output, gradient) = run(values);
    Tensor::from_primitive::<Autodiff<B>>(finish(guards, output, gradient))
}

/// Wraps `output` as a tracked tensor: the result of an operation on the tensors of `guards`, with its
/// gradient.
pub(super) fn finish<B: Backend, const N: usize>(
    guards: [NodeGuard; N],
    output: FloatTensor<B>,
    gradient: impl FnOnce(FloatTensor<B>, [bool; N]) -> Vec<Option<FloatTensor<B>>> + Send + 'static,
) -> FloatTensor<Autodiff<B>> {
    match Backward::<B, N>::prepare::<NoCheckpointing>(RecordedOp, guards).compute_bound().stateful() {
        OpsKind::Tracked(operation) => {
            operation.finish(SavedBackward(Arc::new(Mutex::new(Some(Box::new(gradient))))), output)
        }
        OpsKind::UnTracked(operation) => operation.finish(output),
    }
}

/// Creates a tensor of shape `shape` from `values`, in host memory.
pub(crate) fn vector<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Returns the values of `tensor`, which must be dense.
pub(crate) fn slice(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("the tensor is dense and f32")
}

/// Returns `tensor` in dense form: contiguous, and starting at offset 0.
pub(crate) fn dense(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() && tensor.layout().start_offset() == 0 {
        return tensor;
    }
    tensor.to_contiguous()
}

/// Returns the dimensions of a tensor.
pub(crate) fn shape<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    let layout = tensor.layout();
    let shape: Vec<usize> = layout.shape().iter().copied().collect();
    shape.try_into().unwrap_or_else(|shape| panic!("wanted {D} dimensions, found {shape:?}"))
}

/// A backward function like [`BackwardFn`], for `N` inputs on their own backend.
pub(super) type BackwardFnOn<B, const N: usize> =
    Box<dyn FnOnce(FloatTensor<B>, [bool; N]) -> Vec<Option<FloatTensor<B>>> + Send>;

/// A backward function saved on the autodiff tape; it runs once, and so may reuse the saved values.
#[derive(Clone)]
struct SavedBackward<B: Backend, const N: usize>(Arc<Mutex<Option<BackwardFnOn<B, N>>>>);

impl<B: Backend, const N: usize> std::fmt::Debug for SavedBackward<B, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SavedBackward")
    }
}

#[derive(Debug)]
struct RecordedOp;

impl<B: Backend, const N: usize> Backward<B, N> for RecordedOp {
    type State = SavedBackward<B, N>;

    fn backward(self, ops: Ops<Self::State, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let output = gradients.consume::<B>(&ops.node);
        let gradient = ops.state.0.lock().ok().and_then(|mut gradient| gradient.take());
        let gradient = gradient.expect("a graph is walked back once");
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (parent, gradient) in ops.parents.into_iter().zip(gradient(output, wanted)) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
