//! Prices every layout of a mixture, with a bound: for small mixtures, and to check what annealing finds.

use super::kept::{Found, Kept};
use super::layout::Layout;
use super::price::Pricer;
use super::space::{Degree, Mixture};
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};

/// The best `keep` of all layouts.
pub fn every(mixture: &Mixture, keep: usize) -> Found {
    let pricer = Pricer::new(mixture);
    let mut kept = Kept::new(keep);
    let mut visit = |layout: &Layout| {
        if pricer.least(layout) >= kept.last() {
            kept.skip((mixture.schedules(layout).len() * mixture.first().zeros().len()) as u64);
            return true;
        }
        for layout in mixture.variants(layout) {
            if !pricer.allows(&layout) {
                kept.skip(1);
                continue;
            }
            let (seconds, full) = pricer.price(&layout);
            kept.note(&layout, seconds, full);
        }
        true
    };
    walk(mixture, &mut visit);
    kept.found()
}

impl Mixture {
    /// Layouts in all, without their orders of passes and what replicas shard; `most` where there are at least so many.
    pub(super) fn layouts(&self, most: u64) -> u64 {
        let mut count = 0;
        walk(self, &mut |_| {
            count += 1;
            count < most
        });
        count
    }
}

/// Visits all layouts but for order of passes and sharding, until a visit says no.
fn walk(mixture: &Mixture, visit: &mut impl FnMut(&Layout) -> bool) {
    let mut layout = any();
    for tensor in mixture.values(Degree::Tensor, &layout) {
        layout.tensor = tensor;
        for context in mixture.values(Degree::Context, &layout) {
            layout.context = context;
            for data in mixture.values(Degree::Data, &layout) {
                layout.data = data;
                let goes_on = mixture.ways(layout.width(), &mut Vec::new(), &mut |runs| {
                    layout.runs = runs.to_vec();
                    units(mixture, &mut layout, visit)
                });
                if !goes_on {
                    return;
                }
            }
        }
    }
}

/// Visits what is open beside degrees and runs.
fn units(mixture: &Mixture, layout: &mut Layout, visit: &mut impl FnMut(&Layout) -> bool) -> bool {
    for expert in mixture.values(Degree::Expert, layout) {
        layout.expert = expert;
        if !mixture.shares_experts(layout) {
            continue;
        }
        for micro in mixture.values(Degree::Micro, layout) {
            layout.micro = micro;
            for is_sequence_parallel in mixture.sequences(layout) {
                layout.is_sequence_parallel = *is_sequence_parallel;
                for recompute in mixture.modes() {
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

/// A layout to be filled in.
pub(super) fn any() -> Layout {
    Layout {
        tensor: 1,
        context: 1,
        expert: 1,
        data: 1,
        micro: 1,
        is_sequence_parallel: false,
        recompute: (Recompute::None, 1),
        zero: ZeroStage::Zero0,
        schedule: PipelineSchedule::OneForwardOneBackward,
        chunks: 1,
        runs: Vec::new(),
    }
}
