//! Measures how fast this host trains a model, with the very code that trains it.
//!
//! All ranks measure the same thing at the same time, so that what they take from each other (cores, caches, memory
//! bandwidth) is in the figures. How often something is repeated follows from times that all ranks know, so they
//! agree on it. Samples are made up; reading real ones is not measured here.

mod samples;
mod whole;

use crate::comm::{self, CommError, Seat};
use crate::device;
use crate::interpret::Replica;
use crate::memory;
use crate::optimizer::Optimizer;
use crate::parallel::pipeline::Post;
use crate::parallel::{Ballot, Courier, Mesh, NoiseGauge, Reduction, tally};
use crate::stage::Stage;
use crate::watch::Tempo;
use dtrain_protocol::{
    Arrangement, AttemptId, Failure, Pass, ProbeRequest, ProfilePoint, RankRates, TrialId,
};
use dtrain_recipes::{Optimizer as Rule, OptimizerKind, Precision, Recompute};
use samples::Synthetic;
use std::time::Instant;

/// Passes before anything counts: caches, allocator and branch predictor settle.
const WARM_UP: usize = 2;

/// Fewest passes that count, and most. Five and more unless the time is too short for them.
const REPEATS: (usize, usize) = (2, 25);

/// Lengths of the all-reduces that are measured, in bytes.
const ALL_REDUCE_BYTES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Part of the time that is kept for the collectives and the whole steps.
const TOGETHER: f64 = 0.3;

/// Speeds of this rank while all ranks of the request work. `announce` is for [`dtrain_protocol::Link::Tls`] only, as
/// in [`comm::join`].
///
/// Always measures the first micro-batch; larger ones only as far as `budget_seconds` lasts.
pub fn rates(
    request: &ProbeRequest,
    announce: impl FnOnce(&str) -> Result<Vec<String>, CommError>,
) -> Result<RankRates, Failure> {
    let began = Instant::now();
    let device = device::open(&request.placement).map_err(|error| Failure::Other(error.to_string()))?;
    let seat = Seat {
        trial: TrialId("probe".into()),
        attempt: AttemptId(0),
        rank: request.rank,
        ranks: request.layout.world(),
    };
    let arrangement =
        Arrangement { layout: request.layout, device: request.placement.device, ..Arrangement::SINGLE };
    let group = comm::join(&request.link, &seat, comm::DEADLINE, announce);
    let mesh = group.and_then(|group| Mesh::of(group, &arrangement, request.rank));
    let mesh = mesh.map_err(|error| error.failure())?;
    let baseline_bytes = memory::resident_bytes();
    let model = &request.model;
    let stage = Stage::build(model, 0..model.blocks(), 0, Precision::F32, Recompute::None, &device)
        .map_err(|error| Failure::Other(error.to_string()))?;
    let optimizer = Optimizer::new(&RULE, stage.parameters());
    let reduction = Reduction::of(&stage, &arrangement);
    let training = whole::training();
    let post = Post::new(mesh.pipeline().clone(), stage.device());
    let tempo = Tempo::default();
    let noise = NoiseGauge::of(&training, &arrangement, &mesh);
    let (outer, loss_scale) = (None, None);
    let training = &training;
    let replica =
        Replica { training, stage, optimizer, reduction, outer, loss_scale, noise, post, mesh, tempo };
    let mut bench = Bench { replica, blocks: model.blocks(), steps: 0 };

    let mut profile = Vec::with_capacity(request.micro_batches.len());
    let (mut optimizer_seconds, mut spreads, mut sample_seconds) = (Vec::new(), Vec::new(), 0.0);
    // Seconds of a sample, and the micro-batch: near what will be planned.
    let mut fastest = (f64::INFINITY, 1);
    for (index, micro_batch) in request.micro_batches.iter().enumerate() {
        let left = request.budget_seconds * (1.0 - TOGETHER) - began.elapsed().as_secs_f64();
        let weight = f64::from(*micro_batch);
        let weights: f64 = request.micro_batches[index..].iter().copied().map(f64::from).sum();
        // A pass takes about as long as its micro-batch is large: each gets the same number of passes.
        let share = bench.agree(left * weight / weights)?;
        let samples = Synthetic::of(model, *micro_batch);
        let least = sample_seconds * weight * (WARM_UP + REPEATS.0) as f64;
        if bench.agree(least - left)? > 0.0 && index > 0 {
            break;
        }
        let passes = bench.measure(&samples, share)?;
        sample_seconds = median(&passes.iter().map(Timed::total).collect::<Vec<_>>()) / weight;
        let on_all = bench.agree(sample_seconds)?;
        if on_all < fastest.0 {
            fastest = (on_all, *micro_batch);
        }
        profile.push(point(*micro_batch, &passes, &samples, bench.blocks));
        optimizer_seconds.extend(passes.iter().map(|pass| pass.optimizer));
        spreads.push(spread(&passes.iter().map(Timed::total).collect::<Vec<_>>()));
    }
    let seconds = request.budget_seconds * TOGETHER / 2.0;
    let whole_step = whole::measure(&mut bench, model, fastest, seconds)?;
    let parameters: usize =
        bench.replica.stage.parameters().iter().map(|parameter| parameter.range.len()).sum();
    Ok(RankRates {
        ranks: request.layout.world(),
        device: request.placement.device,
        threads: request.placement.threads,
        profile,
        optimizer_seconds_per_parameter: median(&optimizer_seconds) / parameters.max(1) as f64,
        all_reduce: all_reduce(bench.replica.mesh.world())?,
        spread: median(&spreads),
        baseline_bytes,
        whole_step,
    })
}

/// The update rule that is timed; its learning rate is so small that the made-up samples teach nothing.
const RULE: Rule =
    Rule { kind: OptimizerKind::Adamw, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };

/// The only pass of a measured step.
const PASS: Pass = Pass { micro: 0, chunk: 0 };

/// What is measured, and with whom.
struct Bench<'a> {
    replica: Replica<'a>,
    blocks: u32,
    steps: u64,
}

/// Seconds of one pass: a step of a single micro-batch.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    forward: f64,
    /// Blocks, and everything around them.
    backward: [f64; 2],
    optimizer: f64,
}

impl Timed {
    fn total(&self) -> f64 {
        self.forward + self.backward[0] + self.backward[1] + self.optimizer
    }
}

impl Bench<'_> {
    /// The mean of `value` over the ranks: the same number for all.
    fn agree(&self, value: f64) -> Result<f64, Failure> {
        tally::send(&Ballot { loss_sum: value, count: 1, ..Ballot::default() }, self.replica.mesh.world());
        Ok(tally::collect(self.replica.mesh.world())?.loss())
    }

    /// Passes over `samples` that take about `seconds` together, side by side with the other ranks.
    fn measure(&mut self, samples: &Synthetic, seconds: f64) -> Result<Vec<Timed>, Failure> {
        self.replica.mesh.world().barrier()?;
        let warm: Vec<_> = (0..WARM_UP).map(|_| self.pass(samples)).collect();
        let one = self.agree(warm.last().map_or(0.0, Timed::total))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a few")]
        let repeats = ((seconds / one) as usize).saturating_sub(WARM_UP).clamp(REPEATS.0, REPEATS.1);
        Ok((0..repeats).map(|_| self.pass(samples)).collect())
    }

    /// A step of one micro-batch, without the other ranks.
    fn pass(&mut self, samples: &Synthetic) -> Timed {
        let Replica { stage, optimizer, .. } = &mut self.replica;
        let mut pass = Timed::default();
        let mut clock = Instant::now();
        let mut lap = move || std::mem::replace(&mut clock, Instant::now()).elapsed().as_secs_f64();
        stage.gradients().clear();
        pass.optimizer += lap();
        drop(stage.forward(PASS, None, &samples.view()));
        pass.forward = lap();
        let outer = [0, stage.units() - 1];
        stage.backward(PASS, None, 1.0, &mut |unit, _| {
            pass.backward[usize::from(outer.contains(&unit))] += lap();
        });
        drop(stage.device().sync());
        pass.backward[1] += lap();
        self.steps += 1;
        let norm = stage.gradients().norm_squared();
        let scale = if norm > 1.0 { 0.5 } else { 1.0 };
        optimizer.step(stage, 1e-9, scale, self.steps);
        drop(stage.device().sync());
        pass.optimizer += lap();
        pass
    }
}

/// Medians of the passes, for one block and for what surrounds the blocks.
///
/// Forward is told apart in the ratio of backward: both do the same matrix products, backward twice as many.
fn point(micro_batch: u32, passes: &[Timed], samples: &Synthetic, blocks: u32) -> ProfilePoint {
    let of = |part: fn(&Timed) -> f64| median(&passes.iter().map(part).collect::<Vec<_>>());
    let (forward, inner, outer) = (of(|p| p.forward), of(|p| p.backward[0]), of(|p| p.backward[1]));
    let (blocks, share) = (f64::from(blocks.max(1)), inner / (inner + outer));
    ProfilePoint {
        micro_batch,
        block_forward: forward * share / blocks,
        block_backward: inner / blocks,
        outer_forward: forward * (1.0 - share),
        outer_backward: outer,
        overhead: samples.seconds_to_gather(),
    }
}

/// Median seconds of all-reduces by length; empty for one rank.
fn all_reduce(courier: &Courier) -> Result<Vec<(u64, f64)>, Failure> {
    let mut table = Vec::new();
    for bytes in ALL_REDUCE_BYTES.iter().filter(|_| courier.ranks() > 1) {
        let length = usize::try_from(bytes / 4).expect("addresses have 64 bits");
        let mut buffer = vec![1.0; length];
        let mut seconds = Vec::new();
        for repeat in 0..WARM_UP + 9 {
            buffer.fill(1.0);
            let began = Instant::now();
            courier.send_sum(buffer);
            buffer = courier.next()?;
            if repeat >= WARM_UP {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        table.push((*bytes, median(&seconds)));
    }
    Ok(table)
}

/// The middle value; the mean of the two in the middle when their number is even; 0 of none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Median absolute deviation over median.
fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<_>>()) / middle
}

#[cfg(test)]
mod tests;
