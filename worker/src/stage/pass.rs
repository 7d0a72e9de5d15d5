//! Passes through the chunks of a stage: forward, backward, and inference.

use super::parameters::ParameterGroup;
use super::recompute::SavedForBackward;
use super::{ForwardOutput, Stage};
use crate::gradient_accumulation::Gradients;
use crate::network::{ForwardMode, KvCache, ModelInput, ModelPart, Weights};
use crate::ops::{self, DeferredLossFigures, DeferredWeightGrads, DocumentStarts, LossFigures};
use burn::tensor::Tensor;
use dtrain_protocol::Pass;
use std::sync::Arc;

/// The output of one part (embedding, block or head) of a model.
pub(super) enum PartOutput {
    /// Activation for the next part, and an addition to the mean loss beside the cross-entropy: a tensor of
    /// one element.
    Activation(Tensor<3>, Option<Tensor<1>>),
    /// Mean loss as a tensor of one element, and the loss figures.
    Loss(Tensor<1>, DeferredLossFigures),
}

/// The weights in the loss of an optimizer step of what one pass adds to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossWeights {
    /// Weight of the mean loss over the targets of the micro-batch that count.
    pub loss: f32,
    /// Weight of additions of blocks, which are means over its sequences.
    pub penalty: f32,
}

impl From<f32> for LossWeights {
    /// Returns the weights of a micro-batch of which every target counts.
    fn from(weight: f32) -> Self {
        Self { loss: weight, penalty: weight }
    }
}

pub(super) struct AutodiffGraph {
    leaves: Vec<Tensor<1>>,
    input: Option<Tensor<3>>,
    output: PartOutput,
    /// Queue for the deferred weight gradients of its backward.
    later: DeferredWeightGrads,
}

impl Stage {
    /// Runs the forward of a pass through its chunk. `input` is the activation of the chunk before, `None` on
    /// the first.
    ///
    /// Saves the data that [`Stage::backward`] needs. The last chunk of the model returns the loss.
    pub fn forward(
        &mut self,
        pass: Pass,
        input: Option<Tensor<3>>,
        samples: &ModelInput<'_>,
    ) -> ForwardOutput {
        let units = self.chunks[pass.chunk as usize].clone();
        if let Some(documents) = self.set_documents(samples) {
            self.documents.insert(pass, documents);
        }
        let mut kept = Vec::with_capacity(units.len());
        let mut flow = input;
        let mut figures = DeferredLossFigures::default();
        for index in units.clone() {
            self.unshard(index, (index + 1 < units.end).then_some(index + 1));
            let unit = &self.units[index];
            if self.recomputes(unit) {
                let input = flow.take();
                let weights = self.weights(unit, None, ForwardMode::Train);
                let PartOutput::Activation(output, _) = self.compute(unit, &weights, input.clone(), samples)
                else {
                    unreachable!("only the head gives a loss, and it is kept");
                };
                kept.push(
                    input
                        .map_or_else(|| SavedForBackward::Samples(samples.inputs()), SavedForBackward::Input),
                );
                flow = Some(output);
            } else {
                let graph = self.record(unit, flow.take(), samples);
                match &graph.output {
                    PartOutput::Activation(output, _) => flow = Some(output.clone().inner()),
                    PartOutput::Loss(_, found) => figures = found.clone(),
                }
                kept.push(SavedForBackward::Graph(Box::new(graph)));
            }
            self.reshard(index);
        }
        self.kept.insert(pass, kept);
        flow.map_or(ForwardOutput::Loss(figures), ForwardOutput::Activation)
    }

    /// Runs the backward of a pass, whose forward must have run, and adds to [`Stage::gradients`].
    ///
    /// On the last chunk of the model `upstream` is `None`, and `weight.loss` times the gradient of the
    /// micro-batch's mean loss is added. Elsewhere `upstream` is the gradient that the next chunk returned,
    /// which includes the weight already; additions of blocks to the loss count as much. `done` is called
    /// for each part as soon as its gradients of this micro-batch are added, last part first. Returns the
    /// gradient for the chunk before, `None` on the first.
    pub fn backward(
        &mut self,
        pass: Pass,
        upstream: Option<Tensor<3>>,
        weight: impl Into<LossWeights>,
        done: &mut dyn FnMut(usize, &mut Gradients),
    ) -> Option<Tensor<3>> {
        let (mut upstream, weight) = (upstream, weight.into());
        for (index, kept) in self.take_saved(pass) {
            let later = self.backward_part(index, kept, &mut upstream, weight);
            self.run_deferred_weight_grads(index, &later);
            done(index, &mut self.gradients);
        }
        upstream
    }

    /// Runs the part of [`Stage::backward`] that the chunk before waits for. It defers the gradients of
    /// linear layers' matrices to [`Stage::backward_weights`] if the schedule wants that.
    pub fn backward_input(
        &mut self,
        pass: Pass,
        upstream: Option<Tensor<3>>,
        weight: impl Into<LossWeights>,
    ) -> Option<Tensor<3>> {
        let (mut upstream, mut left, weight) = (upstream, Vec::new(), weight.into());
        for (index, kept) in self.take_saved(pass) {
            left.push((index, self.backward_part(index, kept, &mut upstream, weight)));
        }
        self.left.insert(pass, left);
        upstream
    }

    /// Runs the rest of a pass's backward, after [`Stage::backward_input`]; `done` is called for each part,
    /// as in [`Stage::backward`].
    ///
    /// On a stage with several passes in flight, gradients of a part are final only after the last of
    /// these.
    pub fn backward_weights(&mut self, pass: Pass, done: &mut dyn FnMut(usize, &mut Gradients)) {
        let left = self.left.remove(&pass);
        let left = left.unwrap_or_else(|| panic!("gradients of weights of {pass:?} without its backward"));
        for (index, later) in left {
            self.run_deferred_weight_grads(index, &later);
            done(index, &mut self.gradients);
        }
    }

    /// Sets the documents that attention keeps apart to those of `samples`, and returns them.
    fn set_documents(&self, samples: &ModelInput<'_>) -> Option<DocumentStarts> {
        let documents = samples
            .packed()
            .map(|packed| DocumentStarts { starts: Arc::clone(&packed.starts), length: packed.length });
        self.layers.documents().clone_from(&documents);
        documents
    }

    /// Returns the data saved for the backward of a pass, with the indices of its units, last to first.
    fn take_saved(&mut self, pass: Pass) -> impl Iterator<Item = (usize, SavedForBackward)> + use<> {
        let kept = self.kept.remove(&pass);
        let kept = kept.unwrap_or_else(|| panic!("backward of {pass:?} without its forward"));
        *self.layers.documents() = self.documents.remove(&pass);
        let first = self.chunks[pass.chunk as usize].start;
        (first..).zip(kept).collect::<Vec<_>>().into_iter().rev()
    }

    /// Runs the backward of one unit: adds gradients except deferred ones, and replaces `upstream` by the
    /// gradient of the input.
    fn backward_part(
        &mut self,
        index: usize,
        kept: SavedForBackward,
        upstream: &mut Option<Tensor<3>>,
        weight: LossWeights,
    ) -> DeferredWeightGrads {
        let is_first = self.chunks.iter().any(|units| units.start == index);
        let next = (!is_first).then(|| index - 1);
        match kept {
            // The graph holds its weights.
            SavedForBackward::Graph(_) => self.prefetch(next),
            SavedForBackward::Input(_) | SavedForBackward::Samples(_) => self.unshard(index, next),
        }
        let unit = &self.units[index];
        let AutodiffGraph { leaves, input, output, later } = self.graph(unit, kept);
        let scalar = match output {
            PartOutput::Loss(loss, _) => Some(loss * weight.loss),
            PartOutput::Activation(output, penalty) => {
                let scalar = upstream.take().map(|d| ops::inject(self.layers.arithmetic, output, d));
                match (scalar, penalty) {
                    (Some(scalar), Some(penalty)) => Some(scalar + penalty * weight.penalty),
                    (scalar, _) => scalar,
                }
            }
        };
        // If no part before it is trained, a part gets no gradient and needs none.
        if let Some(scalar) = scalar.filter(Tensor::is_tracked) {
            let mut found = scalar.backward();
            drop(scalar);
            for ((_, parameter), leaf) in unit.uses.iter().zip(&leaves) {
                if let Some(gradient) = leaf.grad_remove(&mut found) {
                    self.gradients.add(*parameter, gradient);
                }
            }
            *upstream = input.filter(|_| unit.input_tracked).and_then(|input| input.grad_remove(&mut found));
        }
        self.reshard(index);
        later
    }

    /// Computes the deferred weight gradients of a unit, and adds them.
    fn run_deferred_weight_grads(&mut self, index: usize, later: &DeferredWeightGrads) {
        for (place, gradient) in later.compute() {
            self.gradients.add(self.units[index].uses[place].1, gradient);
        }
    }

    /// Runs the forward through chunk `chunk` without saving anything, for validation.
    pub fn infer(&mut self, chunk: u32, input: Option<Tensor<3>>, samples: &ModelInput<'_>) -> ForwardOutput {
        let units = self.chunks[chunk as usize].clone();
        self.set_documents(samples);
        let mut flow = input;
        for index in units.clone() {
            self.unshard(index, (index + 1 < units.end).then_some(index + 1));
            let unit = &self.units[index];
            let output = self.compute(unit, &self.evaluated(unit), flow.take(), samples);
            self.reshard(index);
            match output {
                PartOutput::Activation(output, _) => flow = Some(output),
                PartOutput::Loss(_, figures) => return ForwardOutput::Loss(figures),
            }
        }
        ForwardOutput::Activation(flow.expect("a stage has a part"))
    }

    /// Returns the loss of `samples` on a stage that holds the whole model.
    pub fn evaluate(&mut self, samples: &ModelInput<'_>) -> LossFigures {
        match self.infer(0, None, samples) {
            ForwardOutput::Loss(figures) => figures.read(),
            ForwardOutput::Activation(_) => panic!("a stage without the head has no loss; use `infer`"),
        }
    }

    /// Returns the logits of the token after `tokens`, on a stage that holds a whole decoder. At most
    /// `context` tokens.
    pub fn logits_last(&self, tokens: &[u32]) -> Vec<f32> {
        let samples = ModelInput::Tokens {
            inputs: tokens,
            targets: &[],
            samples: 1,
            length: tokens.len(),
            packed: None,
        };
        self.score(&samples, |x| x.narrow(1, tokens.len() - 1, 1))
    }

    /// Starts a new KV cache for [`Stage::logits_next`].
    pub fn begin_generation(&mut self) {
        *self.layers.key_values() = Some(KvCache::default());
    }

    /// Drops the KV cache of [`Stage::begin_generation`].
    pub fn end_generation(&mut self) {
        *self.layers.key_values() = None;
    }

    /// Returns the logits like [`Stage::logits_last`], for `tokens` that follow those of the calls since
    /// [`Stage::begin_generation`]: any number in the first call, then one. At most `context` tokens in
    /// all.
    pub fn logits_next(&mut self, tokens: &[u32]) -> Vec<f32> {
        let logits = self.logits_last(tokens);
        if let Some(key_values) = &mut *self.layers.key_values() {
            key_values.end_pass(tokens.len());
        }
        logits
    }

    /// Returns the scores of every prediction for `samples`, on a stage that holds the whole model; targets
    /// are not read. `[predictions, classes]`
    pub fn scores(&self, samples: &ModelInput<'_>) -> Vec<f32> {
        self.score(samples, |x| x)
    }

    /// Returns the scores of the part of the last activation that `choose` selects.
    fn score(&self, samples: &ModelInput<'_>, choose: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Vec<f32> {
        self.set_documents(samples);
        let (head, before) = self.units.split_last().expect("a stage has a part");
        let mut flow = None;
        for unit in before {
            if let PartOutput::Activation(output, _) =
                self.compute(unit, &self.evaluated(unit), flow.take(), samples)
            {
                flow = Some(output);
            }
        }
        let last = choose(flow.expect("a model has a first part"));
        let scores = self.network.scores(&self.layers, &self.evaluated(head), last);
        scores.into_data().try_to_vec().expect("scores are f32")
    }

    /// Runs the forward of `unit` with autodiff, and returns the graph.
    pub(super) fn record(
        &self,
        unit: &ParameterGroup,
        input: Option<Tensor<3>>,
        samples: &ModelInput<'_>,
    ) -> AutodiffGraph {
        let leaves: Vec<_> = unit
            .uses
            .iter()
            .map(|(_, index)| self.values[*index].clone().autodiff().require_grad())
            .collect();
        let input = input.map(|input| {
            let input = input.autodiff();
            if unit.input_tracked { input.require_grad() } else { input }
        });
        let later = DeferredWeightGrads::default();
        let weights = Weights {
            later: self.splits.then(|| later.clone()),
            ..self.weights(unit, Some(&leaves), ForwardMode::Train)
        };
        let output = self.compute(unit, &weights, input.clone(), samples);
        AutodiffGraph { leaves, input, output, later }
    }

    /// Returns the weights of `unit` for a forward: the tracked `leaves` if given, otherwise its values
    /// without autodiff.
    pub(super) fn weights<'a>(
        &'a self,
        unit: &'a ParameterGroup,
        leaves: Option<&[Tensor<1>]>,
        mode: ForwardMode,
    ) -> Weights<'a> {
        let trained = unit.uses.iter().enumerate().map(|(place, (short, index))| {
            let flat = leaves.map_or_else(|| self.values[*index].clone(), |leaves| leaves[place].clone());
            (short.as_str(), &self.parameters[*index], flat)
        });
        let frozen = unit.frozen.iter().map(|(short, index)| {
            let flat = self.frozen_values[*index].clone();
            let flat = if leaves.is_some() { flat.autodiff() } else { flat };
            (short.as_str(), &self.frozen[*index], flat)
        });
        Weights { mode, entries: trained.chain(frozen).collect(), trained: unit.uses.len(), later: None }
    }

    /// Returns the weights of `unit` for a pass that trains nothing.
    fn evaluated<'a>(&'a self, unit: &'a ParameterGroup) -> Weights<'a> {
        self.weights(unit, None, ForwardMode::Evaluate)
    }

    pub(super) fn compute(
        &self,
        unit: &ParameterGroup,
        weights: &Weights<'_>,
        x: Option<Tensor<3>>,
        samples: &ModelInput<'_>,
    ) -> PartOutput {
        let Self { network, layers, .. } = self;
        let activation = || x.expect("this part reads the activation of the part before it");
        match unit.part {
            ModelPart::First => PartOutput::Activation(network.first(layers, weights, samples), None),
            ModelPart::Block(index) => {
                let (output, penalty) = network.block(layers, index, weights, activation());
                PartOutput::Activation(output, penalty)
            }
            ModelPart::Head => {
                let scores = network.scores(layers, weights, activation());
                let (loss, figures) = network.loss(layers, weights, scores, samples.targets());
                PartOutput::Loss(loss, figures)
            }
        }
    }
}
