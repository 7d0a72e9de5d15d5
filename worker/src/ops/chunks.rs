//! Work in chunks of fixed size, so that no result depends on the number of threads.

use rayon::prelude::*;

/// Number of values in one chunk: small enough for the second-level cache, large enough to be worth a task.
pub(crate) const VALUES: usize = 1 << 14;

/// Returns the number of rows in one chunk, for rows of `width` values.
pub(crate) fn rows(width: usize) -> usize {
    (VALUES / width.max(1)).max(1)
}

/// Calls `work` on every item, in any order and on any thread; without a pool, on this thread and in order.
pub(crate) fn each<T: Send>(items: impl Iterator<Item = T>, work: impl Fn(T) + Sync + Send) {
    if rayon::current_num_threads() == 1 {
        items.for_each(work);
    } else {
        items.collect::<Vec<_>>().into_par_iter().for_each(work);
    }
}

/// Returns the results of `work` on every item, in the order of the items.
pub(crate) fn map<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    work: impl Fn(T) -> R + Sync + Send,
) -> Vec<R> {
    if rayon::current_num_threads() == 1 {
        items.map(work).collect()
    } else {
        items.collect::<Vec<_>>().into_par_iter().map(work).collect()
    }
}
