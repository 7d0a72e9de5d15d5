//! Probe: measures how fast hosts train a model, with various numbers of worker processes side by side.

mod ranks;

use crate::control_protocol::Program;
use crate::launch::relay::RemoteHost;
use dtrain_protocol::{DeviceKind, Gpu, HostFacts, ProfilePoint, RankRates, Rates, WholeStep};
use dtrain_recipes::{Model, Precision};
use ranks::measure;
use std::num::NonZeroU32;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use sysinfo::System;

/// Parameters of a probe.
pub struct Probe<'a> {
    /// Program of a measuring rank: reads a `ProbeRequest`, answers with `RankRates`.
    pub worker: Program,
    /// Model whose training is measured.
    pub model: &'a Model,
    /// Digest of the model.
    pub model_digest: &'a str,
    /// Properties of the host or hosts, from [`host_facts`].
    pub host: HostFacts,
    /// Micro-batch sizes to measure, ascending.
    pub micro_batches: Vec<u32>,
    /// Precision of matrix products on GPUs; on a CPU they are f32.
    pub precision: Precision,
    /// Time for all measurements together, in seconds.
    pub budget_seconds: f64,
    /// Seconds by which one measurement may exceed its share of the time before it is given up: at least one
    /// pass of every kind of block is measured, however long it takes.
    pub grace_seconds: f64,
}

/// Measures the rates for each number of ranks in turn; `progress` is called with the numbers of ranks and
/// threads before each measurement.
///
/// Runs on all hosts at once; if `others` is empty, on this machine. CPU ranks are 1, 2, 4, … up to the
/// number of cores, which they share evenly; GPU ranks are 1, 2, 4, … up to the number of GPUs. Other
/// processes may use the cores for seconds, so each number of ranks is measured twice with the others in
/// between: the faster time counts for each part, and the mean for whole steps.
pub fn rates(
    probe: &Probe<'_>,
    others: &mut [RemoteHost],
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Rates, ProbeError> {
    let gpus = u32::try_from(probe.host.gpus.len()).unwrap_or(u32::MAX);
    let (hosts, cores) = (probe.host.hosts.get(), probe.host.cores.max(1));
    let on = |device, most| doublings(most).map(move |ranks| (device, ranks * hosts));
    let gpu = probe.host.gpu_device().unwrap_or(DeviceKind::Cuda);
    let runs: Vec<_> = on(DeviceKind::Cpu, cores).chain(on(gpu, gpus)).collect();
    let again: Vec<_> = runs.iter().filter(|(device, _)| *device == DeviceKind::Cpu).copied().collect();
    #[expect(clippy::cast_precision_loss, reason = "there are few runs")]
    let budget_seconds = probe.budget_seconds / (runs.len() + again.len()) as f64;
    let mut by_ranks: Vec<RankRates> = Vec::new();
    let began = Instant::now();
    for (device, ranks) in runs.into_iter().chain(again) {
        // A large model takes its time once; sizes for which no time is left are derived from the measured
        // ones.
        let is_known = by_ranks.iter().any(|known| known.device == device);
        if is_known && began.elapsed().as_secs_f64() > probe.budget_seconds {
            continue;
        }
        let threads = (cores / (ranks / hosts)).max(1);
        progress(ranks, threads);
        let measured = match measure(probe, others, device, (ranks, threads), budget_seconds) {
            Err(ProbeError::Late { .. }) if is_known => continue,
            measured => mean(&measured?),
        };
        let nothing = || ProbeError::Worker { ranks, reason: "nothing was measured".into() };
        let measured = measured.ok_or_else(nothing)?;
        match by_ranks.iter_mut().find(|known| (known.device, known.ranks) == (device, ranks)) {
            Some(known) => *known = merge_repetitions(known, &measured),
            None => by_ranks.push(measured),
        }
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Rates {
        host: probe.host.clone(),
        measured_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        model_digest: probe.model_digest.into(),
        by_ranks,
    })
}

/// Returns 1, 2, 4, … up to `most`, and `most` itself.
fn doublings(most: u32) -> impl Iterator<Item = u32> {
    let last = (most > 0 && !most.is_power_of_two()).then_some(most);
    (0..32).map(|power| 1 << power).take_while(move |ranks| *ranks <= most).chain(last)
}

/// Averages the simultaneous measurements of several ranks. Parts that some of them did not measure are left
/// out; memory is the maximum.
fn mean(measured: &[RankRates]) -> Option<RankRates> {
    let first = measured.first()?;
    #[expect(clippy::cast_precision_loss, reason = "a host has few ranks")]
    let over =
        |figure: &dyn Fn(&RankRates) -> f64| measured.iter().map(figure).sum::<f64>() / measured.len() as f64;
    let points = measured.iter().map(|one| one.profile.len()).min()?;
    let point = |index: usize| {
        let part = |part: fn(&ProfilePoint) -> f64| over(&|one| part(&one.profile[index]));
        ProfilePoint {
            micro_batch: first.profile[index].micro_batch,
            block_forward: part(|p| p.block_forward),
            block_backward: part(|p| p.block_backward),
            outer_forward: part(|p| p.outer_forward),
            outer_backward: part(|p| p.outer_backward),
            overhead: part(|p| p.overhead),
        }
    };
    let lengths = measured.iter().map(|one| one.all_reduce.len()).min()?;
    let all_reduce = |index: usize| (first.all_reduce[index].0, over(&|one| one.all_reduce[index].1));
    Some(RankRates {
        ranks: first.ranks,
        device: first.device,
        threads: first.threads,
        profile: (0..points).map(point).collect(),
        optimizer_seconds_per_parameter: over(&|one| one.optimizer_seconds_per_parameter),
        all_reduce: (0..lengths).map(all_reduce).collect(),
        spread: over(&|one| one.spread),
        baseline_bytes: measured.iter().map(|one| one.baseline_bytes).max()?,
        whole_step: first.whole_step.map(|whole| WholeStep {
            seconds: over(&|one| one.whole_step.map_or(whole.seconds, |whole| whole.seconds)),
            ..whole
        }),
        precision: first.precision,
        // The ranks wait for each other.
        first_step_seconds: measured.iter().filter_map(|one| one.first_step_seconds).max_by(f64::total_cmp),
    })
}

/// Merges two measurements: the faster time of every part, for micro-batches that either measured. Parts
/// decide between layouts, and must not depend on a slow moment; real training has slow moments, so the
/// overall level, set by a whole step, is the mean.
fn merge_repetitions(one: &RankRates, other: &RankRates) -> RankRates {
    let total = |point: &ProfilePoint| {
        point.block_forward + point.block_backward + point.outer_forward + point.outer_backward
    };
    let mut profile = one.profile.clone();
    for point in &other.profile {
        match profile.binary_search_by_key(&point.micro_batch, |known| known.micro_batch) {
            Ok(at) if total(point) < total(&profile[at]) => profile[at] = *point,
            Ok(_) => {}
            Err(at) => profile.insert(at, *point),
        }
    }
    let of_sample = |whole: &WholeStep| whole.seconds / f64::from(whole.micro_batch * whole.micro_batches);
    let whole_step = match (one.whole_step, other.whole_step) {
        (Some(a), Some(b)) if (a.micro_batch, a.micro_batches) == (b.micro_batch, b.micro_batches) => {
            Some(WholeStep { seconds: f64::midpoint(a.seconds, b.seconds), ..a })
        }
        (a, b) => a.into_iter().chain(b).min_by(|a, b| of_sample(a).total_cmp(&of_sample(b))),
    };
    let sums = one.all_reduce.iter().zip(&other.all_reduce);
    RankRates {
        profile,
        optimizer_seconds_per_parameter: one
            .optimizer_seconds_per_parameter
            .min(other.optimizer_seconds_per_parameter),
        all_reduce: sums.map(|((bytes, a), (_, b))| (*bytes, a.min(*b))).collect(),
        spread: f64::midpoint(one.spread, other.spread),
        baseline_bytes: one.baseline_bytes.max(other.baseline_bytes),
        whole_step,
        ..one.clone()
    }
}

/// Returns the properties of this host for the planner. `gpus` are those that the worker can use.
///
/// Cores and memory are limited to those this process may use, by affinity and control group.
pub fn host_facts(gpus: Vec<Gpu>) -> HostFacts {
    let system = System::new().ok().map(|mut system| {
        system.refresh_memory();
        system.refresh_cpu_all();
        system
    });
    let brand = |system: &System| Some(system.cpus().first()?.brand().trim().to_owned());
    let memory = |system: &System| {
        let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
        system.total_memory().min(limit)
    };
    let cores =
        thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX));
    HostFacts {
        name: System::host_name().unwrap_or_else(|_| "localhost".into()),
        hosts: NonZeroU32::MIN,
        processor: system.as_ref().and_then(brand).unwrap_or_default(),
        cores,
        memory_bytes: system.as_ref().map_or(0, memory),
        gpus,
        links: None,
    }
}

/// Formats a number of measured ranks: `1 rank` or `2 ranks side by side`.
fn side_by_side(ranks: u32) -> String {
    if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks side by side") }
}

/// Error of a probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A worker could not be started, or gave no usable answer.
    #[error("cannot measure {}: {reason}", side_by_side(*ranks))]
    Worker {
        /// Number of ranks that ran side by side.
        ranks: u32,
        /// Cause of the failure.
        reason: String,
    },
    /// The workers did not answer in time.
    #[error("measuring {} took {:.0} s longer than it may", side_by_side(*ranks), grace_seconds)]
    Late {
        /// Number of ranks that ran side by side.
        ranks: u32,
        /// Extra seconds after which the workers were given up.
        grace_seconds: f64,
    },
    /// A worker ran out of memory.
    #[error("cannot measure {}: {reason}", side_by_side(*ranks))]
    Memory {
        /// Number of ranks that ran side by side.
        ranks: u32,
        /// Cause of the failure.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(seconds: f64, points: u32) -> RankRates {
        let point = |micro_batch| ProfilePoint {
            micro_batch,
            block_forward: seconds,
            block_backward: 2.0 * seconds,
            outer_forward: seconds,
            outer_backward: seconds,
            overhead: 0.0,
        };
        RankRates {
            ranks: 2,
            device: DeviceKind::Cpu,
            threads: 1,
            profile: (1..=points).map(point).collect(),
            optimizer_seconds_per_parameter: seconds,
            all_reduce: vec![(1024, seconds)],
            spread: 0.0,
            baseline_bytes: u64::from(points),
            whole_step: None,
            precision: Precision::F32,
            first_step_seconds: None,
        }
    }

    #[test]
    fn ranks_double_up_to_every_core() {
        assert_eq!(doublings(1).collect::<Vec<_>>(), [1]);
        assert_eq!(doublings(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!(doublings(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(doublings(0).count(), 0);
    }

    #[test]
    fn the_mean_keeps_what_all_ranks_measured() {
        let mean = mean(&[measured(1.0, 2), measured(3.0, 1)]).expect("two were measured");
        assert_eq!((mean.profile.len(), mean.baseline_bytes), (1, 2));
        assert!((mean.profile[0].block_backward - 4.0).abs() < 1e-12);
        assert!((mean.all_reduce[0].1 - 2.0).abs() < 1e-12);
        assert!(super::mean(&[]).is_none());
    }

    #[test]
    fn ranks_that_compile_are_waited_for() {
        let compiling = |seconds| RankRates { first_step_seconds: Some(seconds), ..measured(1.0, 1) };
        let mean = mean(&[compiling(2.0), compiling(5.0)]).expect("two were measured");
        assert_eq!(mean.first_step_seconds, Some(5.0));
    }

    #[test]
    fn of_two_measurements_the_faster_parts_count_and_the_mean_of_whole_steps() {
        let (mut slow, mut quick) = (measured(3.0, 2), measured(2.0, 1));
        slow.profile[0].block_forward = 0.1;
        slow.whole_step = Some(WholeStep { micro_batch: 4, micro_batches: 2, seconds: 9.0 });
        quick.whole_step = Some(WholeStep { micro_batch: 1, micro_batches: 2, seconds: 3.0 });
        let both = merge_repetitions(&slow, &quick);
        assert_eq!(both, merge_repetitions(&quick, &slow));
        assert_eq!(both.profile.iter().map(|point| point.micro_batch).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(both.profile[0], quick.profile[0], "parts of one pass stay together");
        assert_eq!(both.profile[1], slow.profile[1]);
        assert_eq!((both.all_reduce[0].1, both.optimizer_seconds_per_parameter), (2.0, 2.0));
        assert_eq!(both.whole_step, slow.whole_step, "by the sample");
        quick.whole_step = Some(WholeStep { micro_batch: 4, micro_batches: 2, seconds: 7.0 });
        let level = merge_repetitions(&slow, &quick).whole_step.map(|whole| whole.seconds);
        assert_eq!(level, Some(8.0), "of the same step, the mean");
    }

    #[test]
    fn this_host_has_cores_and_memory() {
        let facts = host_facts(Vec::new());
        assert!(facts.cores >= 1 && facts.memory_bytes > 1 << 20, "{facts:?}");
    }

    /// Returns the error of a worker that is this shell script.
    fn complaint(script: &str) -> ProbeError {
        complaint_within(30.0, script)
    }

    /// Like `complaint`, with a grace period in seconds.
    fn complaint_within(grace_seconds: f64, script: &str) -> ProbeError {
        let model = Model::Command(dtrain_recipes::model::ForeignCommand {
            argv: vec!["true".into()],
            framework: dtrain_recipes::Framework::Pytorch,
            progress: Vec::new(),
            env: std::collections::BTreeMap::new(),
        });
        let probe = Probe {
            worker: Program::new("/bin/sh", ["-c", script]),
            model: &model,
            model_digest: "",
            host: host_facts(Vec::new()),
            micro_batches: vec![1],
            precision: Precision::F32,
            budget_seconds: 0.1,
            grace_seconds,
        };
        rates(&probe, &mut [], &mut |_, _| {}).expect_err("it measured nothing")
    }

    #[test]
    fn a_worker_that_ends_without_an_answer_is_reported_with_its_last_words() {
        let words = |script| complaint(script).to_string();
        assert_eq!(
            words("echo first >&2; echo no backend >&2; exit 1"),
            "cannot measure 1 rank: rank 0: no backend"
        );
        assert_eq!(words("exit 3"), "cannot measure 1 rank: rank 0: exited with 3 without a word");
        assert_eq!(words("kill -SEGV $$"), "cannot measure 1 rank: rank 0: killed by signal 11");
        let backtrace = "printf 'broken\\nnote: run with RUST_BACKTRACE\\nstack backtrace:\\n   0: main\\n             at x.rs:1\\n' >&2";
        assert_eq!(words(&format!("{backtrace}; exit 1")), "cannot measure 1 rank: rank 0: broken");
    }

    #[test]
    fn a_worker_that_does_not_answer_is_given_up() {
        let error = complaint_within(0.0, "exec sleep 600");
        assert!(matches!(error, ProbeError::Late { ranks: 1, .. }), "{error:?}");
    }

    #[test]
    fn a_worker_without_memory_is_reported_as_such() {
        let abort = "printf 'memory allocation of 1048576 bytes failed\\nstack backtrace:\\n   0: x\\n' >&2; kill -ABRT $$";
        let error = complaint(abort);
        assert!(matches!(error, ProbeError::Memory { ranks: 1, .. }), "{error:?}");
        assert!(error.to_string().ends_with("out of memory: there was no room for 1.0 MiB"), "{error}");
        let error = complaint("kill -KILL $$");
        assert!(matches!(error, ProbeError::Memory { .. }), "{error:?}");
        assert!(error.to_string().contains("signal 9"), "{error}");
    }
}
