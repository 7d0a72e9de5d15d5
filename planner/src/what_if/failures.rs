//! Effects of host failures on a training: checkpoint interval, goodput and total time.

use crate::training::checkpoint_interval::{interval_seconds, state};
use crate::training::goodput::{self, FailureModel, RESTART_SECONDS};
use crate::training::mtbf::{HOST_MTBF_SECONDS, job_mtbf_seconds};
use crate::training::step_count::nearest_steps;
use dtrain_recipes::{Interval, Recipe};
use serde::Serialize;

/// Bytes/s that one host writes to checkpoint storage: the 2 TB/s of Llama 3's storage over its 2,048 hosts
/// (arXiv 2407.21783, section 3.3.1). Asynchronous checkpoints block an engine for less.
pub const STORAGE_BYTES_PER_SECOND: f64 = 1e9;

/// Forecast of host failures for a training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FailureForecast {
    /// Number of hosts; a failure of any one stops the training.
    pub hosts: u32,
    /// Mean time between failures of one host, in seconds.
    pub host_mtbf_seconds: f64,
    /// True if the recipe states the time between failures; otherwise it is assumed.
    pub is_mtbf_given: bool,
    /// Mean time between failures of any of the hosts, in seconds.
    pub mtbf_seconds: f64,
    /// Expected number of failures per day.
    pub per_day: f64,
    /// Expected number of failures in the whole training; `None` unless the recipe determines its steps.
    pub expected: Option<f64>,
    /// Assumed seconds from a failure until the first lost step is repeated.
    pub restart_seconds: f64,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: f64,
    /// Seconds for which a checkpoint blocks training.
    pub checkpoint_seconds: f64,
    /// Number of steps between two checkpoints.
    pub checkpoint_every: u64,
    /// Seconds between two checkpoints.
    pub checkpoint_every_seconds: f64,
    /// Goodput: the share of time that is useful after checkpoints and failures.
    pub goodput: f64,
    /// Goodput if hosts failed half as often, with the checkpoint interval to match.
    pub goodput_at_double_mtbf: f64,
    /// Seconds of the whole training with its failures; `None` if its steps are unknown or it would never
    /// end.
    pub total_seconds: Option<f64>,
    /// Device hours of the whole training with its failures; `None` if they are unknown.
    pub device_hours: Option<f64>,
}

/// Forecasts the host failures of a training on `devices` devices, `per_host` on each host, with `steps`
/// steps of `step_seconds` each.
pub(super) fn failure_forecast(
    recipe: &Recipe,
    (devices, per_host): (u32, u32),
    steps: Option<u64>,
    step_seconds: f64,
) -> FailureForecast {
    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
    let seconds = |steps: u64| steps as f64 * step_seconds;
    let hosts = devices.div_ceil(per_host.max(1));
    let host = recipe.cluster.mtbf.map_or(HOST_MTBF_SECONDS, |mtbf| mtbf.0);
    let bytes = state(recipe);
    let hazard = FailureModel {
        mtbf_seconds: job_mtbf_seconds(host, hosts),
        stall_seconds: bytes / f64::from(hosts) / STORAGE_BYTES_PER_SECOND,
        restart_seconds: RESTART_SECONDS,
    };
    let every = match recipe.checkpoint.every {
        Interval::Steps(steps) => steps.max(1),
        Interval::Time(time) => nearest_steps(time.0, step_seconds),
        Interval::Auto => nearest_steps(interval_seconds(&hazard), step_seconds),
    };
    let every = every.min(steps.unwrap_or(every)).max(1);
    let total = steps.map(|steps| goodput::wall_seconds(&hazard, seconds(every), seconds(steps)));
    let total = total.filter(|total| total.is_finite());
    FailureForecast {
        hosts,
        host_mtbf_seconds: host,
        is_mtbf_given: recipe.cluster.mtbf.is_some(),
        mtbf_seconds: hazard.mtbf_seconds,
        per_day: goodput::failures(&hazard, 86_400.0),
        expected: total.map(|total| goodput::failures(&hazard, total)),
        restart_seconds: hazard.restart_seconds,
        checkpoint_bytes: bytes,
        checkpoint_seconds: hazard.stall_seconds,
        checkpoint_every: every,
        checkpoint_every_seconds: seconds(every),
        goodput: goodput::goodput(&hazard, seconds(every)),
        goodput_at_double_mtbf: {
            let rarer = FailureModel { mtbf_seconds: 2.0 * hazard.mtbf_seconds, ..hazard };
            goodput::goodput(&rarer, interval_seconds(&rarer))
        },
        total_seconds: total,
        device_hours: total.map(|total| total / 3600.0 * f64::from(devices)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::{Activation, Decoder, Model, Seconds};

    const DAY: f64 = 86_400.0;

    /// Returns a recipe of Llama 3.1 405B.
    fn llama(mtbf: Option<f64>) -> Recipe {
        let mut recipe = fixtures::recipe();
        let Model::Decoder(decoder) = &mut recipe.model else { panic!("the sample is a decoder") };
        *decoder = Decoder {
            layers: 126,
            hidden: 16_384,
            heads: 128,
            kv_heads: 8,
            ffn: 53_248,
            vocab: 128_256,
            context: 8192,
            activation: Activation::Swiglu,
            ..*decoder
        };
        recipe.cluster.mtbf = mtbf.map(Seconds);
        recipe
    }

    /// Forecasts 16,384 GPUs in hosts of eight, with five seconds per step.
    fn on_16384(recipe: &Recipe) -> FailureForecast {
        failure_forecast(recipe, (16_384, 8), Some(500_000), 5.0)
    }

    /// "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4: 419 unexpected interruptions in 54
    /// days on 16,384 GPUs, and more than 90 % effective training time.
    #[test]
    fn llama_3_with_its_failures_is_effective_for_more_than_nine_tenths() {
        let found = on_16384(&llama(Some(54.0 * DAY * 2048.0 / 419.0)));
        assert!((found.per_day * 54.0 - 419.0).abs() < 1e-6, "{found:?}");
        assert!((0.90..0.95).contains(&found.goodput), "{found:?}");
        // 405 billion parameters of 12 bytes, over 2,048 hosts.
        assert!((2.0..3.0).contains(&found.checkpoint_seconds), "{found:?}");
        assert!((180.0..300.0).contains(&found.checkpoint_every_seconds), "{found:?}");
        let total = found.total_seconds.expect("steps are counted");
        assert!((total * found.goodput / (500_000.0 * 5.0) - 1.0).abs() < 1e-9, "{found:?}");
        assert!((found.expected.expect("steps are counted") - total / DAY * found.per_day).abs() < 1e-6);
    }

    /// Kokolis et al. (arXiv 2410.21680) project 1.8 hours for 16,384 GPUs and 0.23 hours for 131,072.
    #[test]
    fn assumed_failures_are_as_frequent_as_projected() {
        let hours = |devices| {
            let found = failure_forecast(&llama(None), (devices, 8), None, 5.0);
            assert!(!found.is_mtbf_given);
            found.mtbf_seconds / 3600.0
        };
        assert!((hours(16_384) - 1.8).abs() < 0.05);
        assert!((hours(131_072) - 0.23).abs() < 0.01);
    }

    #[test]
    fn said_checkpoints_are_kept_and_cost_what_they_cost() {
        let mut recipe = llama(None);
        let auto = on_16384(&recipe);
        recipe.checkpoint.every = Interval::Time(Seconds(3600.0));
        let hourly = on_16384(&recipe);
        assert_eq!(hourly.checkpoint_every, 720);
        assert!(hourly.goodput < auto.goodput - 0.1, "half an hour is lost every other hour: {hourly:?}");
    }

    #[test]
    fn a_short_training_is_saved_once_and_a_hopeless_one_never_ends() {
        let short = failure_forecast(&llama(None), (16_384, 8), Some(3), 5.0);
        assert_eq!(short.checkpoint_every, 3);
        let hopeless = on_16384(&llama(Some(0.01)));
        assert_eq!((hopeless.total_seconds, hopeless.expected), (None, None), "{hopeless:?}");
        let open = failure_forecast(&llama(None), (16_384, 8), None, 5.0);
        assert_eq!((open.total_seconds, open.device_hours), (None, None));
    }
}
