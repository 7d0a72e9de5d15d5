//! The models: which parameters each part has, and how a part computes. Nothing here knows of micro-batches,
//! gradients or ranks; see [`crate::stage`].

pub(crate) mod cnn;
pub(crate) mod decoder;
pub(crate) mod experts;
pub(crate) mod initial;
pub(crate) mod mlp;

use crate::ops::{self, Arithmetic, Factor, Later, Measured, Share};
use crate::parallel::Partners;
use crate::stage::{Parameter, Samples};
use burn::tensor::Tensor;
use dtrain_protocol::Region;
use dtrain_recipes::Model;
use initial::Initial;
use std::ops::Range;

/// A part of a model that is one autodiff graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// From samples to the first activation.
    Embedding,
    /// One of the model's equal blocks.
    Block(u32),
    /// From the last activation to the loss.
    Head,
}

/// A parameter as its model declares it.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Global name, such as `blocks.3.ffn.up.weight`.
    pub(crate) name: String,
    /// Length of the prefix that only tells the block, such as `blocks.3.`.
    prefix: usize,
    /// Dimensions.
    pub(crate) shape: Vec<usize>,
    /// How it begins.
    pub(crate) initial: Initial,
}

impl Spec {
    fn new(prefix: &str, short: &str, shape: &[usize], initial: Initial) -> Self {
        Self { name: format!("{prefix}{short}"), prefix: prefix.len(), shape: shape.to_vec(), initial }
    }

    /// The name inside its part, such as `ffn.up.weight`.
    pub(crate) fn short(&self) -> &str {
        &self.name[self.prefix..]
    }
}

/// The parts of `blocks` with their parameters, first to last; empty for a foreign command.
pub(crate) fn parts(model: &Model, blocks: Range<u32>) -> Vec<(Part, Vec<Spec>)> {
    let specs: &dyn Fn(Part) -> Vec<Spec> = match model {
        Model::Decoder(decoder) => &|part| decoder::specs(decoder, part),
        Model::Mlp(mlp) => &|part| mlp::specs(mlp, part),
        Model::Cnn(cnn) => &|part| cnn::specs(cnn, part),
        Model::Command(_) => return Vec::new(),
    };
    let first = (blocks.start == 0).then_some(Part::Embedding);
    let last = (blocks.end == model.blocks()).then_some(Part::Head);
    let parts = first.into_iter().chain(blocks.map(Part::Block)).chain(last);
    parts.map(|part| (part, specs(part))).collect()
}

/// What a part gives.
pub(crate) enum Output {
    /// The next activation, and what adds to the mean loss beside the cross-entropy: a tensor of one element.
    Activation(Tensor<3>, Option<Tensor<1>>),
    /// The mean loss as a tensor of one element, and figures for people.
    Loss(Tensor<1>, Measured),
}

/// The weights of one part, found by their short names.
pub(crate) struct Weights<'a> {
    /// Short name, parameter and flat values.
    pub(crate) entries: Vec<(&'a str, &'a Parameter, Tensor<1>)>,
    /// Where gradients of matrices may be left, by place among the entries.
    pub(crate) later: Option<Later>,
}

impl Weights<'_> {
    /// The parameter called `short` with `D` dimensions; `None` when the part has none of that name.
    pub(crate) fn find<const D: usize>(&self, short: &str) -> Option<Tensor<D>> {
        self.entries.iter().find(|(name, ..)| *name == short).map(|(_, parameter, flat)| {
            let shape: [usize; D] =
                parameter.shape.as_slice().try_into().expect("a parameter is read with its own rank");
            flat.clone().reshape(shape)
        })
    }

    /// The parameter called `short` as a linear layer multiplies by it; `None` when the part has none of that name.
    pub(crate) fn find_factor(&self, short: &str) -> Option<Factor> {
        let place = self.entries.iter().position(|(name, ..)| *name == short)?;
        Some(Factor::new(self.get(short), place, self.later.clone()))
    }

    /// As [`Weights::find_factor`], of a parameter which the part must have.
    pub(crate) fn factor(&self, short: &str) -> Factor {
        self.find_factor(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// The parameter called `short`, which the part must have.
    pub(crate) fn get<const D: usize>(&self, short: &str) -> Tensor<D> {
        self.find(short).unwrap_or_else(|| panic!("the part declares no parameter `{short}`"))
    }

    /// Dimensions of what this rank holds of the parameter called `short`, which the part must have.
    pub(crate) fn shape(&self, short: &str) -> &[usize] {
        let found = self.entries.iter().find(|(name, ..)| *name == short);
        found.map_or_else(|| panic!("the part declares no parameter `{short}`"), |(_, one, _)| &one.shape)
    }

    /// Where what this rank holds of the parameter called `short` lies along `dimension`; `None` when the part has none
    /// of that name.
    #[expect(clippy::cast_possible_truncation, reason = "sides of what lies in memory")]
    pub(crate) fn share(&self, short: &str, dimension: usize) -> Option<Share> {
        self.entries.iter().find(|(name, ..)| *name == short).map(|(_, parameter, _)| {
            let Region { shape, sides } = &parameter.region;
            Share { begin: sides[dimension].start as usize, of: shape[dimension] as usize }
        })
    }
}

/// Everything about a model that does not change between forward passes.
pub(crate) struct Network {
    pub(crate) model: Model,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) rotary: Option<crate::ops::Rotary>,
    /// The ranks that compute the same passes.
    pub(crate) partners: Partners,
}

impl Network {
    pub(crate) fn new(model: &Model, arithmetic: Arithmetic, partners: Partners) -> Self {
        let rotary = match model {
            Model::Decoder(decoder) => decoder::rotary(decoder, &partners.context),
            Model::Mlp(_) | Model::Cnn(_) | Model::Command(_) => None,
        };
        Self { model: model.clone(), arithmetic, rotary, partners }
    }

    /// The first activation. `[samples, length, width]`
    pub(crate) fn embed(
        &self,
        weights: &Weights<'_>,
        samples: &Samples<'_>,
        device: &burn::tensor::Device,
    ) -> Tensor<3> {
        match &self.model {
            Model::Decoder(_) => decoder::embed(self, weights, samples),
            Model::Mlp(_) => mlp::rows(samples, device),
            Model::Cnn(cnn) => cnn::stem(cnn, weights, mlp::rows(samples, device)),
            Model::Command(_) => unreachable!("a foreign command has no parts"),
        }
    }

    /// Block `index` of the whole model.
    pub(crate) fn block(&self, index: u32, weights: &Weights<'_>, x: Tensor<3>) -> Output {
        match &self.model {
            Model::Decoder(decoder) => decoder::block(self, decoder, weights, x),
            Model::Mlp(mlp) => Output::Activation(mlp::layer(self, mlp, weights, x), None),
            Model::Cnn(cnn) => Output::Activation(cnn::block(cnn, index, weights, x), None),
            Model::Command(_) => unreachable!("a foreign command has no parts"),
        }
    }

    /// The mean loss of one prediction for each of `targets`, and its figures.
    pub(crate) fn loss(&self, weights: &Weights<'_>, x: Tensor<3>, targets: &[u32]) -> (Tensor<1>, Measured) {
        let logits = self.logits(weights, x);
        match &self.model {
            Model::Decoder(_) => decoder::loss(self, weights, logits, targets),
            Model::Mlp(_) | Model::Cnn(_) => ops::cross_entropy(self.arithmetic, logits, targets),
            Model::Command(_) => unreachable!("a foreign command has no parts"),
        }
    }

    /// Scores before the softmax of the classes whose weights this rank holds, one row for each prediction.
    /// `[predictions, classes]`
    pub(crate) fn logits(&self, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
        match &self.model {
            Model::Decoder(decoder) => decoder::logits(self, decoder, weights, x),
            Model::Mlp(_) => mlp::logits(self, weights, x),
            Model::Cnn(_) => cnn::logits(self, weights, x),
            Model::Command(_) => unreachable!("a foreign command has no parts"),
        }
    }
}
