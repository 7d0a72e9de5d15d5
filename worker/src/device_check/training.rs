//! Training speed of a device, and the device memory that training takes.

use super::{LONGEST, LOSS_SCALE, sync, timed};
use crate::median::median;
use crate::optimizer::StageOptimizer;
use crate::probe::synthetic::SyntheticSamples;
use crate::stage::{ForwardOutput, Stage};
use burn::tensor::Device;
use dtrain_protocol::device_check::TrainingSpeed;
use dtrain_protocol::{Failure, Pass};
use dtrain_recipes::{Decoder, Model, Optimizer as Rule, Precision, Recompute};
use std::time::Instant;

/// Fewest and most steps that are measured after the first one.
const STEPS: (u32, u32) = (3, 20);

/// Limit on the seconds of all measured steps together.
const TOGETHER: f64 = 4.0;

/// Number of bytes that a training may use if the size of the device's memory is unknown.
const MODEST: u64 = 3 << 30;

const RULE: Rule = Rule::ADAMW;

const RATE: f64 = 1e-3;

const PASS: Pass = Pass { micro: 0, chunk: 0 };

/// Creates a decoder of the Llama family with these sizes.
pub(super) fn llama(layers: u32, hidden: u32, heads: u32, ffn: u32, vocab: u32, context: u32) -> Decoder {
    Decoder { layers, hidden, heads, kv_heads: heads, ffn, vocab, context, ..Decoder::small_llama() }
}

/// Returns the decoders that may be trained, from small to large, each with the number of sequences in a
/// step.
pub(super) fn sizes() -> [(Decoder, u32); 4] {
    [
        (llama(2, 64, 4, 192, 256, 64), 4),
        (llama(4, 256, 4, 768, 2048, 256), 4),
        (llama(8, 512, 8, 1408, 8192, 512), 8),
        (llama(12, 1024, 16, 2816, 32_000, 1024), 4),
    ]
}

/// Returns the number of floating-point operations in a step: six for each parameter and token, and those
/// of attention.
fn flops(decoder: &Decoder, batch: u32) -> f64 {
    let tokens = f64::from(batch) * f64::from(decoder.context);
    let attention = 12.0 * f64::from(decoder.layers * decoder.hidden) * f64::from(decoder.context);
    tokens * (6.0 * decoder.parameters() as f64 + attention)
}

/// Returns a generous estimate of the bytes that a training uses: weights, gradients and moments;
/// activations with all scores; logits.
fn bytes(decoder: &Decoder, batch: u32) -> u64 {
    let [layers, hidden, heads, ffn, vocab, context] =
        [decoder.layers, decoder.hidden, decoder.heads, decoder.ffn, decoder.vocab, decoder.context]
            .map(u64::from);
    let tokens = u64::from(batch) * context;
    let of_a_token = layers * (16 * hidden + 6 * ffn + 6 * heads * context) + 5 * vocab;
    20 * decoder.parameters() + 4 * tokens * of_a_token
}

/// Returns the index in [`sizes`] of the largest decoder that fits into half of the memory, and whose
/// step, extrapolated from a smaller one, takes a few seconds at most.
pub(super) fn size(device: &Device, memory_bytes: u64) -> Result<usize, Failure> {
    let room = if memory_bytes == 0 { MODEST } else { memory_bytes / 2 };
    let sizes = sizes();
    let mut chosen = 0;
    loop {
        let (decoder, batch) = &sizes[chosen];
        let Some((next, sequences)) = sizes.get(chosen + 1) else { return Ok(chosen) };
        let model = Model::Decoder(decoder.clone());
        let mut rank = SingleRankTraining::build(&model, Precision::F32, device)?;
        let samples = SyntheticSamples::of(&model, *batch);
        rank.step(&samples)?;
        let expected = rank.step(&samples)?.1 * flops(next, *sequences) / flops(decoder, *batch);
        // A small decoder is mostly overhead, so the extrapolated time may be too high.
        if expected > 5.0 * LONGEST || bytes(next, *sequences) > room {
            return Ok(chosen);
        }
        chosen += 1;
    }
}

/// Trains the decoder number `size` of [`sizes`] for some steps, and returns its speed.
pub(super) fn measure(size: usize, precision: Precision, device: &Device) -> Result<TrainingSpeed, Failure> {
    let (decoder, batch) = sizes()[size].clone();
    // Memory that earlier work left for reuse would count as memory of this one.
    device.memory_cleanup();
    let model = Model::Decoder(decoder.clone());
    let mut rank = SingleRankTraining::build(&model, precision, device)?;
    let samples = SyntheticSamples::of(&model, batch);
    let (_, first) = rank.step(&samples)?;
    let (began, mut seconds) = (Instant::now(), Vec::new());
    for step in 0..STEPS.1 {
        if step >= STEPS.0 && began.elapsed().as_secs_f64() > TOGETHER {
            break;
        }
        seconds.push(rank.step(&samples)?.1);
    }
    let memory_peak_bytes = rank.memory(&samples)?;
    let step_seconds = median(&seconds);
    Ok(TrainingSpeed {
        parameters: decoder.parameters(),
        batch,
        precision,
        first_step_seconds: first,
        steps: u32::try_from(seconds.len()).unwrap_or(u32::MAX),
        step_seconds,
        tokens_per_second: f64::from(batch * decoder.context) / step_seconds,
        memory_peak_bytes,
        memory_reserved_bytes: device.memory_pool_usage().map(|usage| usage.bytes_reserved),
        decoder,
    })
}

/// A training on one rank, without data files or checkpoints.
pub(super) struct SingleRankTraining {
    stage: Stage,
    optimizer: StageOptimizer,
    loss_scale: f32,
    steps: u64,
}

impl SingleRankTraining {
    /// Builds a training whose initial weights are the same on every device.
    pub(super) fn build(model: &Model, precision: Precision, device: &Device) -> Result<Self, Failure> {
        let stage = Stage::build(model, 0..model.blocks(), 7, precision, Recompute::None, device);
        stage.map(|stage| Self::of(stage, precision)).map_err(|error| Failure::Other(error.to_string()))
    }

    pub(super) fn of(stage: Stage, precision: Precision) -> Self {
        let loss_scale = if precision == Precision::F16 { LOSS_SCALE } else { 1.0 };
        let optimizer = StageOptimizer::new(&RULE, stage.parameters());
        Self { stage, optimizer, loss_scale, steps: 0 }
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Runs one step. Returns the loss before the step, and the seconds until the device was idle.
    pub(super) fn step(&mut self, samples: &SyntheticSamples) -> Result<(f64, f64), Failure> {
        let mut loss = f64::NAN;
        let device = self.stage.device().clone();
        let seconds = timed(&device, || loss = self.pass(samples, &mut |_| ()))?;
        Ok((loss, seconds))
    }

    /// Runs one step, and calls `at` at the end of each phase. Returns the loss before the step.
    fn pass(&mut self, samples: &SyntheticSamples, at: &mut dyn FnMut(&Device)) -> f64 {
        let Self { stage, optimizer, loss_scale, steps } = self;
        let device = stage.device().clone();
        stage.gradients().clear();
        let flow = stage.forward(PASS, None, &samples.view());
        at(&device);
        stage.backward(PASS, None, *loss_scale, &mut |_, _| at(&device));
        *steps += 1;
        optimizer.step(stage, RATE, loss_scale.recip(), *steps);
        at(&device);
        match flow {
            ForwardOutput::Loss(figures) => {
                let figures = figures.read();
                figures.loss_sum / figures.count as f64
            }
            ForwardOutput::Activation(_) => f64::NAN,
        }
    }

    /// Runs one step and returns the peak bytes of tensors; `None` if the device does not report them.
    fn memory(&mut self, samples: &SyntheticSamples) -> Result<Option<u64>, Failure> {
        let mut most = None;
        self.pass(samples, &mut |device| {
            most = most.max(device.memory_pool_usage().map(|usage| usage.bytes_in_use));
        });
        sync(self.stage.device())?;
        Ok(most)
    }

    /// Returns the unscaled gradients of the last step as one flat vector.
    pub(super) fn gradients(&mut self) -> Vec<f32> {
        let all = 0..self.stage.parameters().len();
        let gradients = self.stage.gradients();
        gradients.to_host(all);
        gradients.values().iter().map(|value| value / self.loss_scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_is_measured_on_the_host() {
        let speed = measure(0, Precision::F32, &Device::flex()).unwrap();
        assert!(speed.tokens_per_second > 0.0 && speed.first_step_seconds > 0.0, "{speed:?}");
        assert!((STEPS.0..=STEPS.1).contains(&speed.steps));
        assert_eq!(speed.memory_peak_bytes, None, "the host does not tell");
    }

    #[test]
    fn larger_decoders_take_more_of_everything_and_the_smallest_always_fits() {
        let sizes = sizes();
        for pair in sizes.windows(2) {
            assert!(flops(&pair[0].0, pair[0].1) < flops(&pair[1].0, pair[1].1));
            assert!(bytes(&pair[0].0, pair[0].1) < bytes(&pair[1].0, pair[1].1));
        }
        assert!(bytes(&sizes[2].0, sizes[2].1) > MODEST, "it wants to know that there is room");
        assert_eq!(size(&Device::flex(), 1).unwrap(), 0);
    }
}
