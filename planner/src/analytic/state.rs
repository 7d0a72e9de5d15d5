//! Bytes of the training state of a parameter, and the seconds to move it between host and device.

use super::local_parameters::LocalParameters;
use super::{StepConfig, StepInputs};
use crate::engine::SoftwareStyle;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LossKernel, MomentPrecision, Offload, StatePolicy, StatePrecision};

/// Bytes of the state of one trained parameter, by what they hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StateBytes {
    /// Bytes of the weights that products read, or that the optimizer updates if there is one copy alone.
    pub(super) weights: f64,
    /// Bytes of a gradient.
    pub(super) gradients: f64,
    /// Bytes of the master copy and of the moments.
    pub(super) optimizer: f64,
}

impl StateBytes {
    /// Returns the bytes of state that the engine of `case` holds for a trained parameter, wherever it is.
    pub(super) fn of(case: &StepInputs<'_>) -> Self {
        let (policy, profile) = (case.config.arrangement.state, &case.engine.profile);
        let is_f32 = policy.weights == StatePrecision::F32;
        let moment = match policy.moments {
            MomentPrecision::F32 => 4.0,
            MomentPrecision::Bf16 => 2.0,
            // A scale of 32 bits for each block of 256.
            MomentPrecision::Int8 => 1.016,
        };
        let moments = case.engine.moments * moment;
        // DeepSpeed below the Trainer of Hugging Face keeps its optimizer in host memory.
        let is_deepspeed =
            case.engine.style == SoftwareStyle::HuggingFace && policy.offload == Offload::Optimizer;
        let has_master_copy = profile.has_master_copy || is_deepspeed;
        let (weights, usual, master) = match (has_master_copy, is_f32) {
            (true, true) => (2.0, profile.gradient_bytes, 4.0),
            (false, true) => (4.0, 4.0, 0.0),
            (_, false) => (2.0, 2.0, 0.0),
        };
        let gradients = match policy.gradients {
            _ if profile.applies_in_backward => 0.0,
            None => usual,
            Some(StatePrecision::F32) => 4.0,
            Some(StatePrecision::Bf16) => 2.0,
        };
        Self { weights, gradients, optimizer: master + moments }
    }

    /// Returns the bytes of all state together.
    pub(super) fn sum(self) -> f64 {
        self.weights + self.gradients + self.optimizer
    }

    /// Returns the bytes that an update reads and writes.
    fn traffic(self) -> f64 {
        2.0 * self.weights + self.gradients + 2.0 * self.optimizer
    }

    /// Returns the bytes that stay on the device under `offload`.
    pub(super) fn on_device(self, offload: Offload) -> Self {
        match offload {
            Offload::None => self,
            // Gradients leave as they are reduced.
            Offload::Optimizer => Self { optimizer: 0.0, gradients: 0.0, ..self },
            Offload::All => Self { weights: 0.0, gradients: 0.0, optimizer: 0.0 },
        }
    }
}

impl StepInputs<'_> {
    /// Returns the bytes of memory traffic of the update of one parameter, relative to an update of plain state.
    pub(super) fn update_traffic(&self) -> f64 {
        let state = StatePolicy::PLAIN;
        let arrangement = Arrangement { state, ..self.config.arrangement };
        let plain = StepInputs { config: StepConfig { arrangement, ..self.config }, ..*self };
        StateBytes::of(self).traffic() / StateBytes::of(&plain).traffic()
    }

    /// Returns the seconds in which the CPUs of a host update `owned` parameters of each of its ranks, and the
    /// weights return to the devices.
    pub(super) fn host_update_seconds(&self, owned: f64) -> f64 {
        // Updates within the backward hide behind it.
        if self.engine.profile.applies_in_backward {
            return 0.0;
        }
        let c = self.general();
        let ranks = self.config.ranks().min(self.links.per_host);
        let update = owned * ranks * StateBytes::of(self).traffic() / c.host_stream;
        let returned = match self.config.arrangement.state.offload {
            Offload::Optimizer => self.engine.profile.wire_bytes * owned / self.links.host,
            Offload::None | Offload::All => 0.0,
        };
        update + returned
    }

    /// Returns the seconds in which one micro-batch moves the gradients of `held` parameters to the host, if
    /// the optimizer is there.
    pub(super) fn gradients_to_host_seconds(&self, held: LocalParameters) -> f64 {
        let is_kept = self.engine.profile.applies_in_backward;
        if self.config.arrangement.state.offload != Offload::Optimizer || is_kept {
            return 0.0;
        }
        let owned = held.dense / self.config.shard() + held.experts / self.config.expert_shard();
        self.engine.profile.wire_bytes * owned * self.trained_share() / self.links.host
    }

    /// Returns the share of the logits that is held at once, and the number of forward products that are
    /// repeated for the rest.
    pub(super) fn logits_held(&self) -> (f64, f64) {
        match self.config.arrangement.state.loss {
            LossKernel::Plain => (1.0, 0.0),
            LossKernel::Chunked => (0.125, 1.0),
            // Chunks are such that their logits take as much as the inputs of the head (Liger).
            LossKernel::Fused => ((self.model.hidden / self.model.vocabulary).min(1.0), 0.0),
        }
    }
}
