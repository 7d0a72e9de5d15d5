//! Full-step benchmark: runs whole steps on all ranks, with the executor of the training loop.

use super::PassBench;
use super::synthetic::SyntheticSamples;
use crate::data::{Batch, DataError, MicroBatchLoader, SampleSource};
use crate::median::median;
use crate::parallel::StepTotals;
use crate::train_step;
use dtrain_protocol::{Action, Failure, Hyperparameters, Pass, StepId, WholeStep};
use dtrain_recipes::Model;
use std::sync::Arc;

/// Number of micro-batches in a step, so that the gradients of one are added to those of another.
const MICRO_BATCHES: u32 = 2;

/// Number of warm-up steps, which do not count.
const WARM_UP: usize = 2;

/// Fewest and most steps that are measured.
const REPEATS: (usize, usize) = (3, 50);

/// Returns hyperparameters whose learning rate is so small that the synthetic samples change little.
pub(super) fn training() -> Hyperparameters {
    Hyperparameters {
        batch: MICRO_BATCHES.into(),
        share: 0..MICRO_BATCHES.into(),
        micro_batch: 1,
        micro_batches: MICRO_BATCHES,
        optimizer: super::RULE,
        learning_rate: 1e-9,
        clip: Some(1.0),
        ..Hyperparameters::plain()
    }
}

/// Measures whole steps for about `seconds`, with the fastest micro-batch, given as (seconds of a sample,
/// number of samples); `None` if even the fewest steps would take longer. All ranks are given the same
/// numbers.
pub(super) fn measure(
    bench: &mut PassBench<'_>,
    model: &Model,
    (sample_seconds, micro_batch): (f64, u32),
    seconds: f64,
) -> Result<Option<WholeStep>, Failure> {
    let expected = sample_seconds * f64::from(micro_batch * MICRO_BATCHES);
    if expected * (WARM_UP + REPEATS.0) as f64 > seconds {
        return Ok(None);
    }
    let samples = SyntheticSamples::of(model, micro_batch);
    let passes = (0..MICRO_BATCHES).map(|micro| Pass { micro, chunk: 0 });
    let passes = passes.flat_map(|pass| [Action::Forward(pass), Action::Backward(pass)]);
    let actions: Vec<_> = passes.chain([Action::ReduceGradients, Action::UpdateWeights]).collect();
    let indices: Vec<_> = (0..u64::from(micro_batch)).collect();
    let mut stream = MicroBatchLoader::of(Arc::new(RepeatedSamples(samples)), std::iter::repeat(indices));
    let mut step = |bench: &mut PassBench<'_>| {
        let outcome = train_step::run_step(
            &mut bench.replica,
            &actions,
            &mut stream,
            (StepId(bench.steps), 1),
            StepTotals::default(),
        )?;
        bench.steps += 1;
        Ok::<_, Failure>(outcome.times.step)
    };
    bench.replica.mesh.world().barrier()?;
    let warm = (0..WARM_UP).map(|_| step(bench)).collect::<Result<Vec<_>, _>>()?;
    let one = bench.agree(warm[WARM_UP - 1])?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few")]
    let repeats = ((seconds / one) as usize).saturating_sub(WARM_UP).clamp(REPEATS.0, REPEATS.1);
    let measured = (0..repeats).map(|_| step(bench)).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(WholeStep { micro_batch, micro_batches: MICRO_BATCHES, seconds: median(&measured) }))
}

/// A data set that has the same samples over and over again.
struct RepeatedSamples(SyntheticSamples);

impl SampleSource for RepeatedSamples {
    fn len(&self) -> u64 {
        1
    }

    fn read(&self, _: &[u64]) -> Result<Batch, DataError> {
        Ok(self.0.batch())
    }
}
