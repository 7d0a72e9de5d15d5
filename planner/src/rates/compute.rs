//! Compute time of one micro-batch on one rank: from the measured profile, or from a roofline model of the
//! data sheet.

use crate::hardware::device_peak::DevicePeak;
use crate::rates::custom_model;
use crate::rates::forward_work::ForwardWork;
use dtrain_protocol::ProfilePoint;
use dtrain_recipes::{Cnn, Decoder, Mlp, Model, Precision};

/// Seconds of one micro-batch on a rank that holds the whole model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MicroBatchCost {
    /// Seconds of the forward pass through one block.
    pub block_forward: f64,
    /// Seconds of the backward pass through one block.
    pub block_backward: f64,
    /// Seconds of the forward pass through the layers around the blocks.
    pub outer_forward: f64,
    /// Seconds of the backward pass through the layers around the blocks.
    pub outer_backward: f64,
    /// Seconds of reading samples and accumulating gradients.
    pub overhead: f64,
    /// Distance of extrapolation: 0 within the measured micro-batch sizes, otherwise the logarithm of the
    /// ratio to the nearest.
    pub beyond: f64,
}

impl MicroBatchCost {
    /// Returns the cost with every time multiplied by `factor`; `beyond` stays.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            block_forward: self.block_forward * factor,
            block_backward: self.block_backward * factor,
            outer_forward: self.outer_forward * factor,
            outer_backward: self.outer_backward * factor,
            overhead: self.overhead * factor,
            beyond: self.beyond,
        }
    }
}

/// Returns the cost of a micro-batch of `micro` samples from a measured profile; `None` if the profile is
/// empty.
///
/// Interpolates linearly between measured points. Beyond them it extends the line of the two nearest, but not
/// below half of `guess` scaled to the nearest point. A single point is scaled in the shape of `guess`, the
/// roofline: small micro-batches are bound by reading weights, large ones by their products.
pub fn interpolated(
    profile: &[ProfilePoint],
    micro: u32,
    guess: impl Fn(u32) -> MicroBatchCost,
) -> Option<MicroBatchCost> {
    let (first, last) = (profile.first()?, profile.last()?);
    let at = f64::from(micro);
    let (low, high) = match profile.iter().position(|p| p.micro_batch >= micro) {
        Some(0) if profile.len() > 1 => (first, &profile[1]),
        Some(index) if index > 0 => (&profile[index - 1], &profile[index]),
        None if profile.len() > 1 => (&profile[profile.len() - 2], last),
        Some(_) | None => (last, last),
    };
    let (x0, x1) = (f64::from(low.micro_batch), f64::from(high.micro_batch));
    let near = if micro <= first.micro_batch { first } else { last };
    let (guessed, guessed_near) = (guess(micro), guess(near.micro_batch));
    let part = |of: fn(&ProfilePoint) -> f64, guessed: f64, guessed_near: f64| {
        let growth =
            if guessed_near > 0.0 { guessed / guessed_near } else { at / f64::from(near.micro_batch) };
        let scaled = of(near) * growth;
        let (y0, y1) = (of(low), of(high));
        if low.micro_batch == high.micro_batch {
            return scaled;
        }
        let line = y0 + (y1 - y0) * (at - x0) / (x1 - x0);
        let is_inside = (first.micro_batch..=last.micro_batch).contains(&micro);
        if is_inside { line } else { line.max(0.5 * scaled) }
    };
    let (begin, end) = (f64::from(first.micro_batch), f64::from(last.micro_batch));
    let (g, n) = (guessed, guessed_near);
    Some(MicroBatchCost {
        block_forward: part(|p| p.block_forward, g.block_forward, n.block_forward),
        block_backward: part(|p| p.block_backward, g.block_backward, n.block_backward),
        outer_forward: part(|p| p.outer_forward, g.outer_forward, n.outer_forward),
        outer_backward: part(|p| p.outer_backward, g.outer_backward, n.outer_backward),
        overhead: part(|p| p.overhead, at, f64::from(near.micro_batch)),
        beyond: (at / end).ln().max((begin / at).ln()).max(0.0),
    })
}

/// Returns the roofline cost of a micro-batch of `micro` samples: the slower of arithmetic and memory
/// traffic, plus the launch of each operation.
pub fn roofline(model: &Model, device: &DevicePeak, precision: Precision, micro: u32) -> MicroBatchCost {
    let work = forward_work(model);
    let samples = f64::from(micro);
    let seconds = |flops: f64, weights: f64, values: f64, operations: f64| {
        let arithmetic = flops * samples / (device.flops(precision) * device.efficiency);
        let traffic = 4.0 * (weights + values * samples) / device.memory_bandwidth;
        arithmetic.max(traffic) + operations * device.launch
    };
    let block = seconds(work.block_flops, work.block_weights, work.block_values, 25.0);
    let outer = seconds(work.outer_flops, work.outer_weights, work.outer_values, 10.0);
    // Frozen weights need no weight gradients, only those of the input.
    let backward = if model.has_frozen_weights() { 1.0 } else { 2.0 };
    MicroBatchCost {
        block_forward: block,
        block_backward: backward * block,
        outer_forward: outer,
        outer_backward: backward * outer,
        overhead: 0.05 * (f64::from(model.blocks()) * block + outer) + 5.0 * device.launch,
        beyond: 0.0,
    }
}

/// Returns the work of the forward pass of `model` for one sample; a multiply-add counts as two FLOPs.
pub fn forward_work(model: &Model) -> ForwardWork {
    match model {
        Model::Decoder(d) => decoder(d),
        Model::Mlp(m) => mlp(m),
        Model::Cnn(c) => cnn(c),
        Model::Custom(own) => custom_model::forward_work(own),
        Model::Command(_) => ForwardWork {
            block_flops: 0.0,
            block_weights: 0.0,
            block_values: 0.0,
            outer_flops: 0.0,
            outer_weights: 0.0,
            outer_values: 0.0,
        },
    }
}

/// Returns the FLOPs of each block of a model relative to their mean. A profile knows the mean alone, but the
/// blocks of a perceptron or a residual network differ.
pub fn relative_block_flops(model: &Model) -> Vec<f64> {
    let flops = match model {
        Model::Mlp(m) => mlp_blocks(m),
        Model::Cnn(c) => cnn_blocks(c).into_iter().map(|(flops, _)| flops).collect(),
        #[expect(clippy::cast_precision_loss, reason = "operations are far below 2^52")]
        Model::Custom(own) => {
            own.outline.blocks.iter().map(|block| custom_model::flops(block, None).max(1) as f64).collect()
        }
        Model::Decoder(_) | Model::Command(_) => return vec![1.0; model.blocks() as usize],
    };
    let all: f64 = flops.iter().sum();
    let count = f64::from(model.blocks());
    flops.into_iter().map(|flops| flops / all * count).collect()
}

/// Returns the FLOPs per sample of each block of a perceptron; the output layer belongs to the last block.
fn mlp_blocks(m: &Mlp) -> Vec<f64> {
    let widths: Vec<f64> = m.widths().iter().map(|width| f64::from(*width)).collect();
    let mut flops: Vec<f64> = widths.windows(2).map(|w| 2.0 * w[0] * w[1]).collect();
    if let Some(last) = flops.pop().filter(|_| !flops.is_empty()) {
        *flops.last_mut().expect("it is not empty") += last;
    }
    flops
}

/// Returns the FLOPs per sample of each block of a residual network, and the number of values it reads and
/// writes.
fn cnn_blocks(c: &Cnn) -> Vec<(f64, f64)> {
    let mut pixels = f64::from(c.height) * f64::from(c.width);
    let mut before = f64::from(c.stages[0]);
    let mut blocks = Vec::new();
    for (index, stage) in c.stages.iter().enumerate() {
        let after = f64::from(*stage);
        if index > 0 {
            pixels /= 4.0;
        }
        for _ in 0..c.blocks {
            blocks.push((
                convolution(pixels, before, after) + convolution(pixels, after, after),
                pixels * 14.0 * after,
            ));
            before = after;
        }
    }
    blocks
}

/// Returns the FLOPs of a 3 × 3 convolution from `input` to `output` channels over `pixels` pixels.
fn convolution(pixels: f64, input: f64, output: f64) -> f64 {
    2.0 * pixels * input * output * 9.0
}

fn decoder(d: &Decoder) -> ForwardWork {
    #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
    let (weights, active) = (d.block_parameters() as f64, d.block_parameters_active() as f64);
    let passed = d.experts.map_or(1.0, |experts| f64::from(experts.per_token));
    let queries = f64::from(d.heads) * f64::from(d.head_width());
    let (s, h, f, v) = (f64::from(d.context), f64::from(d.hidden), f64::from(d.ffn), f64::from(d.vocab));
    let causal = 0.5;
    let up = if d.activation.is_gated() { 3.0 } else { 2.0 };
    ForwardWork {
        block_flops: s * (2.0 * active + causal * 4.0 * s * queries),
        block_weights: weights,
        block_values: s * (14.0 * h + passed * up * 2.0 * f) + causal * 4.0 * s * s * f64::from(d.heads),
        outer_flops: 2.0 * s * h * v,
        outer_weights: h * v,
        outer_values: s * (4.0 * h + 4.0 * v),
    }
}

fn mlp(m: &Mlp) -> ForwardWork {
    let widths: Vec<f64> = m.widths().iter().map(|w| f64::from(*w)).collect();
    let weights: f64 = widths.windows(2).map(|w| w[0] * w[1]).sum();
    let blocks = f64::from(u32::try_from(m.hidden.len()).unwrap_or(u32::MAX)).max(1.0);
    let values: f64 = widths.iter().sum();
    ForwardWork {
        block_flops: 2.0 * weights / blocks,
        block_weights: weights / blocks,
        block_values: 4.0 * values / blocks,
        outer_flops: 0.0,
        outer_weights: 0.0,
        outer_values: 4.0 * f64::from(m.classes),
    }
}

fn cnn(c: &Cnn) -> ForwardWork {
    let all = cnn_blocks(c);
    let (flops, values) = all.iter().fold((0.0, 0.0), |sum, block| (sum.0 + block.0, sum.1 + block.1));
    let blocks = f64::from(c.blocks) * f64::from(u32::try_from(c.stages.len()).unwrap_or(u32::MAX));
    let first = f64::from(c.stages[0]);
    let stem = convolution(f64::from(c.height) * f64::from(c.width), f64::from(c.channels), first);
    let last = c.stages.last().copied().map_or(first, f64::from);
    #[expect(clippy::cast_precision_loss, reason = "parameter counts are far below 2^52")]
    let weights = c.parameters() as f64;
    ForwardWork {
        block_flops: flops / blocks,
        block_weights: weights / blocks,
        block_values: values / blocks,
        outer_flops: stem + 2.0 * last * f64::from(c.classes),
        outer_weights: last * f64::from(c.classes),
        outer_values: 6.0 * f64::from(c.height) * f64::from(c.width) * f64::from(c.stages[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::MlpActivation;

    /// Returns a cost proportional to the samples.
    fn even(micro: u32) -> MicroBatchCost {
        MicroBatchCost {
            block_forward: 1.0,
            block_backward: 1.0,
            outer_forward: 1.0,
            outer_backward: 1.0,
            overhead: 1.0,
            beyond: 0.0,
        }
        .scaled(f64::from(micro))
    }

    fn point(micro_batch: u32, seconds: f64) -> ProfilePoint {
        ProfilePoint {
            micro_batch,
            block_forward: seconds,
            block_backward: 2.0 * seconds,
            outer_forward: seconds,
            outer_backward: seconds,
            overhead: 0.1 * seconds,
        }
    }

    #[test]
    fn a_measured_point_is_returned_as_it_was_measured() {
        let profile = [point(1, 1.0), point(4, 2.5), point(16, 8.0)];
        for p in &profile {
            let cost = interpolated(&profile, p.micro_batch, even).expect("the profile is not empty");
            assert!((cost.block_forward - p.block_forward).abs() < 1e-12);
            assert!((cost.block_backward - p.block_backward).abs() < 1e-12);
            assert!(cost.beyond == 0.0);
        }
    }

    #[test]
    fn between_points_the_cost_lies_between_and_beyond_it_grows() {
        let profile = [point(2, 1.0), point(4, 2.5)];
        let forward = |micro| interpolated(&profile, micro, even).expect("not empty");
        assert!((forward(3).block_forward - 1.75).abs() < 1e-12);
        assert!(forward(8).block_forward > 2.5 && forward(8).beyond > 0.6);
        assert!(forward(1).block_forward > 0.0 && forward(1).beyond > 0.6);
        assert!(interpolated(&[], 1, even).is_none());
        let one = interpolated(&[point(4, 2.0)], 8, even).expect("not empty");
        assert!((one.block_forward - 4.0).abs() < 1e-12);
    }

    #[test]
    fn from_one_point_the_cost_goes_on_as_reading_weights_and_then_their_products_do() {
        let mlp = Mlp { inputs: 64, hidden: vec![2048; 4], classes: 10, activation: MlpActivation::Relu };
        let (model, sheet) = (Model::Mlp(mlp), DevicePeak::of_cores(1));
        let profile = [point(1, 0.01)];
        let guess = |micro| roofline(&model, &sheet, Precision::F32, micro);
        let forward = |micro| interpolated(&profile, micro, guess).expect("not empty").block_forward;
        assert!((forward(1) - 0.01).abs() < 1e-12);
        assert!(forward(2) < 0.015, "the weights are read once: {}", forward(2));
        assert!((1.8..2.1).contains(&(forward(1024) / forward(512))), "products take their time");
        assert!(forward(512) < 0.5 * 512.0 * forward(1), "so many samples at once are worth it");
    }

    #[test]
    fn a_token_costs_the_experts_that_it_passes() {
        let [dense, experts] = [fixtures::llama(), fixtures::experts()].map(|model| forward_work(&model));
        // Two feed-forwards of three matrices 256 × 1,024 instead of one, and a router 256 × 8.
        let more = 256.0 * (2.0 * f64::from(3 * 256 * 1024 + 256 * 8));
        assert!((experts.block_flops - dense.block_flops - more).abs() < 1.0);
        assert!(
            (experts.block_weights - dense.block_weights - f64::from(7 * 3 * 256 * 1024 + 256 * 8)).abs()
                < 1.0
        );
    }

    #[test]
    fn blocks_differ_where_their_widths_do_and_together_are_as_many() {
        let mlp = Mlp { inputs: 64, hidden: vec![1024; 3], classes: 4, activation: MlpActivation::Relu };
        let mlp = relative_block_flops(&Model::Mlp(mlp));
        assert!((mlp.iter().sum::<f64>() - 3.0).abs() < 1e-12 && mlp[0] < 0.1 && mlp[1] > 1.4, "{mlp:?}");
        let cnn = Cnn { channels: 1, height: 16, width: 16, stages: vec![16, 32], blocks: 2, classes: 4 };
        let cnn = relative_block_flops(&Model::Cnn(cnn));
        // The first block of the second stage reads half the channels in one of its two convolutions.
        assert!((cnn.iter().sum::<f64>() - 4.0).abs() < 1e-12);
        assert!((cnn[2] / cnn[3] - 0.75).abs() < 1e-12 && (cnn[0] / cnn[3] - 1.0).abs() < 1e-12, "{cnn:?}");
        assert_eq!(relative_block_flops(&fixtures::llama()), vec![1.0; fixtures::llama().blocks() as usize]);
    }

    #[test]
    fn a_decoder_costs_two_operations_a_weight_and_token() {
        let model = fixtures::gpt2();
        let work = forward_work(&model);
        let flops = f64::from(model.blocks()) * work.block_flops + work.outer_flops;
        // 2·N·s plus causal attention 2·L·s²·h, with N excluding the position table.
        let expected = 2.0 * 123.6e6 * 1024.0 + 2.0 * 12.0 * 1024.0 * 1024.0 * 768.0;
        assert!((flops / expected - 1.0).abs() < 0.01, "{flops} against {expected}");
    }
}
