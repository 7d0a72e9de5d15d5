//! Outer optimizer of local training (DiLoCo, Douillard et al. 2023): replicas update their own weights,
//! and synchronize from time to time.
//!
//! In between only figures are exchanged. At an outer step the mean change of the weights since the last
//! one is used as a gradient, with which the last synchronized weights make a step with Nesterov momentum
//! (1983). All replicas continue from there, each with its own moments.

use crate::mesh::Mesh;
use crate::network::ModelParameter;
use crate::parallel::{GradientReduction, StepTotals, step_totals};
use crate::stage::Stage;
use dtrain_protocol::{Arrangement, Failure, StepId};
use dtrain_recipes::DiLoCo;

/// The state that local replicas share: the weights and the momentum of the last outer step.
#[derive(Debug)]
pub struct OuterOptimizer {
    local: DiLoCo,
    /// Weights after the last outer step, in flat order.
    anchor: Vec<f32>,
    velocity: Vec<f32>,
    /// True if this replica has updated its weights since the last outer step.
    apart: bool,
}

impl OuterOptimizer {
    /// Creates the optimizer for the weights of `stage`, which are synchronized; `None` if replicas
    /// synchronize in every step.
    pub fn of(stage: &Stage, arrangement: &Arrangement) -> Option<Self> {
        let local = arrangement.sync.local?;
        let length = stage.parameters().last().map_or(0, |last| last.range.end);
        let mut outer = Self { local, anchor: vec![0.0; length], velocity: vec![0.0; length], apart: false };
        outer.begin(stage);
        Some(outer)
    }

    /// Records the weights of `stage` as those of the last outer step.
    pub fn begin(&mut self, stage: &Stage) {
        stage.copy_values(0..self.anchor.len(), &mut self.anchor);
        self.apart = false;
    }

    /// Returns the weights after the last outer step, in flat order.
    pub fn anchor(&self) -> &[f32] {
        &self.anchor
    }

    /// Returns the momentum of outer steps, in flat order.
    pub fn velocity(&self) -> &[f32] {
        &self.velocity
    }

    /// Returns the momentum of outer steps, to be replaced by that of a checkpoint.
    pub fn velocity_mut(&mut self) -> &mut [f32] {
        &mut self.velocity
    }

    /// Returns `true` if this replica has updated its weights since the last outer step.
    pub fn has_diverged(&self) -> bool {
        self.apart
    }

    /// Records that this replica has updated its weights.
    pub fn mark_diverged(&mut self) {
        self.apart = true;
    }

    /// Returns `true` if an outer step follows step `step`.
    pub fn is_due(&self, step: StepId) -> bool {
        step.0.is_multiple_of(self.local.every)
    }

    /// Returns the bytes of the weights and the momentum that it stores.
    pub fn bytes(&self) -> u64 {
        4 * (self.anchor.len() + self.velocity.len()) as u64
    }

    /// Makes an outer step with the other replicas: all continue from the same weights.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "small numbers")]
    pub fn outer_step(
        &mut self,
        stage: &mut Stage,
        reduction: &mut GradientReduction,
        mesh: &Mesh,
    ) -> Result<(), Failure> {
        let share = 1.0 / mesh.replicas().ranks() as f32;
        let mut change = vec![0.0; self.anchor.len()];
        stage.copy_values(0..change.len(), &mut change);
        change.iter_mut().zip(&self.anchor).for_each(|(value, anchor)| *value = (anchor - *value) * share);
        reduction.sum(&mut change, mesh)?;
        let (rate, momentum) = (self.local.outer_learning_rate as f32, self.local.outer_momentum as f32);
        let state = self.anchor.iter_mut().zip(&mut self.velocity);
        for ((anchor, velocity), change) in state.zip(change) {
            *velocity = momentum * *velocity + change;
            *anchor -= rate * (change + momentum * *velocity);
        }
        put(stage, &self.anchor);
        self.apart = false;
        Ok(())
    }

    /// Puts the weights of the last outer step into `stage`; returns the replica's own, if they differ.
    pub fn show(&self, stage: &mut Stage) -> Option<Vec<f32>> {
        self.apart.then(|| {
            let mut own = vec![0.0; self.anchor.len()];
            stage.copy_values(0..own.len(), &mut own);
            put(stage, &self.anchor);
            own
        })
    }
}

/// Replaces the weights of `stage`, in flat order.
pub fn put(stage: &mut Stage, values: &[f32]) {
    let ranges: Vec<_> =
        stage.parameters().iter().map(|ModelParameter { range, .. }| range.clone()).collect();
    ranges.into_iter().enumerate().for_each(|(index, range)| stage.set_values(index, values[range].to_vec()));
}

/// Returns squared L2 norms of the gradients: that of this replica, and the mean over all replicas.
pub fn norms_squared(stage: &mut Stage, mesh: &Mesh) -> Result<(f64, f64), Failure> {
    let own = stage.gradients().norm_squared();
    step_totals::send(&StepTotals { square: own, ..StepTotals::default() }, mesh.world());
    let all = step_totals::collect(mesh.world())?.square;
    Ok((own, all / f64::from(mesh.replicas().ranks())))
}
