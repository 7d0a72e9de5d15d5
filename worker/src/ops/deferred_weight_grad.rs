//! Deferred weight gradients: computed after the backward pass, when nothing is more urgent (zero-bubble
//! schedules).
//!
//! The stage before waits for the gradient of the input, not for those of the weights. So a linear layer
//! may save its input and the gradient of its output, and compute the weight gradient later, with the same
//! bits.

use super::{Arithmetic, unary};
use burn::tensor::Tensor;
use std::sync::{Arc, Mutex};

/// A function that computes gradients of weights, each with the index of its parameter in the part.
type WeightGradFn = Box<dyn FnOnce() -> Vec<(usize, Tensor<1>)> + Send>;

/// The queue of deferred weight gradients of one part's backward pass.
#[derive(Clone, Default)]
pub(crate) struct DeferredWeightGrads(Arc<Mutex<Vec<WeightGradFn>>>);

impl DeferredWeightGrads {
    /// Computes the deferred gradients, each flat and with the index of its parameter.
    pub(crate) fn compute(&self) -> Vec<(usize, Tensor<1>)> {
        let left = std::mem::take(&mut *self.0.lock().expect("no thread panics while it holds the list"));
        left.into_iter().flat_map(|left| left()).collect()
    }

    fn defer(&self, left: WeightGradFn) {
        self.0.lock().expect("no thread panics while it holds the list").push(left);
    }
}

/// The weight of a linear layer, `[in, out]`.
pub(crate) struct LinearWeight {
    values: Tensor<2>,
    /// Queue for the deferred gradient, and the index of the parameter.
    home: Option<(DeferredWeightGrads, usize)>,
    is_transposed: bool,
}

impl LinearWeight {
    /// Creates the weight of the parameter at index `place`, whose gradient may be deferred to `later`.
    pub(crate) fn new(values: Tensor<2>, place: usize, later: Option<DeferredWeightGrads>) -> Self {
        Self { values, home: later.map(|later| (later, place)), is_transposed: false }
    }

    /// Swaps the rows and columns of the weight.
    pub(crate) fn transpose(self) -> Self {
        Self { values: self.values.transpose(), is_transposed: !self.is_transposed, ..self }
    }
}

impl From<Tensor<2>> for LinearWeight {
    /// Creates a weight whose gradient is computed at once, never deferred.
    fn from(values: Tensor<2>) -> Self {
        Self { values, home: None, is_transposed: false }
    }
}

/// The shape and memory layout of a projection's weight, for its gradient.
pub(super) struct WeightLayout {
    pub(super) columns: usize,
    pub(super) is_transposed: bool,
}

impl WeightLayout {
    fn of(factor: &LinearWeight) -> Self {
        Self { columns: factor.values.dims()[1], is_transposed: factor.is_transposed }
    }
}

/// Computes [`super::project`], deferring the gradients of its weights if all weights allow it.
pub(super) fn project(
    arithmetic: Arithmetic,
    x: Tensor<3>,
    factors: Vec<LinearWeight>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let compute = |x, values| arithmetic.by.ops().project(arithmetic.precision, x, values, biases, residual);
    let homes: Option<Vec<_>> = factors.iter().map(|factor| factor.home.as_ref()).collect();
    // If the gradient of the input is not needed, there is no reason to defer.
    let Some(homes) = homes.filter(|_| x.is_tracked()) else {
        return compute(x, factors.into_iter().map(|factor| factor.values).collect());
    };
    let later = homes[0].0.clone();
    let places: Vec<_> = homes.into_iter().map(|(_, place)| *place).collect();
    let sides: Vec<_> = factors.iter().map(WeightLayout::of).collect();
    let input = x.clone().inner();
    let y = compute(x, factors.into_iter().map(|factor| factor.values.inner().autodiff()).collect());
    unary::tap(y, move |d| {
        let left = move || {
            let found = arithmetic.by.ops().weight_gradients(arithmetic.precision, input, d, &sides);
            places.into_iter().zip(found).collect()
        };
        later.defer(Box::new(left));
    })
}
