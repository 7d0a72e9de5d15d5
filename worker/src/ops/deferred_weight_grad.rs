//! Gradients of weights that a backward pass leaves to be computed when there is nothing more urgent.
//!
//! The stage before waits for the gradient of this one's input, and nobody for those of its weights. So a linear layer
//! may keep its input and the gradient of its output, and give that of its weights later, the same to the last bit.

use super::{Arithmetic, unary};
use burn::tensor::Tensor;
use std::sync::{Arc, Mutex};

/// Computes gradients of weights, each with the place of its parameter among those of the part.
type WeightGradFn = Box<dyn FnOnce() -> Vec<(usize, Tensor<1>)> + Send>;

/// What the backward pass of one part has left to be computed.
#[derive(Clone, Default)]
pub(crate) struct DeferredWeightGrads(Arc<Mutex<Vec<WeightGradFn>>>);

impl DeferredWeightGrads {
    /// Computes what was left, flat, each with the place of its parameter.
    pub(crate) fn compute(&self) -> Vec<(usize, Tensor<1>)> {
        let left = std::mem::take(&mut *self.0.lock().expect("no thread panics while it holds the list"));
        left.into_iter().flat_map(|left| left()).collect()
    }

    fn defer(&self, left: WeightGradFn) {
        self.0.lock().expect("no thread panics while it holds the list").push(left);
    }
}

/// A matrix that a linear layer multiplies by. `[in, out]`
pub(crate) struct LinearWeight {
    values: Tensor<2>,
    /// Where its gradient may be left, and the place of its parameter.
    home: Option<(DeferredWeightGrads, usize)>,
    is_transposed: bool,
}

impl LinearWeight {
    /// The parameter at `place`, whose gradient may be left in `later`.
    pub(crate) fn new(values: Tensor<2>, place: usize, later: Option<DeferredWeightGrads>) -> Self {
        Self { values, home: later.map(|later| (later, place)), is_transposed: false }
    }

    /// The same parameter with rows and columns exchanged.
    pub(crate) fn transpose(self) -> Self {
        Self { values: self.values.transpose(), is_transposed: !self.is_transposed, ..self }
    }
}

impl From<Tensor<2>> for LinearWeight {
    /// A matrix whose gradient is never left.
    fn from(values: Tensor<2>) -> Self {
        Self { values, home: None, is_transposed: false }
    }
}

/// A factor of a projection as its gradient needs it.
pub(super) struct WeightLayout {
    pub(super) columns: usize,
    pub(super) is_transposed: bool,
}

impl WeightLayout {
    fn of(factor: &LinearWeight) -> Self {
        Self { columns: factor.values.dims()[1], is_transposed: factor.is_transposed }
    }
}

/// As [`super::project`], leaving gradients of weights where all factors allow it.
pub(super) fn project(
    arithmetic: Arithmetic,
    x: Tensor<3>,
    factors: Vec<LinearWeight>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let compute = |x, values| arithmetic.by.ops().project(arithmetic.precision, x, values, biases, residual);
    let homes: Option<Vec<_>> = factors.iter().map(|factor| factor.home.as_ref()).collect();
    // Where nobody waits for the gradient of the input, there is nothing to leave.
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
