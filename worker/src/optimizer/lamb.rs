//! LAMB of tensors that several ranks hold parts of: its ratio is a property of the whole tensor.
//!
//! The step is done in two halves. [`StageOptimizer::directions`] moves the moments and tells how long values and
//! directions of the own parts are; somebody sums the squares over the ranks; [`StageOptimizer::follow`] moves the values.

use super::{StageOptimizer, WeightUpdate, host};
use crate::stage::Stage;
use dtrain_recipes::OptimizerKind;

/// Where the owned part of every parameter goes, before the ratio of lengths.
pub(crate) struct UpdateDirections {
    parts: Vec<Vec<f32>>,
    /// Squared lengths of each part's values and of its direction.
    pub(crate) squares: Vec<[f64; 2]>,
}

impl StageOptimizer {
    /// Whether it steps by [`StageOptimizer::directions`] where tensors are cut.
    pub(crate) fn needs_lengths(&self) -> bool {
        self.rule.kind == OptimizerKind::Lamb
    }

    /// Moves the moments by the gradients of `stage`, which must lie in host memory.
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

    /// Moves the owned values of parameter `index`; the squares are by now those of whole tensors.
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
