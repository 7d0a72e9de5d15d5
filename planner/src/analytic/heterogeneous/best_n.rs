//! The best layouts so far.

use super::grouped_layout::GroupedLayout;

/// A layout with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct PricedGroupedLayout {
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of the heaviest rank of the fullest group, over the memory of its devices.
    pub full: f64,
    /// The layout.
    pub layout: GroupedLayout,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedSearchResult {
    /// Fastest first, each once; all of them fit.
    pub best: Vec<PricedGroupedLayout>,
    /// Layouts that were priced, or that a bound showed to gain nothing; some of them more than once.
    pub layouts: u64,
    /// The layout that came nearest to fitting, where one did not.
    pub nearest: Option<PricedGroupedLayout>,
}

/// The best so far.
#[derive(Clone, Debug)]
pub(super) struct BestN {
    keep: usize,
    found: GroupedSearchResult,
}

impl BestN {
    pub(super) fn new(keep: usize) -> Self {
        Self { keep, found: GroupedSearchResult { best: Vec::new(), layouts: 0, nearest: None } }
    }

    /// The slowest that is kept; infinite while there is room.
    pub(super) fn last(&self) -> f64 {
        let best = &self.found.best;
        if best.len() < self.keep { f64::INFINITY } else { best[self.keep - 1].seconds }
    }

    /// Counts layouts that need not be priced.
    pub(super) fn skip(&mut self, layouts: u64) {
        self.found.layouts += layouts;
    }

    /// Takes note of a layout.
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
