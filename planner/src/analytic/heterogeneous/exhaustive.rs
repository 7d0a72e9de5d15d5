//! Prices every layout of a small heterogeneous cluster, up to a lower bound; also checks the annealing.

use super::best_n::{BestN, GroupedSearchResult};
use super::grouped_layout::{GroupedLayout, single_rank_layout};
use super::price::Pricer;
use super::space::{GroupedProblem, SharedDegree};

/// Returns the best `keep` of all layouts of a heterogeneous cluster.
pub fn search_exhaustively(grouped: &GroupedProblem, keep: usize) -> GroupedSearchResult {
    let pricer = Pricer::new(grouped);
    let mut kept = BestN::new(keep);
    let mut visit = |layout: &GroupedLayout| {
        if pricer.lower_bound(layout) >= kept.last() {
            kept.skip((grouped.schedules(layout).len() * grouped.first().zeros().len()) as u64);
            return true;
        }
        for layout in grouped.variants(layout) {
            if !pricer.allows(&layout) {
                kept.skip(1);
                continue;
            }
            let (seconds, full) = pricer.price(&layout);
            kept.record(&layout, seconds, full);
        }
        true
    };
    walk(grouped, &mut visit);
    kept.into_result()
}

impl GroupedProblem {
    /// Counts the layouts of the problem, without their schedules and ZeRO stages, up to `most`.
    pub(super) fn layouts(&self, most: u64) -> u64 {
        let mut count = 0;
        walk(self, &mut |_| {
            count += 1;
            count < most
        });
        count
    }
}

/// Visits all layouts, without their schedules and ZeRO stages, until a visit returns `false`.
fn walk(grouped: &GroupedProblem, visit: &mut impl FnMut(&GroupedLayout) -> bool) {
    let mut layout = single_rank_layout();
    for tensor in grouped.values(SharedDegree::Tensor, &layout) {
        layout.tensor = tensor;
        for context in grouped.values(SharedDegree::Context, &layout) {
            layout.context = context;
            for data in grouped.values(SharedDegree::Data, &layout) {
                layout.data = data;
                let goes_on = grouped.ways(layout.width(), &mut Vec::new(), &mut |runs| {
                    layout.runs = runs.to_vec();
                    units(grouped, &mut layout, visit)
                });
                if !goes_on {
                    return;
                }
            }
        }
    }
}

/// Visits the layouts that remain for fixed degrees and runs of stages.
fn units(
    grouped: &GroupedProblem,
    layout: &mut GroupedLayout,
    visit: &mut impl FnMut(&GroupedLayout) -> bool,
) -> bool {
    for expert in grouped.values(SharedDegree::Expert, layout) {
        layout.expert = expert;
        if !grouped.shares_experts(layout) {
            continue;
        }
        for micro in grouped.values(SharedDegree::Micro, layout) {
            layout.micro = micro;
            for is_sequence_parallel in grouped.sequences(layout) {
                layout.is_sequence_parallel = *is_sequence_parallel;
                for recompute in grouped.modes() {
                    layout.recompute = recompute;
                    if !visit(layout) {
                        return false;
                    }
                }
            }
        }
    }
    true
}
