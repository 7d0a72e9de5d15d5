//! Full and selective recomputation of activations in the backward: its seconds, and the bytes that are saved
//! all the same.

use super::constants::{GeneralConstants, MemoryConstants};
use super::memory::LayerActivations;
use super::{LayerTimes, StepInputs};
use crate::engine::Recomputation;
use dtrain_recipes::Recompute;

impl StepInputs<'_> {
    /// Returns the part of a layer that the backward recomputes.
    pub fn recomputation(&self) -> Recomputation {
        match self.config.arrangement.recompute {
            Recompute::None => Recomputation::Nothing,
            Recompute::Selective => self.engine.style.selective(),
            Recompute::Full => Recomputation::All,
        }
    }
}

impl LayerTimes {
    /// Returns the layer times under the recompute mode of `case`, which must not differ otherwise.
    #[must_use]
    pub(super) fn with_recompute(self, case: &StepInputs<'_>) -> Self {
        let recompute =
            case.config.recompute_share() * self.recompute_seconds(case.recomputation(), case.general());
        Self { recompute, ..self }
    }

    fn recompute_seconds(&self, again: Recomputation, c: &GeneralConstants) -> f64 {
        match again {
            Recomputation::Nothing => 0.0,
            Recomputation::Attention => self.core.forward,
            Recomputation::EverySecondProduct => {
                let products = (self.projections + self.feed_forward).forward;
                c.product_again * products + self.elementwise.forward
            }
            Recomputation::All => self.passes().forward,
        }
    }
}

impl LayerActivations {
    /// Returns the bytes that a layer saves for its backward if it recomputes the part `again`.
    pub(super) fn of_layer(&self, again: Recomputation, c: &MemoryConstants) -> f64 {
        match again {
            Recomputation::Nothing => self.through + self.scores,
            Recomputation::Attention => self.through,
            Recomputation::EverySecondProduct => c.kept_every_second * self.through + self.input,
            Recomputation::All => self.input,
        }
    }

    /// Returns the temporary bytes of the backward of one layer: recomputed activations and gathered inputs.
    pub(super) fn working(&self, case: &StepInputs<'_>) -> f64 {
        let config = &case.config;
        let is_gathered = config.arrangement.sequence && config.tensor() > 1.0;
        let gathered = if is_gathered { 8.0 * case.tokens() * case.model.hidden } else { 0.0 };
        gathered
            + match case.recomputation() {
                Recomputation::Nothing => case.general().memory.transient * self.through,
                Recomputation::Attention | Recomputation::EverySecondProduct => {
                    self.scores + 0.5 * self.through
                }
                Recomputation::All => self.through + self.scores,
            }
    }
}
