//! Loss scale: keeps the gradients of f16 products from underflow (Micikevicius et al. 2018).
//!
//! The loss is multiplied by a power of two, and the reduced gradients are divided by it. If a gradient
//! overflows, the step makes no update and the scale is halved; after many good steps it is doubled.
//!
//! Weights, moments and gradients are f32; `precision` is that of matrix products. The scale is part of the
//! checkpoint. Residuals of error feedback are stored unscaled; older versions wrote them scaled, and the
//! stored state tells which.

use dtrain_recipes::Precision;
use std::collections::VecDeque;

/// Scale at the start of training.
const FIRST: f32 = 65_536.0;

/// Number of steps without a change after which the scale is doubled.
const PATIENCE: u32 = 2000;

/// Largest scale that doubling can reach.
const MOST: f32 = 16_777_216.0;

/// Fraction added to the number of steps in a checkpoint whose error feedback is unscaled. Older versions
/// read a whole number of steps, and drop it.
const FREE: f32 = 0.5;

/// The factor by which the loss is multiplied. Equal on all ranks, because all of them use the same norms.
#[derive(Debug)]
pub(crate) struct LossScale {
    scale: f32,
    /// Number of steps since the last change of the scale.
    steps: u32,
    /// Scales of the batches that are computed and not applied yet, oldest first.
    travelling: VecDeque<f32>,
    /// Factor of the error feedback in the loaded checkpoint; `None` once it is divided out.
    feedback: Option<f32>,
}

impl LossScale {
    /// Creates the initial loss scale; `None` if products have the range of f32.
    pub(crate) fn of(precision: Precision) -> Option<Self> {
        match precision {
            Precision::F16 => {
                Some(Self { scale: FIRST, steps: 0, travelling: VecDeque::new(), feedback: None })
            }
            Precision::F32 | Precision::Bf16 | Precision::Fp8 => None,
        }
    }

    /// Returns the factor of the loss of the current batch.
    pub(crate) fn scale(&self) -> f32 {
        self.scale
    }

    /// Records that the gradients of a batch are computed.
    pub(crate) fn push_in_flight(&mut self) {
        self.travelling.push_back(self.scale);
    }

    /// Returns the factor of the loss of the oldest batch in flight, whose gradients are reduced now.
    pub(crate) fn pop_in_flight(&mut self) -> f32 {
        self.travelling.pop_front().expect("gradients are summed after they are computed")
    }

    /// Records a step with finite gradients; doubles the scale after enough of them.
    pub(crate) fn record_finite(&mut self) {
        self.steps += 1;
        if self.steps >= PATIENCE {
            (self.scale, self.steps) = ((2.0 * self.scale).min(MOST), 0);
        }
    }

    /// Records gradients under `scale` that were not finite, and halves it. Returns `true` if the smaller
    /// scale may help.
    pub(crate) fn shrink(&mut self, scale: f32) -> bool {
        self.steps = 0;
        self.scale = self.scale.min(scale / 2.0);
        self.scale >= 1.0
    }

    /// Takes the factor by which error feedback from a checkpoint must be divided; `None` if it has been, or
    /// is unscaled.
    pub(crate) fn take_feedback(&mut self) -> Option<f32> {
        self.feedback.take()
    }

    /// Returns the scale and the number of steps since its last change, for a checkpoint.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand steps")]
    pub(crate) fn state(&self) -> [f32; 2] {
        let free = if self.feedback.is_none() { FREE } else { 0.0 };
        [self.scale, self.steps as f32 + free]
    }

    /// Restores the scale and the number of steps from a checkpoint.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made from a count")]
    pub(crate) fn set_state(&mut self, [scale, steps]: [f32; 2]) {
        (self.scale, self.steps) = (scale, steps as u32);
        self.feedback = (steps.fract() == 0.0).then_some(scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_at_once_and_rises_with_patience() {
        assert!(LossScale::of(Precision::F32).is_none() && LossScale::of(Precision::Bf16).is_none());
        let mut scale = LossScale::of(Precision::F16).expect("f16 has a small range");
        // Two batches under the first scale; both overflow, and the second halves nothing more.
        scale.push_in_flight();
        scale.push_in_flight();
        for _ in 0..2 {
            let old = scale.pop_in_flight();
            assert!(old == FIRST && scale.shrink(old));
            assert_eq!(scale.scale(), FIRST / 2.0);
        }
        (1..PATIENCE).for_each(|_| scale.record_finite());
        assert_eq!(scale.state(), [FIRST / 2.0, PATIENCE as f32 - 1.0 + FREE]);
        let mut other = LossScale::of(Precision::F16).expect("f16 has a small range");
        other.set_state(scale.state());
        other.record_finite();
        assert_eq!(other.state(), [FIRST, FREE]);
        (0..20 * PATIENCE).for_each(|_| other.record_finite());
        assert_eq!(other.scale(), MOST);
        let mut tries = 0;
        while other.shrink(other.scale()) {
            tries += 1;
        }
        assert_eq!(tries, 24, "it ends where no scale helps");
    }

    #[test]
    fn its_state_tells_whether_error_feedback_has_the_scale() {
        let mut scale = LossScale::of(Precision::F16).expect("f16 has a small range");
        scale.set_state([512.0, 7.0 + FREE]);
        assert_eq!((scale.take_feedback(), scale.state()), (None, [512.0, 7.0 + FREE]));
        // Written like this by older versions.
        scale.set_state([512.0, 7.0]);
        assert_eq!(scale.state(), [512.0, 7.0], "it has the scale until it is divided");
        assert_eq!(scale.take_feedback(), Some(512.0));
        assert_eq!((scale.take_feedback(), scale.state()), (None, [512.0, 7.0 + FREE]));
    }
}
