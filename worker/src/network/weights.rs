//! Weights of one part of a model, for its forward pass.

use super::ModelParameter;
use crate::ops::{DeferredWeightGrads, LinearWeight, VocabRange};
use burn::tensor::Tensor;
use dtrain_protocol::Region;

/// The purpose of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardMode {
    /// Training: terms that only training adds to the loss count, as load balancing does.
    Train,
    /// Validation, prediction and generation: the loss is the objective alone.
    Evaluate,
}

/// The weights of one part of a model, found by their short names.
pub struct Weights<'a> {
    /// Purpose of the forward pass that reads them.
    pub(crate) mode: ForwardMode,
    /// Short name, parameter and flat values of each weight; frozen ones come last.
    pub(crate) entries: Vec<(&'a str, &'a ModelParameter, Tensor<1>)>,
    /// Number of trained parameters, which come before the frozen ones.
    pub(crate) trained: usize,
    /// Queue for the deferred gradients of matrices, by index in `entries`; `None` if none are deferred.
    pub(crate) later: Option<DeferredWeightGrads>,
}

impl Weights<'_> {
    /// Returns the purpose of the forward pass.
    pub fn mode(&self) -> ForwardMode {
        self.mode
    }

    /// Returns the parameter `short` with `D` dimensions; `None` if the part lacks it.
    pub fn find<const D: usize>(&self, short: &str) -> Option<Tensor<D>> {
        let place = self.entries.iter().position(|(name, ..)| *name == short)?;
        Some(self.nth(place))
    }

    /// Returns the values of the parameter at index `place` in the order of declaration. Panics if it has
    /// other than `D` dimensions.
    pub(crate) fn nth<const D: usize>(&self, place: usize) -> Tensor<D> {
        let (_, parameter, flat) = &self.entries[place];
        let shape: [usize; D] =
            parameter.shape.as_slice().try_into().expect("a parameter is read with its own rank");
        flat.clone().reshape(shape)
    }

    /// Returns the values of the parameter `short`, which has `D` dimensions; panics if the part lacks
    /// it.
    pub fn get<const D: usize>(&self, short: &str) -> Tensor<D> {
        self.find(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// Returns the parameter `short` as the weight of a linear layer; `None` if the part lacks it.
    pub(crate) fn find_factor(&self, short: &str) -> Option<LinearWeight> {
        let place = self.entries.iter().position(|(name, ..)| *name == short)?;
        let later = self.later.clone().filter(|_| place < self.trained);
        Some(LinearWeight::new(self.get(short), place, later))
    }

    /// Returns the parameter `short` as the weight of a linear layer; panics if the part lacks it.
    pub(crate) fn factor(&self, short: &str) -> LinearWeight {
        self.find_factor(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// Returns the dimensions of this rank's part of the parameter `short`; panics if the part lacks it.
    pub fn shape(&self, short: &str) -> &[usize] {
        let found = self.entries.iter().find(|(name, ..)| *name == short);
        found.map_or_else(|| panic!("the part declares no parameter `{short}`"), |(_, one, _)| &one.shape)
    }

    /// Returns the range of the parameter `short` that this rank holds along `dimension`; `None` if the
    /// part lacks it.
    #[expect(clippy::cast_possible_truncation, reason = "sides of what lies in memory")]
    pub(crate) fn share(&self, short: &str, dimension: usize) -> Option<VocabRange> {
        self.entries.iter().find(|(name, ..)| *name == short).map(|(_, parameter, _)| {
            let Region { shape, sides } = &parameter.region;
            VocabRange { begin: sides[dimension].start as usize, of: shape[dimension] as usize }
        })
    }
}
