//! Speeds of one rank in a pool of equal ranks: measured, extrapolated from the nearest measurement, or from
//! the data sheet.

use crate::hardware::Link;
use crate::hardware::device_peak::DevicePeak;
use crate::layout::space::RankPool;
use crate::rates::compute::{self, MicroBatchCost};
use crate::rates::cost_inputs::CostInputs;
use dtrain_protocol::{DeviceKind, RankRates};
use dtrain_recipes::Precision;

/// Origin of the speeds of a pool of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeedSource {
    /// Measured with the same numbers of ranks and threads.
    Measured,
    /// Extrapolated from a measurement with this many ranks.
    Nearby(u32),
    /// Taken from the data sheet.
    Datasheet,
}

/// Network between the hosts of a pool of ranks, from the data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolNetwork {
    /// Network of one rank to ranks of other hosts.
    pub link: Link,
    /// Number of ranks on each host.
    pub ranks_per_host: u32,
}

/// Speeds of one rank in a pool of equal ranks.
#[derive(Clone, Debug)]
pub struct RankSpeeds {
    /// Costs of a micro-batch in f32 and in 16 bits, by index of the micro-batch size.
    pub micro: [Vec<MicroBatchCost>; 2],
    /// Seconds of an AdamW update per parameter.
    pub optimizer_per_parameter: f64,
    /// Measured curve of an all-reduce as (bytes, seconds); empty where none was measured.
    pub all_reduce: Vec<(u64, f64)>,
    /// Factor by which to multiply times of the all-reduce curve to get those of sending its bytes one way.
    pub all_reduce_scale: f64,
    /// Link between the ranks, from the data sheet, for where no all-reduce was measured.
    pub link: Link,
    /// Network between the hosts of the pool, for where no all-reduce was measured; `None` for one host, and
    /// for CPUs.
    pub network: Option<PoolNetwork>,
    /// Bytes resident in a rank before the model is built.
    pub baseline: u64,
    /// Origin of these speeds.
    pub source: SpeedSource,
    /// Relative spread between repeated passes.
    pub spread: f64,
    /// Number of threads of all ranks per core, at least 1.
    pub crowd: f64,
    /// Ratio of the measured time of a whole step to the sum of its parts; 1 if it was not measured.
    pub whole: f64,
    /// Relative half-width of the 80 % interval of the step time, within the measured micro-batch sizes.
    pub doubt: f64,
    /// Relative difference below which two step times tie.
    pub resolution: f64,
    /// Extra seconds of the first step on a device; `None` if they were not measured.
    pub first_step: Option<f64>,
}

/// Ratio of the step time in 16 bits to that in f32 on a GPU: products take half as long, all else as long as
/// before.
const HALF_AS_LONG: f64 = 0.6;

/// Bytes by which the first step grows a rank beyond all that is counted: code, stacks and allocator pages.
const FIRST_STEP: u64 = 30 << 20;

/// Returns the bytes resident in a rank before the model is built; if unmeasured, a default: the process on a
/// CPU, context and libraries on a GPU (where a probe measures the process, not the device).
fn baseline(device: DeviceKind, measured: Option<u64>) -> u64 {
    match device {
        DeviceKind::Cpu => measured.unwrap_or(18 << 20) + FIRST_STEP,
        DeviceKind::Cuda | DeviceKind::Wgpu => 600 << 20,
    }
}

/// Returns the speeds of a rank in `pool`: measured, extrapolated from the nearest measurement, or from the
/// data sheet.
pub fn rank_speeds(case: &CostInputs<'_>, pool: RankPool, micros: &[u32]) -> RankSpeeds {
    match nearest_measurement(case, pool) {
        Some(rates) => extrapolated(case, pool, micros, rates, distance(rates, pool)),
        None => from_datasheet(case, pool, micros),
    }
}

/// Returns the measurement whose ranks and threads are most similar to those of `pool`; `None` if there is
/// none on its kind of device.
pub fn nearest_measurement<'a>(case: &CostInputs<'a>, pool: RankPool) -> Option<&'a RankRates> {
    let measured = case.rates.into_iter().flat_map(|rates| &rates.by_ranks);
    let usable = measured.filter(|r| r.device == pool.device && !r.profile.is_empty() && r.ranks > 0);
    usable.min_by(|a, b| {
        let nearer = distance(a, pool).total_cmp(&distance(b, pool));
        nearer.then_with(|| (a.ranks, a.threads).cmp(&(b.ranks, b.threads)))
    })
}

/// Returns the distance between a measurement and `pool`, in logarithms of their numbers of ranks and
/// threads; 0 if equal.
fn distance(rates: &RankRates, pool: RankPool) -> f64 {
    let far = |a: u32, b: u32| (f64::from(a.max(1)) / f64::from(b.max(1))).ln().abs();
    far(rates.ranks, pool.ranks) + 0.5 * far(rates.threads, pool.threads)
}

/// Extrapolates the speeds of `pool` from a measurement at `distance`; at distance 0 they are those measured.
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
    let peak = peak(case, pool);
    let guess = |micro| compute::roofline(case.model, &peak, rates.precision, micro);
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
        link: peak.link,
        network: network(case, pool, &peak),
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

/// Returns the number of threads of all ranks in a pool per core of the hosts, at least 1.
fn crowd(case: &CostInputs<'_>, pool: RankPool) -> f64 {
    match pool.device {
        DeviceKind::Cpu => {
            (f64::from(pool.ranks * pool.threads) / f64::from(case.host.all_cores().max(1))).max(1.0)
        }
        DeviceKind::Cuda | DeviceKind::Wgpu => 1.0,
    }
}

fn from_datasheet(case: &CostInputs<'_>, pool: RankPool, micros: &[u32]) -> RankSpeeds {
    let peak = peak(case, pool);
    let cost = |precision| {
        let at = |m: &u32| compute::roofline(case.model, &peak, precision, *m).scaled(case.factors.compute);
        micros.iter().map(at).collect::<Vec<_>>()
    };
    RankSpeeds {
        micro: [cost(Precision::F32), cost(Precision::Bf16)],
        // Reads weights, gradients and two moments; writes three of them.
        optimizer_per_parameter: 28.0 / peak.memory_bandwidth,
        all_reduce: Vec::new(),
        all_reduce_scale: 1.0,
        baseline: baseline(pool.device, None),
        source: SpeedSource::Datasheet,
        spread: 0.02,
        crowd: crowd(case, pool),
        whole: 1.0,
        doubt: peak.doubt - 1.0,
        resolution: 0.05,
        first_step: None,
        link: peak.link,
        network: network(case, pool, &peak),
    }
}

fn peak(case: &CostInputs<'_>, pool: RankPool) -> DevicePeak {
    DevicePeak::of_rank(case.host_group().as_ref(), pool.device, pool.threads)
}

fn network(case: &CostInputs<'_>, pool: RankPool, peak: &DevicePeak) -> Option<PoolNetwork> {
    let hosts = case.host.hosts;
    let link = peak.network.filter(|_| hosts.get() > 1)?;
    Some(PoolNetwork { link, ranks_per_host: (pool.ranks / hosts).max(1) })
}
