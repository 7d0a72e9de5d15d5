//! Which one change would help most: the search again, with the change.

use crate::analytic::search::{Cluster, Question, fastest};
use serde::Serialize;

/// What one change would make of a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The change, in words.
    pub change: String,
    /// Tokens a second of all devices together over those without the change, less one.
    pub speed: f64,
    /// Seconds of a step with the change.
    pub step_seconds: f64,
}

/// What each change would make of a training whose step takes `seconds`, the most helpful first. A change with which nothing
/// fits or divides is left out.
pub(super) fn advice(question: &Question, seconds: f64) -> Vec<Advice> {
    let cluster = question.cluster;
    let Cluster { devices, per_host, .. } = cluster;
    let on = |cluster: Cluster| Question { cluster, ..question.clone() };
    let of = |batch: u32| Question { batch, ..question.clone() };
    let more = |hosts: u32| {
        let devices = devices.saturating_add(hosts.saturating_mul(per_host));
        on(Cluster { devices: devices - devices % per_host, ..cluster })
    };
    let changes = [
        ("twice the memory of each GPU".to_owned(), on(Cluster { memory: 2.0 * cluster.memory, ..cluster })),
        ("a network twice as fast".to_owned(), on(Cluster { network: 2.0 * cluster.network, ..cluster })),
        ("links in each host twice as fast".to_owned(), on(Cluster { link: 2.0 * cluster.link, ..cluster })),
        ("two more hosts".to_owned(), more(2)),
        ("twice the hosts".to_owned(), more(devices / per_host)),
        ("twice the batch".to_owned(), of(question.batch.saturating_mul(2))),
        ("half the batch".to_owned(), of(question.batch / 2)),
    ];
    let before = f64::from(question.batch) / seconds;
    let mut all: Vec<Advice> = changes
        .into_iter()
        .filter(|(_, changed)| changed.batch > 0)
        .filter_map(|(change, changed)| {
            let best = fastest(&changed, f64::INFINITY)?.seconds;
            Some(Advice { change, speed: f64::from(changed.batch) / best / before - 1.0, step_seconds: best })
        })
        .collect();
    all.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    all
}
