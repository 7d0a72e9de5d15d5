//! Replicas that move their own weights, and meet from time to time (DiLoCo, Douillard et al. 2023).
//!
//! Between two meetings nothing travels but figures. At a meeting the mean change of the weights since the last one is
//! taken for a gradient, with which the weights of the last meeting make a step with momentum (Nesterov 1983). From
//! there all replicas go on, each with the moments it has.

use crate::parallel::{GradientReduction, Mesh, StepTotals, step_totals};
use crate::stage::{ModelParameter, Stage};
use dtrain_protocol::{Arrangement, Failure, StepId};
use dtrain_recipes::DiLoCo;

/// What replicas that move apart have in common.
#[derive(Debug)]
pub struct OuterOptimizer {
    local: DiLoCo,
    /// The weights of the last meeting, in flat order.
    anchor: Vec<f32>,
    velocity: Vec<f32>,
    /// Whether this replica has moved since.
    apart: bool,
}

impl OuterOptimizer {
    /// For the weights of `stage`, which are those of a meeting; `None` where replicas meet in every step.
    pub fn of(stage: &Stage, arrangement: &Arrangement) -> Option<Self> {
        let local = arrangement.sync.local?;
        let length = stage.parameters().last().map_or(0, |last| last.range.end);
        let mut outer = Self { local, anchor: vec![0.0; length], velocity: vec![0.0; length], apart: false };
        outer.begin(stage);
        Some(outer)
    }

    /// Takes the weights of `stage` for those of the last meeting.
    pub fn begin(&mut self, stage: &Stage) {
        stage.copy_values(0..self.anchor.len(), &mut self.anchor);
        self.apart = false;
    }

    /// The weights of the last meeting, in flat order.
    pub fn anchor(&self) -> &[f32] {
        &self.anchor
    }

    /// The momentum of the meetings, in flat order.
    pub fn velocity(&self) -> &[f32] {
        &self.velocity
    }

    /// As [`OuterOptimizer::velocity`], to be replaced by that of a checkpoint.
    pub fn velocity_mut(&mut self) -> &mut [f32] {
        &mut self.velocity
    }

    /// Whether this replica has weights of its own.
    pub fn has_diverged(&self) -> bool {
        self.apart
    }

    /// Notes that this replica moved its weights.
    pub fn mark_diverged(&mut self) {
        self.apart = true;
    }

    /// Whether replicas meet after `step`.
    pub fn is_due(&self, step: StepId) -> bool {
        step.0.is_multiple_of(self.local.every)
    }

    /// Bytes of what it keeps.
    pub fn bytes(&self) -> u64 {
        4 * (self.anchor.len() + self.velocity.len()) as u64
    }

    /// Meets the other replicas: all go on from the same weights.
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

    /// Puts the weights of the last meeting into `stage`; gives its own, where they are others.
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

/// Squares of the L2 norm of the gradients: of this replica, and their mean over all replicas.
pub fn norms_squared(stage: &mut Stage, mesh: &Mesh) -> Result<(f64, f64), Failure> {
    let own = stage.gradients().norm_squared();
    step_totals::send(&StepTotals { square: own, ..StepTotals::default() }, mesh.world());
    let all = step_totals::collect(mesh.world())?.square;
    Ok((own, all / f64::from(mesh.replicas().ranks())))
}
