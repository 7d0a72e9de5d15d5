//! Probe: measures how fast this host trains a model, with the same code that trains it.
//!
//! All ranks measure the same thing at the same time, so that their competition for cores, caches and
//! memory bandwidth is in the results. The number of repetitions follows from times that all ranks know, so
//! they agree on it. Samples are synthetic; reading real ones is not measured here.

mod bench;
mod full_step;
pub(crate) mod synthetic;

use crate::comm::{self, CommError, DeviceLinks, RankId, WaitPolicy};
use crate::device;
use crate::loss_scale::LossScale;
use crate::median::{median, spread};
use crate::memory;
use crate::mesh::{CommQueue, Mesh};
use crate::optimizer::StageOptimizer;
use crate::parallel::pipeline::PipelineMessages;
use crate::parallel::{GradientReduction, NoiseGauge};
use crate::stage::Stage;
use crate::step_timer::{DeviceClock, Slowdown};
use crate::train_step::Replica;
use bench::{PassBench, PassTimes};
use dtrain_protocol::{
    Arrangement, AttemptId, Failure, ProbeRequest, ProfilePoint, RankRates, RunUntil, TrialId, WaitLimits,
};
use dtrain_recipes::{Decoder, Model, Optimizer as Rule, Recompute};
use std::time::Instant;
use synthetic::SyntheticSamples;

/// Number of visits to each micro-batch size: the other sizes are measured in between, so that a slow
/// moment of the machine does not affect all passes of one.
const VISITS: u32 = 2;

/// Number of unmeasured passes at the start of a visit, in which caches, allocator and branch predictor
/// warm up.
const WARM_UP: usize = 1;

/// Fewest and most passes that are measured in a visit.
const REPEATS: (usize, usize) = (1, 12);

/// Lengths of the measured all-reduces, in bytes.
const ALL_REDUCE_BYTES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Share of the probe's time for collectives and whole steps together.
const TOGETHER: f64 = 0.5;

/// Share of the probe's time for whole steps, which fix the level of every prediction: the speed of a
/// shared machine varies within seconds.
const WHOLE: f64 = 0.4;

/// Measures the speeds of this rank while all other ranks of the request do the same. `announce` is used
/// with [`dtrain_protocol::RankTransport::Tls`] only, see [`comm::join`].
///
/// Always measures the first micro-batch; larger ones only within `budget_seconds`, to which the time is
/// added that a device needs to compile and tune its kernels for the first.
pub fn rates(
    request: &ProbeRequest,
    announce: impl FnOnce(&str) -> Result<Vec<String>, CommError>,
) -> Result<RankRates, Failure> {
    let began = Instant::now();
    let device = device::open(&request.placement).map_err(|error| Failure::Other(error.to_string()))?;
    let seat = RankId {
        trial: TrialId::for_probes(),
        attempt: AttemptId(0),
        rank: request.rank,
        ranks: request.layout.world(),
    };
    let ProbeRequest { layout, precision, .. } = *request;
    let arrangement =
        Arrangement { layout, precision, device: request.placement.device, ..Arrangement::SINGLE };
    let waits = WaitPolicy::new(WaitLimits::for_steps_of(None));
    let mesh = comm::join(&request.link, &seat, &waits, announce).and_then(|mut group| {
        let links = DeviceLinks::agree(group.as_mut(), &request.placement, &waits)?;
        Mesh::with_links(group, &arrangement, request.rank, &links)
    });
    let mesh = mesh.map_err(|error| error.failure())?;
    let baseline_bytes = memory::resident_bytes();
    let (model, is_whole) = measured(&request.model);
    let model = &model;
    let stage = Stage::build(model, 0..model.blocks(), 0, precision, Recompute::None, &device)
        .map_err(|error| Failure::Other(error.to_string()))?;
    let optimizer = StageOptimizer::new(&RULE, stage.parameters());
    let reduction = GradientReduction::of(&stage, &arrangement);
    let training = full_step::training();
    let messages = PipelineMessages::new(mesh.pipeline().clone(), stage.device());
    let slowdown = Slowdown::default();
    let noise = NoiseGauge::of(&training, &arrangement, &mesh);
    let (outer, loss_scale) = (None, LossScale::of(precision));
    let (training, until) = (&training, &RunUntil::default());
    let replica = Replica {
        training,
        until,
        stage,
        optimizer,
        reduction,
        outer,
        loss_scale,
        noise,
        messages,
        mesh,
        slowdown,
        clock: DeviceClock::of(&device),
        copying: None,
    };
    let mut bench = PassBench { replica, blocks: model.blocks(), steps: 0 };

    let request = &ProbeRequest { model: model.clone(), ..request.clone() };
    let left = |share: f64| request.budget_seconds * share - began.elapsed().as_secs_f64();
    let mut subjects = affordable(&mut bench, request, &|| left(1.0 - TOGETHER))?;
    let preparing = subjects.first().map_or(0.0, |subject| subject.preparing);
    let left = |share: f64| left(share) + preparing;
    let one: f64 = subjects.iter().map(|subject| subject.seconds).sum();
    // A large model is visited once, and its pages are warm by now: every pass takes seconds.
    let is_short = bench.agree(left(1.0 - TOGETHER) - one)? < 0.0;
    let (visits, warm_up) = if is_short { (1, 0) } else { (VISITS, WARM_UP) };
    for visit in 0..visits {
        let seconds = left(1.0 - TOGETHER) / f64::from(visits - visit);
        let repeats = bench.repeats(seconds, one)?;
        for subject in &mut subjects {
            subject.visit(&mut bench, warm_up, repeats)?;
        }
    }
    let profile: Vec<_> = subjects.iter().map(|subject| subject.point(bench.blocks)).collect();
    // Seconds of a sample, and the micro-batch, as the planner will probably choose it.
    let mut fastest = (f64::INFINITY, 1);
    for subject in &subjects {
        let on_all = bench.agree(subject.total() / f64::from(subject.micro_batch))?;
        if on_all < fastest.0 {
            fastest = (on_all, subject.micro_batch);
        }
    }
    let seconds = request.budget_seconds * WHOLE;
    let whole_step = if is_whole { full_step::measure(&mut bench, model, fastest, seconds)? } else { None };
    let parameters: usize =
        bench.replica.stage.parameters().iter().map(|parameter| parameter.range.len()).sum();
    Ok(RankRates {
        ranks: request.layout.world(),
        device: request.placement.device,
        threads: request.placement.threads,
        profile,
        optimizer_seconds_per_parameter: median(&values_of(&subjects, |s| s.median(|pass| pass.optimizer)))
            / parameters.max(1) as f64,
        all_reduce: all_reduce(bench.replica.mesh.world())?,
        spread: median(&values_of(&subjects, MeasuredMicroBatch::spread)),
        baseline_bytes,
        whole_step,
        precision,
        first_step_seconds: bench.replica.clock.is_asynchronous().then_some(preparing),
    })
}

/// Returns the part of a model that is measured, and `true` if it is the whole model. The blocks of a
/// decoder are alike: of a large one, one block is measured with the embedding and the head.
fn measured(model: &Model) -> (Model, bool) {
    match model {
        Model::Decoder(decoder) if model.parameters() > WHOLE_PARAMETERS && decoder.layers > 1 => {
            (Model::Decoder(Decoder { layers: 1, ..decoder.clone() }), false)
        }
        Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) | Model::Command(_) => {
            (model.clone(), true)
        }
    }
}

fn values_of(subjects: &[MeasuredMicroBatch], part: impl Fn(&MeasuredMicroBatch) -> f64) -> Vec<f64> {
    subjects.iter().map(part).collect()
}

/// A micro-batch size that is measured, with its results.
struct MeasuredMicroBatch {
    micro_batch: u32,
    samples: SyntheticSamples,
    /// Approximate seconds of a pass, including the weight update; `update` has those of the update. Both
    /// are the same on all ranks.
    seconds: f64,
    update: f64,
    /// Extra seconds that the first pass takes on a device, which compiles and tunes kernels; 0 on the
    /// host. The same number on all ranks.
    preparing: f64,
    /// Measured passes of the fastest visit.
    passes: Vec<PassTimes>,
    /// Seconds of each measured pass of all visits.
    all: Vec<f64>,
}

impl MeasuredMicroBatch {
    /// Measures `repeats` passes at the same time as the other ranks, after `warm_up` unmeasured passes;
    /// keeps them if the visit is the fastest so far.
    fn visit(&mut self, bench: &mut PassBench<'_>, warm_up: usize, repeats: usize) -> Result<(), Failure> {
        bench.replica.mesh.world().barrier()?;
        let passes = (0..warm_up + repeats).map(|_| bench.pass(&self.samples));
        let passes: Vec<_> = passes.skip(warm_up).collect();
        let total = |passes: &[PassTimes]| median(&passes.iter().map(PassTimes::total).collect::<Vec<_>>());
        self.all.extend(passes.iter().map(PassTimes::total));
        // All ranks choose the same visit, because they wait for each other.
        let [new, old] = [bench.agree(total(&passes))?, bench.agree(total(&self.passes))?];
        if self.passes.is_empty() || new < old {
            self.passes = passes;
        }
        Ok(())
    }

    fn median(&self, part: impl Fn(&PassTimes) -> f64) -> f64 {
        median(&self.passes.iter().map(part).collect::<Vec<_>>())
    }

    /// Returns the median seconds of a pass.
    fn total(&self) -> f64 {
        self.median(PassTimes::total)
    }

    fn spread(&self) -> f64 {
        spread(&self.all)
    }

    /// Returns the median times of the passes, for one block and for the rest of the model.
    ///
    /// Forward is divided in the ratio of backward: both do the same matrix products, backward twice as
    /// many.
    fn point(&self, blocks: u32) -> ProfilePoint {
        let (forward, inner) = (self.median(|p| p.forward), self.median(|p| p.backward[0]));
        let outer = self.median(|p| p.backward[1]);
        let (blocks, share) = (f64::from(blocks.max(1)), inner / (inner + outer));
        ProfilePoint {
            micro_batch: self.micro_batch,
            block_forward: forward * share / blocks,
            block_backward: inner / blocks,
            outer_forward: forward * (1.0 - share),
            outer_backward: outer,
            overhead: self.samples.seconds_to_gather(),
        }
    }
}

/// Returns the micro-batch sizes of a request for whose visits there is time; the first size is always
/// among them.
fn affordable(
    bench: &mut PassBench<'_>,
    request: &ProbeRequest,
    left: &dyn Fn() -> f64,
) -> Result<Vec<MeasuredMicroBatch>, Failure> {
    let mut subjects: Vec<MeasuredMicroBatch> = Vec::new();
    for micro_batch in &request.micro_batches {
        // The time of the visits so far, and of this one with its first pass at the rate of the last, whose
        // weight update takes the same time for any samples.
        let visits = f64::from(VISITS) * (WARM_UP + REPEATS.0) as f64;
        let before: f64 = subjects.iter().map(|subject| subject.seconds).sum();
        let this = subjects.last().map_or(0.0, |last| {
            last.update + (last.seconds - last.update) * f64::from(*micro_batch) / f64::from(last.micro_batch)
        });
        // The kernels of the first had to be compiled in any case; those of other shapes may take as long.
        let [first, last] = [subjects.first(), subjects.last()]
            .map(|subject| subject.map_or(0.0, |subject| subject.preparing));
        let least = visits * (before + this) + this + last;
        if bench.agree(least - (left() + first))? > 0.0 && !subjects.is_empty() {
            break;
        }
        let samples = SyntheticSamples::of(&request.model, *micro_batch);
        // The very first pass also fills caches that later ones reuse; on a device the first pass of every
        // shape does.
        let is_asynchronous = bench.replica.clock.is_asynchronous();
        let first = (is_asynchronous || subjects.is_empty()).then(|| bench.pass(&samples));
        let pass = bench.pass(&samples);
        let more = first.filter(|_| is_asynchronous).map_or(0.0, |first| first.total() - pass.total());
        let (seconds, update) = (bench.agree(pass.total())?, bench.agree(pass.optimizer)?);
        let preparing = bench.agree(more.max(0.0))?;
        subjects.push(MeasuredMicroBatch {
            micro_batch: *micro_batch,
            samples,
            seconds,
            update,
            preparing,
            passes: Vec::new(),
            all: Vec::new(),
        });
    }
    Ok(subjects)
}

/// Largest number of parameters with which a model is measured as a whole: 1 GiB of weights, gradients
/// and moments in f32.
const WHOLE_PARAMETERS: u64 = 64 << 20;

/// The optimizer that is measured.
const RULE: Rule = Rule::ADAMW;

/// Returns the length and the median seconds of each measured all-reduce; empty for one rank.
///
/// Not counted in `planner/src/step/traffic`: a measurement before training.
fn all_reduce(queue: &CommQueue) -> Result<Vec<(u64, f64)>, Failure> {
    let mut table = Vec::new();
    for bytes in ALL_REDUCE_BYTES.iter().filter(|_| queue.ranks() > 1) {
        let length = usize::try_from(bytes / 4).expect("addresses have 64 bits");
        let mut buffer = vec![1.0; length];
        let mut seconds = Vec::new();
        for repeat in 0..2 + 9 {
            buffer.fill(1.0);
            let began = Instant::now();
            queue.start_all_reduce(buffer);
            buffer = queue.wait()?;
            if repeat >= 2 {
                seconds.push(began.elapsed().as_secs_f64());
            }
        }
        table.push((*bytes, median(&seconds)));
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
