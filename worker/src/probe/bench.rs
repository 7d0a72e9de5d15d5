//! Pass benchmark: times each part of the passes of a replica.

use super::synthetic::SyntheticSamples;
use super::{REPEATS, WARM_UP};
use crate::parallel::{StepTotals, step_totals};
use crate::train_step::Replica;
use dtrain_protocol::{Failure, Pass};
use std::time::Instant;

/// The only pass of a measured step: that of its single micro-batch.
const PASS: Pass = Pass { micro: 0, chunk: 0 };

/// A replica whose passes are timed, with the count of its steps.
pub(super) struct PassBench<'a> {
    pub(super) replica: Replica<'a>,
    pub(super) blocks: u32,
    pub(super) steps: u64,
}

/// The seconds that each part of a step of a single micro-batch takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassTimes {
    pub(super) forward: f64,
    /// Seconds of backward: of the blocks, and of everything else.
    pub(super) backward: [f64; 2],
    pub(super) optimizer: f64,
}

impl PassTimes {
    pub(super) fn total(&self) -> f64 {
        self.forward + self.backward[0] + self.backward[1] + self.optimizer
    }
}

impl PassBench<'_> {
    /// Returns the mean of `value` over the ranks, so that all ranks have the same number.
    pub(super) fn agree(&self, value: f64) -> Result<f64, Failure> {
        step_totals::send(
            &StepTotals { loss_sum: value, count: 1, ..StepTotals::default() },
            self.replica.mesh.world(),
        );
        Ok(step_totals::collect(self.replica.mesh.world())?.loss())
    }

    /// Returns the number of passes of `one` seconds each that fit into `seconds`: the same number on all
    /// ranks.
    pub(super) fn repeats(&mut self, seconds: f64, one: f64) -> Result<usize, Failure> {
        let fit = self.agree(seconds / one)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few")]
        let fit = fit.max(0.0) as usize;
        Ok(fit.saturating_sub(WARM_UP).clamp(REPEATS.0, REPEATS.1))
    }

    /// Times the parts of a step of one micro-batch, without the other ranks. The device is synchronized
    /// after each part.
    pub(super) fn pass(&mut self, samples: &SyntheticSamples) -> PassTimes {
        let Replica { stage, optimizer, clock, .. } = &mut self.replica;
        let mut pass = PassTimes::default();
        clock.wait();
        let mut began = Instant::now();
        let mut lap = move || {
            clock.wait();
            std::mem::replace(&mut began, Instant::now()).elapsed().as_secs_f64()
        };
        stage.gradients().clear();
        pass.optimizer += lap();
        drop(stage.forward(PASS, None, &samples.view()));
        pass.forward = lap();
        let outer = [0, stage.units() - 1];
        stage.backward(PASS, None, 1.0, &mut |unit, _| {
            pass.backward[usize::from(outer.contains(&unit))] += lap();
        });
        pass.backward[1] += lap();
        self.steps += 1;
        let norm = stage.gradients().norm_squared();
        let scale = if norm > 1.0 { 0.5 } else { 1.0 };
        optimizer.step(stage, 1e-9, scale, self.steps);
        pass.optimizer += lap();
        pass
    }
}
