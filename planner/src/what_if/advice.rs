//! Advice on single changes to a training, each of which is searched anew.

use super::DatasheetPlanRequest;
use super::describe_layout::describe_layout;
use super::ranking::RankedLayouts;
use super::state;
use crate::analytic::search::{PricedLayout, SearchProblem, fastest_beside};
use crate::analytic::{Constants, Software};
use crate::engine::{self, EngineSupport};
use crate::hardware::HostGroup;
use crate::layout::batch_split::divisors;
use crate::training::goodput::RESTART_SECONDS;
use dtrain_recipes::number_format::thousands;
use serde::Serialize;

/// Number of steps in one measurement; the first ones are discarded.
const STEPS_TO_MEASURE: f64 = 20.0;

/// Advice to train on one host fewer, which shows the value of a host; listed even if it slows training.
pub(super) const ONE_HOST_FEWER: &str = "one host fewer";

/// The effect of one change on a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Change to the training, in words.
    pub change: String,
    /// Relative gain in the tokens per second of all devices together.
    pub speed: f64,
    /// Seconds per step after the change.
    pub step_seconds: f64,
}

/// Returns the effect of each change to a training whose fastest layout is `known`, most helpful first.
/// Changes that leave no valid layout are left out.
pub(super) fn advice(
    request: &DatasheetPlanRequest<'_>,
    problem: &SearchProblem,
    known: &PricedLayout,
) -> Vec<Advice> {
    let seconds = known.seconds;
    let cluster = problem.cluster;
    let HostGroup { devices, per_host, .. } = request.cluster;
    let on = |cluster: HostGroup| SearchProblem { cluster, ..problem.clone() };
    let of = |batch: u32| SearchProblem { batch, ..problem.clone() };
    let hosts = devices / per_host;
    let with = |hosts: u32| on(HostGroup { devices: hosts.saturating_mul(per_host), ..request.cluster });
    let mut changes = vec![
        (
            "twice the memory of each GPU".to_owned(),
            on(HostGroup { memory: 2.0 * cluster.memory, ..cluster }),
        ),
        ("a network twice as fast".to_owned(), on(cluster.with_network(2.0 * cluster.network.bandwidth))),
        (
            "links in each host twice as fast".to_owned(),
            on(cluster.with_link(
                cluster.pair.unwrap_or(cluster.link).class,
                Some(2.0 * cluster.pair.unwrap_or(cluster.link).bandwidth),
            )),
        ),
        ("one more host".to_owned(), with(hosts + 1)),
        ("two more hosts".to_owned(), with(hosts + 2)),
        ("twice the hosts".to_owned(), with(hosts.saturating_mul(2))),
        ("twice the batch".to_owned(), of(problem.batch.saturating_mul(2))),
        ("half the batch".to_owned(), of(problem.batch / 2)),
    ];
    if hosts > 1 {
        changes.push((ONE_HOST_FEWER.to_owned(), with(hosts - 1)));
    }
    changes.extend(
        nearby_batches(problem.batch)
            .map(|batch| (format!("a batch of {}", thousands(batch.into())), of(batch))),
    );
    // Engines without measured GPU runs are planned only on request.
    let kind = cluster.gpu.kind();
    let others = engine::ALL.into_iter().filter(|engine| {
        engine.name() != request.engine.name()
            && engine.style().is_measured()
            && engine.kinds().contains(&kind)
    });
    changes.extend(others.filter_map(|engine| {
        let training = problem.runs_on.as_ref()?.training.clone();
        let precision = problem.products.precision();
        let software = Software::of_engine(engine, &training, precision, Constants::shipped());
        let runs_on = Some(EngineSupport { engine, training });
        let kernel = engine.style().kernel_on(cluster.gpu.generation().has_flash);
        let changed = SearchProblem { engine: software, runs_on, kernel, ..problem.clone() };
        Some((format!("the engine {}", engine.name()), changed))
    }));
    if let Some(EngineSupport { engine, training }) = &problem.runs_on {
        changes.extend(
            state::changes(training.state)
                .into_iter()
                .filter_map(|change| Some((change.words.to_owned(), change.of(problem, *engine)?))),
        );
    }
    let before = f64::from(problem.batch) / seconds;
    let mut all: Vec<Advice> = changes
        .into_iter()
        .filter(|(_, changed)| changed.batch > 0)
        .filter_map(|(change, changed)| {
            let limit = 2.0 * seconds * f64::from(changed.batch) / f64::from(problem.batch);
            let best = fastest_beside(&changed, &known.config, limit)?.seconds;
            Some(Advice { change, speed: f64::from(changed.batch) / best / before - 1.0, step_seconds: best })
        })
        .collect();
    all.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    all
}

/// Returns the two batch sizes within a tenth of `batch` that have the most divisors, if they have more than
/// `batch`.
fn nearby_batches(batch: u32) -> impl Iterator<Item = u32> {
    let parts = |batch: u32| divisors(batch.into()).len();
    let (least, most) = (batch - batch / 10, batch + batch / 10);
    // For large batches, only multiples of a power of two are tried.
    let stride = (batch / 1024).next_power_of_two().max(1);
    let all = (least.div_ceil(stride)..=most / stride).map(|n| n * stride);
    let mut better: Vec<u32> = all.filter(|near| *near != batch && parts(*near) > parts(batch)).collect();
    better.sort_by_key(|near| (std::cmp::Reverse(parts(*near)), near.abs_diff(batch)));
    better.into_iter().take(2)
}

/// The measurement that would tell most about the choice of a layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Layout to measure beside the chosen one, in words.
    pub layout: String,
    /// Standard deviation of the logarithm of the ratio of both step times.
    pub deviation: f64,
    /// Seconds that both measurements take, with a restart between them.
    pub seconds: f64,
    /// Device hours that both measurements take.
    pub device_hours: f64,
}

/// Returns the measurement of the tied layout whose step time is least certain in relation to that of the
/// choice; `None` without ties.
pub(super) fn measurement(preferred: &RankedLayouts, devices: u32) -> Option<Measurement> {
    let chosen = &preferred.chosen;
    let apart = preferred.ties.iter().map(|tie| (chosen.doubt.deviation_of_ratio(&tie.doubt), tie));
    let (deviation, other) = apart.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let seconds = STEPS_TO_MEASURE * (chosen.choice.seconds + other.choice.seconds) + RESTART_SECONDS;
    Some(Measurement {
        layout: describe_layout(&other.choice.config),
        deviation,
        seconds,
        device_hours: seconds / 3600.0 * f64::from(devices),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn batches_that_divide_better_are_near() {
        let near = |batch| super::nearby_batches(batch).collect::<Vec<_>>();
        assert_eq!(near(500), [504, 480]);
        assert!(near(2048).iter().all(|batch| (1844..=2252).contains(batch)));
        assert!(near(1).is_empty());
    }
}
