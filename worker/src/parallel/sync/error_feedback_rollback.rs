//! Error feedback rollback: removes an overflowed batch from the error feedback, which is stored unscaled.
//!
//! Under a loss scale a gradient may overflow, and then no rank updates its weights. That is known from the
//! norm of the sums, after every rank has added its gradient to its residual, and has sent a part of it. So
//! the earlier residual is saved until the norm is known: one more copy for each batch in flight, and only
//! under a loss scale. The norm is the same on all ranks, so either all of them roll back a batch or none,
//! without a message.

use std::collections::VecDeque;

/// The residuals of one rank before each batch of which it is not known yet if its sums are finite.
#[derive(Debug, Default)]
pub(super) struct ErrorFeedbackRollback {
    /// Saved residuals, oldest first.
    before: VecDeque<Vec<f32>>,
    /// Memory of a settled batch's residual, for reuse.
    spare: Vec<f32>,
}

impl ErrorFeedbackRollback {
    /// Saves `residual`, to which the gradients of a batch will be added.
    pub(super) fn begin(&mut self, residual: &[f32]) {
        let mut before = std::mem::take(&mut self.spare);
        before.clear();
        before.extend_from_slice(residual);
        self.before.push_back(before);
    }

    /// Returns the residual before the newest batch; `None` if no batch is unsettled.
    pub(super) fn newest(&self) -> Option<&[f32]> {
        self.before.back().map(Vec::as_slice)
    }

    /// Settles the oldest batch. Unless its sums are `finite`, removes its additions from `residual` and
    /// returns `true`.
    ///
    /// Without later batches `residual` is restored to the last bit. Later batches sent some of the removed
    /// additions; that is subtracted here, so a later batch makes up for it.
    pub(super) fn resolve(&mut self, residual: &mut Vec<f32>, finite: bool) -> bool {
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

    /// Returns the bytes of the saved residuals.
    pub(super) fn bytes(&self) -> u64 {
        let values: usize = self.before.iter().map(Vec::len).sum();
        4 * (values + self.spare.len()) as u64
    }
}

fn subtract(from: &mut [f32], values: &[f32]) {
    from.iter_mut().zip(values).for_each(|(from, value)| *from -= value);
}

#[cfg(test)]
mod tests;
