//! Searches within the memory that an estimate leaves with certainty, then within all memory of the devices.

use super::host_count;
use crate::analytic::search::{LayoutSearchResult, SearchProblem, fastest, search_front};
use crate::analytic::uncertainty::{Z_80_PERCENT, model_memory_uncertainty};
use crate::hardware::HostGroup;

/// Standard deviations by which estimates stay below the memory of a device, the most certain first: 90, 75, 60
/// and 50 % of the layouts then fit.
pub(super) const LEVELS: [f64; 4] = [Z_80_PERCENT, 0.6745, 0.2533, 0.0];

/// Returns the factor by which the estimated memory of a layout must stay below that of a device, so that it
/// fits by `level` standard deviations of the error of the estimate.
pub(super) fn memory_margin(problem: &SearchProblem, level: f64) -> f64 {
    (level * model_memory_uncertainty(&problem.model, problem.constants)).exp()
}

/// Returns the problem with `share` of the memory of its devices.
pub(super) fn with_memory(problem: &SearchProblem, share: f64) -> SearchProblem {
    let cluster = HostGroup { memory: share * problem.cluster.memory, ..problem.cluster };
    SearchProblem { cluster, ..problem.clone() }
}

/// Searches the layouts of `asked` that fit with a probability of 90 %; if there are none, those that fit with
/// less, down to those whose estimate fits. Returns the problem, with the hosts and the memory in use, and what
/// was found.
pub(super) fn search_that_fits(asked: &SearchProblem, keep: usize) -> (SearchProblem, LayoutSearchResult) {
    let within = |level: f64| {
        let problem = with_memory(asked, 1.0 / memory_margin(asked, level));
        let problem = SearchProblem { cluster: host_count::cluster_to_use(&problem), ..problem };
        let found = search_front(&problem, keep);
        (problem, found)
    };
    let mut last = within(LEVELS[0]);
    for level in &LEVELS[1..] {
        if !last.1.best.is_empty() {
            break;
        }
        last = within(*level);
    }
    last
}

/// Largest factor by which more devices are tried.
const MOST: u32 = 64;

/// Returns the devices of the same kind, by doubling those of `problem`, on which a layout fits, with the
/// seconds of its step; `None` if none was found.
pub(super) fn enough_devices(problem: &SearchProblem) -> Option<(HostGroup, f64)> {
    let HostGroup { devices, per_host, .. } = problem.cluster;
    let factors =
        std::iter::successors(Some(2), |factor| Some(factor * 2)).take_while(|factor| *factor <= MOST);
    factors.filter_map(|factor| devices.checked_mul(factor)).find_map(|more| {
        let host = if devices <= per_host { more.min(8).max(per_host) } else { per_host };
        if !more.is_multiple_of(host) {
            return None;
        }
        let cluster = HostGroup { devices: more, per_host: host, ..problem.cluster };
        let larger = SearchProblem { cluster, ..problem.clone() };
        let seconds = fastest(&larger, f64::INFINITY)?.seconds;
        Some((cluster, seconds))
    })
}
