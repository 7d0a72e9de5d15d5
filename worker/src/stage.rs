//! The part of a model that one rank holds: forward and backward of micro-batches, part by part.
//!
//! Every part is an autodiff graph of its own; the backward pass hands the gradient from one to the next. So
//! gradients of a part are final while earlier parts still compute, activations can be dropped and computed
//! again, and a pipeline cuts where it likes. It sums gradients, and does not apply them.

mod parameters;
mod values;

use crate::device;
use crate::gradients::Gradients;
use crate::model::{self, Network, Output, Part, Weights, initial};
use crate::ops::{self, Arithmetic, LossFigures};
use burn::tensor::{Device, Tensor};
use dtrain_recipes::{Model, Precision, Recompute};
use std::collections::BTreeMap;
use std::ops::Range;

pub use parameters::Parameter;
use parameters::{Unit, assemble};
use values::tensor;

/// What a forward pass reads.
#[derive(Clone, Copy, Debug)]
pub enum Samples<'a> {
    /// Sequences of tokens with, for each token, the one that follows; `samples · length` each.
    Tokens {
        /// Tokens.
        inputs: &'a [u32],
        /// The token after each.
        targets: &'a [u32],
        /// Sequences.
        samples: usize,
        /// Tokens of a sequence.
        length: usize,
    },
    /// Rows of a table, or images as `[channels, height, width]`, with their classes.
    Rows {
        /// `samples · width` values.
        values: &'a [f32],
        /// A class for each row.
        classes: &'a [u32],
        /// Rows.
        samples: usize,
        /// Values of a row.
        width: usize,
    },
}

impl<'a> Samples<'a> {
    /// What is to be predicted.
    fn targets(&self) -> &'a [u32] {
        match self {
            Self::Tokens { targets, .. } => targets,
            Self::Rows { classes, .. } => classes,
        }
    }
}

/// What a stage gives for a micro-batch.
#[derive(Clone, Debug)]
pub enum Flow {
    /// What the next stage reads.
    Activation(Tensor<3>),
    /// Figures of the last stage.
    Loss {
        /// Sum of the cross-entropies of all predictions, in nats.
        loss_sum: f64,
        /// Predictions whose most likely class was right.
        hits: u64,
        /// Predictions.
        count: u64,
    },
}

/// Why a stage cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The model is a foreign command.
    #[error("a foreign command has no stage; it is started, not trained by this worker")]
    Foreign,
    /// The blocks are not blocks of the model.
    #[error("blocks {start}..{end} were assigned, but the model has {found}")]
    Blocks {
        /// First block.
        start: u32,
        /// One after the last block.
        end: u32,
        /// Blocks of the model.
        found: u32,
    },
}

/// What backward needs of one part for one micro-batch.
enum Kept {
    /// The graph.
    Graph(Graph),
    /// Only the input; the graph is made again.
    Input(Tensor<3>),
}

struct Graph {
    leaves: Vec<Tensor<1>>,
    input: Option<Tensor<3>>,
    output: Output,
}

/// The part of a model that one rank holds.
pub struct Stage {
    network: Network,
    device: Device,
    recompute: Recompute,
    units: Vec<Unit>,
    parameters: Vec<Parameter>,
    values: Vec<Tensor<1>>,
    gradients: Gradients,
    kept: BTreeMap<u32, Vec<Kept>>,
    host: bool,
}

impl Stage {
    /// Builds the blocks `blocks` of `model` with their first weights, a function of `seed` and names alone.
    ///
    /// The stage begins with the embedding when `blocks` starts at 0, and ends with the head when it ends with
    /// the model. A tied head of a stage without the embedding has its own copy called `embedding.weight`.
    pub fn build(
        model: &Model,
        blocks: Range<u32>,
        seed: u64,
        precision: Precision,
        recompute: Recompute,
        device: &Device,
    ) -> Result<Self, StageError> {
        let host = device::is_host(device);
        let arithmetic = Arithmetic { fused: host && precision == Precision::F32, precision };
        Self::with_arithmetic(model, blocks, seed, arithmetic, recompute, device)
    }

    pub(crate) fn with_arithmetic(
        model: &Model,
        blocks: Range<u32>,
        seed: u64,
        arithmetic: Arithmetic,
        recompute: Recompute,
        device: &Device,
    ) -> Result<Self, StageError> {
        if matches!(model, Model::Command(_)) {
            return Err(StageError::Foreign);
        }
        if blocks.start > blocks.end || blocks.end > model.blocks() {
            let Range { start, end } = blocks;
            return Err(StageError::Blocks { start, end, found: model.blocks() });
        }
        let device = device.clone().inner();
        let (units, parameters, initials) = assemble(model::parts(model, blocks));
        let values = parameters.iter().zip(&initials).map(|(parameter, initial)| {
            tensor(initial::values(*initial, seed, &parameter.name, parameter.range.len()), &device)
        });
        let values = values.collect();
        let host = device::is_host(&device);
        let gradients = Gradients::new(&parameters, &device, host);
        let network = Network::new(model, arithmetic);
        Ok(Self {
            network,
            device,
            recompute,
            units,
            parameters,
            values,
            gradients,
            kept: BTreeMap::new(),
            host,
        })
    }

    /// The parameters, in flat order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Number of parts; [`Parameter::unit`] counts them from 0.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Whether the values lie in host memory.
    pub fn is_on_host(&self) -> bool {
        self.host
    }

    /// The device the values lie on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The parameter that a tied head shares with the embedding, when this stage holds only one of the two:
    /// its gradient must be summed over the first and the last stage.
    pub fn tied_across_stages(&self) -> Option<usize> {
        let Model::Decoder(decoder) = &self.network.model else { return None };
        let whole = self.units.first().map(|u| u.part) == Some(Part::Embedding)
            && self.units.last().map(|u| u.part) == Some(Part::Head);
        if !decoder.tied || whole {
            return None;
        }
        self.parameters.iter().position(|parameter| parameter.name == "embedding.weight")
    }

    /// The gradients summed so far.
    pub fn gradients(&mut self) -> &mut Gradients {
        &mut self.gradients
    }

    /// Forward of micro-batch `micro`: `input` is the activation of the stage before, `None` on the first.
    ///
    /// Keeps what [`Stage::backward`] needs. On the last stage the result is the loss.
    pub fn forward(&mut self, micro: u32, input: Option<Tensor<3>>, samples: &Samples<'_>) -> Flow {
        let mut kept = Vec::with_capacity(self.units.len());
        let mut flow = input;
        let mut figures = LossFigures::default();
        for unit in &self.units {
            if self.forgets(unit) {
                let input = flow.take().expect("a block reads an activation");
                let weights = self.weights(unit, None);
                let Output::Activation(output) = self.compute(unit, &weights, Some(input.clone()), samples)
                else {
                    unreachable!("only the head gives a loss, and it is kept");
                };
                kept.push(Kept::Input(input));
                flow = Some(output);
            } else {
                let graph = self.record(unit, flow.take(), samples);
                match &graph.output {
                    Output::Activation(output) => flow = Some(output.clone().inner()),
                    Output::Loss(_, told) => figures = *told,
                }
                kept.push(Kept::Graph(graph));
            }
        }
        self.kept.insert(micro, kept);
        flow.map_or_else(|| figures.into(), Flow::Activation)
    }

    /// Backward of micro-batch `micro`, whose forward must have run; adds to [`Stage::gradients`].
    ///
    /// On the last stage `upstream` is `None`, and what is added is `weight` times the gradient of the
    /// micro-batch's mean loss. On other stages `upstream` is what the next stage returned, which carries the
    /// weight already. `done` is told each part as soon as its gradients of this micro-batch are added, last
    /// part first. Returns the gradient for the stage before, `None` on the first.
    pub fn backward(
        &mut self,
        micro: u32,
        upstream: Option<Tensor<3>>,
        weight: f32,
        done: &mut dyn FnMut(usize, &mut Gradients),
    ) -> Option<Tensor<3>> {
        let kept = self.kept.remove(&micro);
        let kept = kept.unwrap_or_else(|| panic!("backward of micro-batch {micro} without its forward"));
        let mut upstream = upstream;
        for (index, kept) in kept.into_iter().enumerate().rev() {
            let unit = &self.units[index];
            let graph = match kept {
                Kept::Graph(graph) => graph,
                Kept::Input(input) => self.record(unit, Some(input), &NOTHING),
            };
            let Graph { leaves, input, output } = graph;
            let scalar = match output {
                Output::Loss(loss, _) => Some(loss * weight),
                Output::Activation(output) => {
                    upstream.take().map(|upstream| ops::inject(self.network.arithmetic, output, upstream))
                }
            };
            // Without trained parameters before it, a part gets no gradient and needs none.
            if let Some(scalar) = scalar.filter(Tensor::is_tracked) {
                let mut found = scalar.backward();
                drop(scalar);
                for ((_, parameter), leaf) in unit.uses.iter().zip(&leaves) {
                    if let Some(gradient) = leaf.grad_remove(&mut found) {
                        self.gradients.add(*parameter, gradient);
                    }
                }
                upstream =
                    input.filter(|_| unit.input_tracked).and_then(|input| input.grad_remove(&mut found));
            }
            done(index, &mut self.gradients);
        }
        upstream
    }

    /// Forward without keeping anything: for validation.
    pub fn infer(&self, input: Option<Tensor<3>>, samples: &Samples<'_>) -> Flow {
        let mut flow = input;
        for unit in &self.units {
            let weights = self.weights(unit, None);
            match self.compute(unit, &weights, flow.take(), samples) {
                Output::Activation(output) => flow = Some(output),
                Output::Loss(_, figures) => return figures.into(),
            }
        }
        Flow::Activation(flow.expect("a stage has a part"))
    }

    /// Loss of `samples` on a stage that holds the whole model: `(sum in nats, hits, predictions)`.
    pub fn evaluate(&self, samples: &Samples<'_>) -> (f64, u64, u64) {
        match self.infer(None, samples) {
            Flow::Loss { loss_sum, hits, count } => (loss_sum, hits, count),
            Flow::Activation(_) => panic!("a stage without the head has no loss; use `infer`"),
        }
    }

    /// Scores of the token after `tokens`, by a stage that holds a whole decoder. At most `context` tokens.
    pub fn logits_last(&self, tokens: &[u32]) -> Vec<f32> {
        let samples = Samples::Tokens { inputs: tokens, targets: &[], samples: 1, length: tokens.len() };
        let (head, before) = self.units.split_last().expect("a stage has a part");
        let mut flow = None;
        for unit in before {
            if let Output::Activation(output) =
                self.compute(unit, &self.weights(unit, None), flow.take(), &samples)
            {
                flow = Some(output);
            }
        }
        let last = flow.expect("a decoder has an embedding").narrow(1, tokens.len() - 1, 1);
        let logits = self.network.logits(&self.weights(head, None), last);
        logits.into_data().try_to_vec().expect("logits are f32")
    }

    /// Whether the graph of `unit` is dropped and made again. The attention core, all that
    /// `Recompute::Selective` asks for, is never kept by the fused operations; elsewhere the whole block goes.
    fn forgets(&self, unit: &Unit) -> bool {
        let blocks = match self.recompute {
            Recompute::None => false,
            Recompute::Selective => !self.network.arithmetic.fused,
            Recompute::Full => true,
        };
        blocks && matches!(unit.part, Part::Block(_))
    }

    /// Runs `unit` with autodiff.
    fn record(&self, unit: &Unit, input: Option<Tensor<3>>, samples: &Samples<'_>) -> Graph {
        let leaves: Vec<_> = unit
            .uses
            .iter()
            .map(|(_, index)| self.values[*index].clone().autodiff().require_grad())
            .collect();
        let input = input.map(|input| {
            let input = input.autodiff();
            if unit.input_tracked { input.require_grad() } else { input }
        });
        let output = self.compute(unit, &self.weights(unit, Some(&leaves)), input.clone(), samples);
        Graph { leaves, input, output }
    }

    /// The weights of `unit`: `leaves`, or else the values without autodiff.
    fn weights<'a>(&'a self, unit: &'a Unit, leaves: Option<&[Tensor<1>]>) -> Weights<'a> {
        let entries = unit.uses.iter().enumerate().map(|(place, (short, index))| {
            let flat = leaves.map_or_else(|| self.values[*index].clone(), |leaves| leaves[place].clone());
            (short.as_str(), self.parameters[*index].shape.as_slice(), flat)
        });
        Weights { entries: entries.collect() }
    }

    fn compute(
        &self,
        unit: &Unit,
        weights: &Weights<'_>,
        x: Option<Tensor<3>>,
        samples: &Samples<'_>,
    ) -> Output {
        let activation = || x.expect("this part reads the activation of the part before it");
        match unit.part {
            Part::Embedding => Output::Activation(self.network.embed(weights, samples, &self.device)),
            Part::Block(index) => Output::Activation(self.network.block(index, weights, activation())),
            Part::Head => {
                let logits = self.network.logits(weights, activation());
                let (loss, figures) = ops::cross_entropy(self.network.arithmetic, logits, samples.targets());
                Output::Loss(loss, figures)
            }
        }
    }
}

impl From<LossFigures> for Flow {
    fn from(figures: LossFigures) -> Self {
        let LossFigures { loss_sum, hits, count } = figures;
        Self::Loss { loss_sum, hits, count }
    }
}

/// What a block that is computed again reads besides its activation.
const NOTHING: Samples<'static> = Samples::Tokens { inputs: &[], targets: &[], samples: 0, length: 0 };

#[cfg(test)]
mod tests;
