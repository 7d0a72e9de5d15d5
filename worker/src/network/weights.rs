//! The weights of a part, as its forward reads them.

use crate::ops::{DeferredWeightGrads, LinearWeight, VocabRange};
use crate::stage::ModelParameter;
use burn::tensor::Tensor;
use dtrain_protocol::Region;

/// The weights of one part, found by their short names.
pub struct Weights<'a> {
    /// Short name, parameter and flat values; those that are frozen are the last.
    pub(crate) entries: Vec<(&'a str, &'a ModelParameter, Tensor<1>)>,
    /// Number of parameters that are trained.
    pub(crate) trained: usize,
    /// Where gradients of matrices may be left, by place among the entries.
    pub(crate) later: Option<DeferredWeightGrads>,
}

impl Weights<'_> {
    /// The parameter called `short` with `D` dimensions; `None` when the part has none of that name.
    pub fn find<const D: usize>(&self, short: &str) -> Option<Tensor<D>> {
        let place = self.entries.iter().position(|(name, ..)| *name == short)?;
        Some(self.nth(place))
    }

    /// The parameter at `place` in the order in which the part declared them. Panics when it has other than `D` dimensions.
    pub(crate) fn nth<const D: usize>(&self, place: usize) -> Tensor<D> {
        let (_, parameter, flat) = &self.entries[place];
        let shape: [usize; D] =
            parameter.shape.as_slice().try_into().expect("a parameter is read with its own rank");
        flat.clone().reshape(shape)
    }

    /// The parameter called `short`, which the part must have.
    pub fn get<const D: usize>(&self, short: &str) -> Tensor<D> {
        self.find(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// The parameter called `short` as a linear layer multiplies by it; `None` when the part has none of that name.
    pub(crate) fn find_factor(&self, short: &str) -> Option<LinearWeight> {
        let place = self.entries.iter().position(|(name, ..)| *name == short)?;
        let later = self.later.clone().filter(|_| place < self.trained);
        Some(LinearWeight::new(self.get(short), place, later))
    }

    /// As [`Weights::find_factor`], of a parameter which the part must have.
    pub(crate) fn factor(&self, short: &str) -> LinearWeight {
        self.find_factor(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// Dimensions of what this rank holds of the parameter called `short`, which the part must have.
    pub fn shape(&self, short: &str) -> &[usize] {
        let found = self.entries.iter().find(|(name, ..)| *name == short);
        found.map_or_else(|| panic!("the part declares no parameter `{short}`"), |(_, one, _)| &one.shape)
    }

    /// Where what this rank holds of the parameter called `short` lies along `dimension`; `None` when the part has none
    /// of that name.
    #[expect(clippy::cast_possible_truncation, reason = "sides of what lies in memory")]
    pub(crate) fn share(&self, short: &str, dimension: usize) -> Option<VocabRange> {
        self.entries.iter().find(|(name, ..)| *name == short).map(|(_, parameter, _)| {
            let Region { shape, sides } = &parameter.region;
            VocabRange { begin: sides[dimension].start as usize, of: shape[dimension] as usize }
        })
    }
}
