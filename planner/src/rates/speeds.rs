//! Speeds of one rank of a pool: as they were measured, carried over from the nearest measurement, or the data sheet.

use crate::layout::space::RankPool;
use crate::price::cost_model::CostInputs;
use crate::rates::compute::{self, MicroBatchCost};
use crate::rates::hardware::{Datasheet, datasheet};
use dtrain_protocol::{DeviceKind, RankRates};
use dtrain_recipes::Precision;

/// Where a pool's constants come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedSource {
    /// Measured with as many ranks and threads.
    Measured,
    /// Measured with this many ranks, carried over.
    Nearby(u32),
    /// The data sheet.
    Datasheet,
}

/// Speeds of one rank of a pool.
#[derive(Clone, Debug)]
pub struct RankSpeeds {
    /// By precision, then by the index of the micro-batch among all.
    pub micro: [Vec<MicroBatchCost>; 2],
    /// Seconds of AdamW for one parameter.
    pub optimizer_per_parameter: f64,
    /// Seconds of an all-reduce by bytes, where it was measured.
    pub all_reduce: Vec<(u64, f64)>,
    /// The curve's times multiplied by this are those of sending its bytes one way.
    pub all_reduce_scale: f64,
    /// The data sheet of the device, for its links.
    pub link: Datasheet,
    /// Resident bytes before the model is built.
    pub baseline: u64,
    /// Where these come from.
    pub source: SpeedSource,
    /// Relative spread of repeated passes.
    pub spread: f64,
    /// Threads of all ranks for each core, at least 1.
    pub crowd: f64,
    /// How much longer a whole step took than its parts together say.
    pub whole: f64,
    /// Relative half-width of the 80 % interval, inside the measured micro-batches.
    pub doubt: f64,
    /// Relative difference that cannot be told apart.
    pub resolution: f64,
    /// Seconds that the first step takes beyond those after it, where they were measured on a device.
    pub first_step: Option<f64>,
}

/// Time of a step in 16 bits over that in 32 on a GPU: of its products half as long, of the rest as long.
const HALF_AS_LONG: f64 = 0.6;

/// What the first step adds to a process beyond anything counted: code, stacks and the allocator's own pages.
const FIRST_STEP: u64 = 30 << 20;

/// Bytes of a rank before the model is built, where nobody measured them: the process on a CPU, the context and
/// the libraries on a GPU (where a probe measures the process, not the device).
fn baseline(device: DeviceKind, measured: Option<u64>) -> u64 {
    match device {
        DeviceKind::Cpu => measured.unwrap_or(18 << 20) + FIRST_STEP,
        DeviceKind::Cuda | DeviceKind::Wgpu => 600 << 20,
    }
}

/// Speeds of a rank of `pool`: measured as it is, carried over from the nearest measurement, or the data sheet.
pub fn rank_speeds(case: &CostInputs<'_>, pool: RankPool, micros: &[u32]) -> RankSpeeds {
    match nearest_measurement(case, pool) {
        Some(rates) => extrapolated(case, pool, micros, rates, distance(rates, pool)),
        None => from_datasheet(case, pool, micros),
    }
}

/// The measurement whose ranks and threads are most like those of `pool`.
pub fn nearest_measurement<'a>(case: &CostInputs<'a>, pool: RankPool) -> Option<&'a RankRates> {
    let measured = case.rates.into_iter().flat_map(|rates| &rates.by_ranks);
    let usable = measured.filter(|r| r.device == pool.device && !r.profile.is_empty() && r.ranks > 0);
    usable.min_by(|a, b| {
        let nearer = distance(a, pool).total_cmp(&distance(b, pool));
        nearer.then_with(|| (a.ranks, a.threads).cmp(&(b.ranks, b.threads)))
    })
}

/// How unlike the ranks and threads of a measurement are those of `pool`; 0 when they are the same.
fn distance(rates: &RankRates, pool: RankPool) -> f64 {
    let far = |a: u32, b: u32| (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs();
    far(rates.ranks, pool.ranks) + 0.5 * far(rates.threads, pool.threads)
}

/// Speeds carried over from a measurement at `distance` (0: as it was measured).
fn extrapolated(
    case: &CostInputs<'_>,
    pool: RankPool,
    micros: &[u32],
    rates: &RankRates,
    distance: f64,
) -> RankSpeeds {
    let exact = distance == 0.0;
    let crowd =
        crowd(case, pool) / crowd(case, RankPool { ranks: rates.ranks, threads: rates.threads, ..pool });
    let slower = (f64::from(rates.threads.max(1)) / f64::from(pool.threads)).powf(0.8) * crowd;
    let sheet = link(case, pool);
    let guess = |micro| compute::roofline(case.model, &sheet, rates.precision, micro);
    let cost = |as_long: f64| {
        let at = |micro: &u32| {
            compute::interpolated(&rates.profile, *micro, guess)
                .unwrap_or_default()
                .scaled(slower * as_long * case.factors.compute)
        };
        micros.iter().map(at).collect::<Vec<_>>()
    };
    let of_precision = match rates.precision {
        Precision::F32 => [1.0, HALF_AS_LONG],
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => [1.0 / HALF_AS_LONG, 1.0],
    };
    let ways = 2.0 * (1.0 - 1.0 / f64::from(rates.ranks.max(1)));
    let curve = if rates.ranks > 1 { rates.all_reduce.clone() } else { Vec::new() };
    RankSpeeds {
        micro: of_precision.map(cost),
        optimizer_per_parameter: rates.optimizer_seconds_per_parameter * slower,
        all_reduce: curve,
        all_reduce_scale: if rates.ranks > 1 { crowd / ways } else { 1.0 },
        link: sheet,
        baseline: baseline(pool.device, Some(rates.baseline_bytes)),
        source: if exact { SpeedSource::Measured } else { SpeedSource::Nearby(rates.ranks) },
        spread: rates.spread.clamp(0.0, 0.5),
        crowd: self::crowd(case, pool),
        whole: 1.0,
        doubt: 0.06 + 1.9 * rates.spread.max(0.0) + 0.3 * distance,
        resolution: rates.spread.clamp(0.01, 0.10) + 0.05 * distance,
        first_step: rates.first_step_seconds,
    }
}

/// Threads of the ranks of a pool for each core of the hosts, at least 1.
fn crowd(case: &CostInputs<'_>, pool: RankPool) -> f64 {
    match pool.device {
        DeviceKind::Cpu => {
            (f64::from(pool.ranks * pool.threads) / f64::from(case.host.all_cores().max(1))).max(1.0)
        }
        DeviceKind::Cuda | DeviceKind::Wgpu => 1.0,
    }
}

fn from_datasheet(case: &CostInputs<'_>, pool: RankPool, micros: &[u32]) -> RankSpeeds {
    let sheet = link(case, pool);
    let cost = |precision| {
        let at = |m: &u32| compute::roofline(case.model, &sheet, precision, *m).scaled(case.factors.compute);
        micros.iter().map(at).collect::<Vec<_>>()
    };
    RankSpeeds {
        micro: [cost(Precision::F32), cost(Precision::Bf16)],
        // Weights, gradients and two moments are read, three of them written.
        optimizer_per_parameter: 28.0 / sheet.memory_bandwidth,
        all_reduce: Vec::new(),
        all_reduce_scale: 1.0,
        baseline: baseline(pool.device, None),
        source: SpeedSource::Datasheet,
        spread: 0.02,
        crowd: crowd(case, pool),
        whole: 1.0,
        doubt: sheet.doubt - 1.0,
        resolution: 0.05,
        first_step: None,
        link: sheet,
    }
}

fn link(case: &CostInputs<'_>, pool: RankPool) -> Datasheet {
    let name = case.host.gpus.first().map_or("", |gpu| gpu.name.as_str());
    datasheet(pool.device, name, pool.threads)
}
