//! LAMB for sharded tensors: its trust ratio is a property of the whole tensor.
//!
//! The step has two halves. [`StageOptimizer::directions`] updates the moments and returns the squared
//! lengths of the own parts; the caller sums them over the ranks; [`StageOptimizer::apply_direction`]
//! updates the values.

use super::{StageOptimizer, WeightUpdate, host};
use crate::stage::Stage;
use dtrain_recipes::OptimizerKind;

/// The LAMB directions of the owned part of every parameter, before the trust ratio.
pub(crate) struct UpdateDirections {
    parts: Vec<Vec<f32>>,
    /// Squared L2 norms of each owned part's values and of its direction.
    pub(crate) squares: Vec<[f64; 2]>,
}

impl StageOptimizer {
    /// Returns `true` if sharded tensors need [`StageOptimizer::directions`], as with LAMB.
    pub(crate) fn needs_lengths(&self) -> bool {
        self.rule.kind == OptimizerKind::Lamb
    }

    /// Updates the moments by the gradients of `stage`, which must be in host memory, and returns the
    /// directions.
    pub(crate) fn directions(&mut self, stage: &mut Stage, step: WeightUpdate) -> UpdateDirections {
        let mut found = UpdateDirections { parts: Vec::new(), squares: Vec::new() };
        for index in 0..self.parameters.len() {
            let numbers = self.numbers(&self.parameters[index], step);
            let (first, second) = self.moments[index].host(self.owned[index].len(), self.rule.kind);
            let (mut direction, mut squares) = (Vec::new(), [0.0; 2]);
            stage.update(index, |values, gradient| {
                direction = host::lamb_direction(numbers, values, gradient, first, second);
                squares = [host::square(values), host::square(&direction)];
            });
            found.parts.push(direction);
            found.squares.push(squares);
        }
        found
    }

    /// Updates the owned values of parameter `index` by its direction; the squares must now be those of whole
    /// tensors.
    pub(crate) fn apply_direction(
        &mut self,
        index: usize,
        stage: &mut Stage,
        directions: &UpdateDirections,
        rate: f64,
    ) {
        let [own, other] = directions.squares[index];
        let factor = host::lamb_factor(rate as f32, own, other);
        stage.update(index, |values, _| host::add_scaled(values, &directions.parts[index], factor));
    }
}
