//! Takes an overflowed batch out of the error feedback, which is kept in units without the loss scale.
//!
//! Under a loss scale a gradient may overflow, and then no rank moves its weights. That is known from the norm of the
//! sums, when every rank has added its gradient to what it owes, and has sent a part of it. So what was owed before is
//! kept until the norm is known: one more copy of the residual for each batch on its way, and only under a loss scale.
//! The norm is the same on all ranks, so either all of them take a batch back or none, without a message.

use crate::parallel::GradientReduction;
use std::collections::VecDeque;

/// Notes that a batch begins whose gradients are multiplied by `scale`, a power of two.
pub fn begin(reduction: &mut GradientReduction, scale: f32) {
    match reduction {
        GradientReduction::LowRank(low_rank) => low_rank.begin(scale),
        GradientReduction::Buckets { common, experts } => {
            let largest =
                [common, experts].into_iter().filter_map(|buckets| buckets.wire_mut().largest_mut());
            largest.for_each(|largest| largest.begin(scale));
        }
        GradientReduction::DeviceBuckets { .. } | GradientReduction::ReduceScatter(_) => {}
    }
}

/// Takes notice of whether the sums of the oldest batch that began are `finite`. Where they are not, error feedback
/// becomes what it would be without that batch. Does nothing where no batch began.
pub fn resolve(reduction: &mut GradientReduction, finite: bool) {
    match reduction {
        GradientReduction::LowRank(low_rank) => low_rank.resolve(finite),
        GradientReduction::Buckets { common, experts } => {
            let largest =
                [common, experts].into_iter().filter_map(|buckets| buckets.wire_mut().largest_mut());
            largest.for_each(|largest| largest.resolve(finite));
        }
        GradientReduction::DeviceBuckets { .. } | GradientReduction::ReduceScatter(_) => {}
    }
}

/// Divides what is owed by `scale`: older versions wrote it to checkpoints multiplied by the loss scale. What is not
/// finite, as an overflow left it there, is forgotten.
pub fn unscale(reduction: &mut GradientReduction, scale: f32) {
    for value in reduction.residual_mut().into_iter().flatten() {
        *value = if value.is_finite() { *value / scale } else { 0.0 };
    }
    if let Some(low_rank) = reduction.low_rank_mut() {
        low_rank.replace_lost_factors();
    }
}

/// What one rank owed before each batch whose sums are not known to be finite.
#[derive(Debug, Default)]
pub struct ErrorFeedbackRollback {
    /// The oldest first.
    before: VecDeque<Vec<f32>>,
    /// The room of one that is settled, to be used again.
    spare: Vec<f32>,
}

impl ErrorFeedbackRollback {
    /// Keeps `residual`, to which the gradients of a batch will be added.
    pub fn begin(&mut self, residual: &[f32]) {
        let mut before = std::mem::take(&mut self.spare);
        before.clear();
        before.extend_from_slice(residual);
        self.before.push_back(before);
    }

    /// What was owed before the newest batch.
    pub fn newest(&self) -> Option<&[f32]> {
        self.before.back().map(Vec::as_slice)
    }

    /// Forgets the oldest batch. Where its sums are not `finite`, `residual` loses what that batch added; says whether
    /// it did.
    ///
    /// Without later batches `residual` becomes what it was, to the last bit. Batches that left after it sent some of
    /// what it had added; that is subtracted here, so a later batch makes up for it.
    pub fn resolve(&mut self, residual: &mut Vec<f32>, finite: bool) -> bool {
        let Some(mut before) = self.before.pop_front() else { return false };
        if !finite {
            let mut later = self.before.iter_mut();
            match later.next() {
                None => std::mem::swap(residual, &mut before),
                Some(next) => {
                    std::mem::swap(next, &mut before);
                    subtract(&mut before, next);
                    let added = &before;
                    later.for_each(|later| subtract(later, added));
                    subtract(residual, added);
                }
            }
        }
        self.spare = before;
        !finite
    }

    /// Bytes of what it keeps.
    pub fn bytes(&self) -> u64 {
        let values: usize = self.before.iter().map(Vec::len).sum();
        4 * (values + self.spare.len()) as u64
    }
}

fn subtract(from: &mut [f32], values: &[f32]) {
    from.iter_mut().zip(values).for_each(|(from, value)| *from -= value);
}

#[cfg(test)]
mod tests;
