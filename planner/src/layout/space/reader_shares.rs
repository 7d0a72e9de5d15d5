//! Shares of a batch by reader: equal, or in proportion to the work that the recipe gives each data replica.

use dtrain_protocol::Layout;
use std::num::NonZeroU64;

/// Returns the samples per step of each reader; empty when the batch does not divide evenly. `shares` is the
/// relative work of the data replicas, empty when all are equal.
pub(super) fn reader_shares(batch: NonZeroU64, layout: &Layout, shares: &[u32]) -> Vec<u64> {
    let expert = u64::from(layout.expert.get());
    let all: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let of = |share: u64, all: u64| {
        let samples = batch.get() * share;
        samples.is_multiple_of(all * expert).then(|| samples / (all * expert))
    };
    let data = layout.data.get();
    let replicas: Option<Vec<u64>> = if shares.is_empty() {
        (0..data).map(|_| of(1, data.into())).collect()
    } else {
        shares.iter().map(|share| of(u64::from(*share), all)).collect()
    };
    let each = replicas.unwrap_or_default().into_iter();
    each.flat_map(|samples| (0..expert).map(move |_| samples)).collect()
}

/// Returns the samples per step of the reader with the largest share, for a batch that divides evenly.
pub(super) fn largest_share(batch: NonZeroU64, layout: &Layout, shares: &[u32]) -> u64 {
    let all: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    match shares.iter().max() {
        Some(most) => batch.get() * u64::from(*most) / (all * u64::from(layout.expert.get())),
        None => batch.get() / u64::from(layout.readers()),
    }
}
