//! Checkpoint interval: often enough to lose little work, rarely enough to cost little time.
//!
//! At a checkpoint a rank takes a reference to its shard of the state and goes on; a thread copies it during
//! the next step, hashes and writes it. So on a CPU a checkpoint slows training by its processor time only;
//! training never waits for the disk.

use crate::price::memory::moments;
use crate::training::goodput::{FailureModel, RESTART_SECONDS, goodput};
use crate::training::mtbf::{HOST_MTBF_SECONDS, job_mtbf_seconds};
use crate::training::step_count::nearest_steps;
use dtrain_recipes::{Interval, Recipe};
use serde::{Deserialize, Serialize};

/// Seconds of work that a killed training may lose where a checkpoint costs almost nothing.
///
/// A host fails every few months, but people close their laptops, run out of memory and kill the wrong
/// process. Their patience, not machine failures, limits the interval of a run on one's own machine.
pub const SAVE_SECONDS: f64 = 30.0;

/// Duration in seconds below which a training is saved only at its end.
pub const SAVE_SHORTEST: f64 = 20.0;

/// Least number of automatic checkpoints in a training that is not short, where they cost almost nothing.
pub const SAVES_LEAST: f64 = 3.0;

/// Largest fraction of the time that checkpoints may take to limit lost work; only host failures justify
/// more.
pub const HOLD_SHARE: f64 = 0.01;

/// Rate at which a checkpoint stalls training: bytes of state per second, over all ranks of a host.
///
/// Measured on two busy cores, of which 152 MB took 0.14 core-seconds
/// (`cargo bench --workspace --bench checkpoint`), 2.2 GB/s; a step also waits for the slower of them.
pub const HOLD_BYTES_PER_SECOND: f64 = 1.5e9;

/// Rate at which a checkpoint becomes durable: bytes of state per second, over all ranks of a host. In the
/// measurement for [`HOLD_BYTES_PER_SECOND`], 152 MB took 0.16 s on a disk of its own; other hosts share
/// their disk.
pub const WRITE_BYTES_PER_SECOND: f64 = 5e8;

/// Least number of seconds by which a checkpoint stalls training: a thread, a file and its names.
const HOLD_LEAST: f64 = 0.01;

/// Checkpoint interval of a training, with its reason and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointInterval {
    /// Steps from one checkpoint to the next, at least 1.
    pub every: u64,
    /// Seconds by which one checkpoint stalls training.
    pub stall_seconds: f64,
    /// Reason for the length of the interval.
    pub reason: CheckpointReason,
    /// Expected goodput; `None` where the recipe does not set the rate of host failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
}

/// Reason for a checkpoint interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointReason {
    /// The recipe sets the interval.
    Recipe,
    /// The training is shorter than [`SAVE_SHORTEST`].
    ShortRun,
    /// The interval limits the work that a killed training may lose.
    LostWork,
    /// The interval limits the time that checkpoints take.
    Overhead,
    /// The interval minimizes the time lost to host failures.
    Failures,
}

/// Returns the checkpoint interval of a training of `steps` steps that take `step_seconds` each.
///
/// Automatic: every [`SAVE_SECONDS`], at least [`SAVES_LEAST`] times, but less often where checkpoints would
/// take more than [`HOLD_SHARE`] of the time. At any cost it is as often as host failures require, but never
/// while a checkpoint is being written. A run shorter than [`SAVE_SHORTEST`] is saved only at its end.
pub fn checkpoint_interval(recipe: &Recipe, steps: u64, step_seconds: f64) -> CheckpointInterval {
    #[expect(clippy::cast_precision_loss, reason = "step counts are far below 2^52")]
    let seconds = |steps: u64| steps as f64 * step_seconds;
    let failure_model = failure_model(recipe);
    let (every, reason) = match recipe.checkpoint.every {
        Interval::Steps(steps) => (steps.max(1), CheckpointReason::Recipe),
        Interval::Time(time) => (nearest_steps(time.0, step_seconds), CheckpointReason::Recipe),
        Interval::Auto if seconds(steps) <= SAVE_SHORTEST => (steps.max(1), CheckpointReason::ShortRun),
        Interval::Auto => {
            let (interval, reason) = automatic_interval(&failure_model, seconds(steps));
            (nearest_steps(interval.max(write_seconds(recipe)), step_seconds), reason)
        }
    };
    let useful = || goodput(&failure_model, seconds(every.min(steps)).max(step_seconds));
    CheckpointInterval {
        every,
        stall_seconds: failure_model.stall_seconds,
        reason,
        goodput: recipe.cluster.mtbf.map(|_| useful()),
    }
}

/// Returns the seconds of work between two automatic checkpoints in a training of `seconds` seconds, and the
/// reason.
fn automatic_interval(failure_model: &FailureModel, seconds: f64) -> (f64, CheckpointReason) {
    let patience = SAVE_SECONDS.min(seconds / SAVES_LEAST);
    let affordable = failure_model.stall_seconds / HOLD_SHARE;
    let best = interval_seconds(failure_model);
    if best < patience.max(affordable) {
        (best, CheckpointReason::Failures)
    } else if affordable > patience {
        (affordable, CheckpointReason::Overhead)
    } else {
        (patience, CheckpointReason::LostWork)
    }
}

/// Returns the seconds of work between two checkpoints with the least lost time at a given failure rate
/// (Young/Daly).
///
/// With `δ = stall_seconds` and `M = mtbf_seconds` it is `√(2δM)·(1 + ⅓√(δ/2M) + ⅑·δ/2M) − δ` where `δ < 2M`,
/// and `M` otherwise: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
/// dumps", Future Generation Computer Systems 22 (2006). Its first term is that of J. W. Young, "A first
/// order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974). The restart
/// time does not matter. Infinite without failures.
pub fn interval_seconds(failure_model: &FailureModel) -> f64 {
    let FailureModel { mtbf_seconds, stall_seconds, .. } = *failure_model;
    if mtbf_seconds.is_infinite() || stall_seconds >= 2.0 * mtbf_seconds {
        return mtbf_seconds;
    }
    let half = stall_seconds / (2.0 * mtbf_seconds);
    (2.0 * stall_seconds * mtbf_seconds).sqrt() * (1.0 + half.sqrt() / 3.0 + half / 9.0) - stall_seconds
}

/// Returns the failure model of a training. State not yet durable at a failure is lost, which counts as a
/// longer restart.
fn failure_model(recipe: &Recipe) -> FailureModel {
    let cluster = &recipe.cluster;
    let host = cluster.mtbf.map_or(HOST_MTBF_SECONDS, |mtbf| mtbf.0);
    FailureModel {
        mtbf_seconds: job_mtbf_seconds(host, cluster.host_count()),
        stall_seconds: HOLD_LEAST + state(recipe) / HOLD_BYTES_PER_SECOND,
        restart_seconds: RESTART_SECONDS + write_seconds(recipe),
    }
}

/// Returns the seconds from the start of writing a checkpoint until it is durable.
fn write_seconds(recipe: &Recipe) -> f64 {
    state(recipe) / WRITE_BYTES_PER_SECOND
}

/// Returns the seconds that the checkpoint at the end of a training takes, which overlaps with no further
/// step.
pub fn final_checkpoint_seconds(recipe: &Recipe) -> f64 {
    HOLD_LEAST + state(recipe) / HOLD_BYTES_PER_SECOND + write_seconds(recipe)
}

/// Returns the bytes of a checkpoint: weights and optimizer moments in 32 bits, once, for any layout.
pub fn state_bytes(recipe: &Recipe) -> u64 {
    let (all, trained) = (recipe.model.parameters(), recipe.model.trained_parameters());
    let frozen = if all == trained { 0 } else { all };
    4 * ((1 + moments(&recipe.train.optimizer)) * trained + frozen)
}

/// Returns the bytes of a checkpoint ([`state_bytes`]) as a float, for formulas.
pub(crate) fn state(recipe: &Recipe) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
    let bytes = state_bytes(recipe) as f64;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::{Seconds, Slurm};

    fn auto(
        model: dtrain_recipes::Model,
        mtbf: Option<f64>,
        steps: u64,
        step_seconds: f64,
    ) -> CheckpointInterval {
        let mut recipe = fixtures::recipe();
        (recipe.model, recipe.cluster.mtbf) = (model, mtbf.map(Seconds));
        checkpoint_interval(&recipe, steps, step_seconds)
    }

    #[test]
    fn cheap_checkpoints_come_every_half_minute_but_thrice_in_a_run() {
        let small = fixtures::models()[1].clone();
        let every = |steps, seconds| auto(small.clone(), None, steps, seconds).every;
        assert_eq!(every(100_000, 0.1), 300);
        assert_eq!(every(300, 0.1), 100, "30 s: three checkpoints");
        assert_eq!(every(100, 0.1), 100, "10 s: at the end only");
        assert_eq!(every(10, 60.0), 1);
    }

    #[test]
    fn what_the_recipe_says_is_kept() {
        let mut recipe = fixtures::recipe();
        let mut every = |every, seconds| {
            recipe.checkpoint.every = every;
            let saving = checkpoint_interval(&recipe, 100, seconds);
            assert_eq!(saving.reason, CheckpointReason::Recipe);
            saving.every
        };
        assert_eq!(every(Interval::Steps(7), 1.0), 7);
        assert_eq!(every(Interval::Time(Seconds(10.0)), 0.3), 33);
        assert_eq!(every(Interval::Time(Seconds(0.01)), 0.3), 1);
    }

    #[test]
    fn dear_checkpoints_take_no_more_than_a_hundredth_of_the_time() {
        for steps in [60, 1_000, 1_000_000] {
            let saving = auto(fixtures::gpt2(), None, steps, 0.5);
            // 124 million parameters of 12 bytes.
            assert!((saving.stall_seconds - 1.005).abs() < 0.01, "{saving:?}");
            assert_eq!((saving.every, saving.reason), (201, CheckpointReason::Overhead));
        }
    }

    #[test]
    fn where_hosts_fail_often_checkpoints_are_as_frequent_as_daly_says() {
        let rare = auto(fixtures::llama(), Some(30.0 * 86_400.0), 100_000, 0.1);
        assert_eq!((rare.every, rare.reason), (300, CheckpointReason::LostWork), "a month: patience decides");
        assert!(rare.goodput.is_some_and(|share| share > 0.99), "{rare:?}");
        let often = auto(fixtures::llama(), Some(600.0), 100_000, 0.1);
        assert_eq!(often.reason, CheckpointReason::Failures);
        let daly = (2.0 * often.stall_seconds * 600.0_f64).sqrt();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let seconds = often.every as f64 * 0.1;
        assert!((seconds / daly - 1.0).abs() < 0.05, "{seconds} s is not {daly} s");
        assert!(often.goodput.is_some_and(|share| (0.2..0.4).contains(&share)), "{often:?}");
    }

    #[test]
    fn the_nodes_of_a_job_fail_like_hosts_with_names() {
        let mut recipe = fixtures::recipe();
        (recipe.model, recipe.cluster.mtbf) = (fixtures::llama(), Some(Seconds(6_000.0)));
        let slurm = |nodes| Slurm {
            nodes,
            partition: None,
            account: None,
            time: None,
            options: Vec::new(),
            environment: Vec::new(),
        };
        let mut every = |nodes| {
            recipe.cluster.slurm = Some(slurm(nodes));
            checkpoint_interval(&recipe, 1_000_000, 0.1).every
        };
        assert!(every(64) < every(1) / 2, "{} and {}", every(64), every(1));
    }

    #[test]
    fn a_host_that_fails_sooner_than_anything_is_saved_still_leaves_a_plan() {
        let saving = auto(fixtures::gpt2(), Some(0.001), 1_000, 0.5);
        assert_eq!(saving.every, 6, "no checkpoint begins while another is written, which takes 3 s");
        assert!(saving.goodput.is_some_and(|share| share < 1e-9), "{saving:?}");
        assert_eq!(auto(fixtures::gpt2(), None, 1_000, 0.5).goodput, None, "the recipe sets no failure rate");
    }
}
