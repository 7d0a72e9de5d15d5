//! Collects the best layouts of a search over a heterogeneous cluster.

use super::grouped_layout::GroupedLayout;

/// A layout of a heterogeneous cluster, with its step time and memory use.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedGroupedLayout {
    /// Seconds per step of the layout.
    pub seconds: f64,
    /// Share of a device's memory that the peak takes, on the rank where it is highest; above 1 if it does
    /// not fit.
    pub full: f64,
    /// The layout that was priced.
    pub layout: GroupedLayout,
}

/// Result of a search over a heterogeneous cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedSearchResult {
    /// The best layouts that fit into memory, fastest first, without duplicates.
    pub best: Vec<PricedGroupedLayout>,
    /// Number of layouts that were priced or that a bound excluded, repeats included.
    pub layouts: u64,
    /// The layout closest to fitting into memory; `None` if every priced layout fit.
    pub nearest: Option<PricedGroupedLayout>,
}

/// The best layouts found so far, up to a given number.
#[derive(Clone, Debug)]
pub(super) struct BestN {
    keep: usize,
    found: GroupedSearchResult,
}

impl BestN {
    pub(super) fn new(keep: usize) -> Self {
        Self { keep, found: GroupedSearchResult { best: Vec::new(), layouts: 0, nearest: None } }
    }

    /// Returns the seconds of the slowest layout that is kept; infinity while fewer than `keep` are.
    pub(super) fn last(&self) -> f64 {
        let best = &self.found.best;
        if best.len() < self.keep { f64::INFINITY } else { best[self.keep - 1].seconds }
    }

    /// Counts layouts that were excluded without being priced.
    pub(super) fn skip(&mut self, layouts: u64) {
        self.found.layouts += layouts;
    }

    /// Counts a priced layout, and keeps it if it is among the best.
    pub(super) fn record(&mut self, layout: &GroupedLayout, seconds: f64, full: f64) {
        self.found.layouts += 1;
        let choice = || PricedGroupedLayout { seconds, full, layout: layout.clone() };
        if full > 1.0 {
            if self.found.nearest.as_ref().is_none_or(|nearest| full < nearest.full) {
                self.found.nearest = Some(choice());
            }
            return;
        }
        if seconds >= self.last() {
            return;
        }
        let best = &mut self.found.best;
        let at = best.partition_point(|other| other.seconds <= seconds);
        let mut equal = best[..at].iter().rev().take_while(|other| other.seconds >= seconds);
        if equal.all(|other| other.layout != *layout) {
            best.insert(at, choice());
            best.truncate(self.keep);
        }
    }

    pub(super) fn into_result(self) -> GroupedSearchResult {
        self.found
    }
}
