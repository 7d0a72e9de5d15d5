//! Recompute settings to try: none, attention only or whole blocks, and for how many of the blocks.

use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LayoutPins, Recompute, ZeroStage};

/// Intervals between recomputed blocks to try: 4 recomputes one block in four.
const EVERY: [u32; 3] = [1, 2, 4];

/// Returns the recompute settings to try, each with its interval between recomputed blocks; fewer where a
/// stage has few consecutive blocks.
pub(super) fn recompute_options(
    pins: &LayoutPins,
    arrangement: &Arrangement,
    blocks: u32,
) -> Vec<(Recompute, u32)> {
    let all = match pins.recompute {
        Some(one) => vec![one],
        // ZeRO 3 gathers a part again for its backward, which requires recompute.
        None if arrangement.zero == ZeroStage::Zero3 => vec![Recompute::Full],
        None => vec![Recompute::None, Recompute::Selective, Recompute::Full],
    };
    // The last run is never shorter than another.
    let last = arrangement.layout.pipeline.get() - 1;
    let longest = chunks_of(last, arrangement, blocks).map(|run| run.len()).max().unwrap_or(0);
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    let is_new = |every: &u32| *every == 1 || longest.div_ceil(*every) < longest.div_ceil(every / 2);
    let every = |recompute| match (recompute, pins.recompute_every) {
        (Recompute::None, _) => vec![1],
        (_, Some(every)) => vec![every],
        (Recompute::Full, None) if arrangement.zero != ZeroStage::Zero3 => {
            EVERY.into_iter().filter(is_new).collect()
        }
        (Recompute::Full | Recompute::Selective, None) => vec![1],
    };
    all.into_iter().flat_map(|one| every(one).into_iter().map(move |every| (one, every))).collect()
}
