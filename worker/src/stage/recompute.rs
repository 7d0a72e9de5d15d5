//! Recompute (activation checkpointing): forward keeps only the input of a unit, and its forward is run again
//! in the backward pass.

use super::Stage;
use super::parameters::ParameterGroup;
use super::pass::AutodiffGraph;
use crate::data::Batch;
use crate::network::{ModelInput, ModelPart};
use burn::tensor::Tensor;
use dtrain_recipes::Recompute;

/// The saved data from which the backward of one part continues, for one micro-batch.
pub(super) enum SavedForBackward {
    /// Autodiff graph of the part's forward.
    Graph(Box<AutodiffGraph>),
    /// Input of the part alone, from which the graph is recomputed.
    Input(Tensor<3>),
    /// Samples alone, from which the graph of the first part is recomputed.
    Samples(Batch),
}

impl Stage {
    /// Returns `true` if the graph of `unit` is dropped and recomputed. `Recompute::Selective` is handled
    /// inside attention. A graph holds its weights, so of sharded ones only that of the head stays, whose
    /// backward comes next.
    pub(super) fn recomputes(&self, unit: &ParameterGroup) -> bool {
        let blocks = match self.recompute {
            Recompute::None | Recompute::Selective => false,
            Recompute::Full => true,
        };
        let is_turn = |index: u32| index.is_multiple_of(self.recompute_every);
        match unit.part {
            ModelPart::First => self.sharded.is_some(),
            ModelPart::Block(_) => blocks && is_turn(unit.place),
            ModelPart::Head => false,
        }
    }

    /// Returns the autodiff graph of `unit`: the saved one, or a new one from another forward.
    pub(super) fn graph(&self, unit: &ParameterGroup, kept: SavedForBackward) -> AutodiffGraph {
        match kept {
            SavedForBackward::Graph(graph) => *graph,
            SavedForBackward::Input(input) => self.record(unit, Some(input), &ModelInput::NOTHING),
            SavedForBackward::Samples(batch) => self.record(unit, None, &ModelInput::of(&batch)),
        }
    }
}
