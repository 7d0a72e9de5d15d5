//! Rungs of ASHA and Hyperband, with the trials that reached them.

use std::collections::BTreeMap;

/// The trials that reached each rung of each bracket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::tune) struct Rungs(BTreeMap<(u32, u32), Vec<(f64, u64)>>);

impl Rungs {
    /// Adds a trial that reached a rung of a bracket with the given value.
    pub(in crate::tune) fn add(&mut self, bracket: u32, rung: u32, value: f64, trial: u64) {
        let known = self.0.entry((bracket, rung)).or_default();
        let place = known.partition_point(|other| (other.0, other.1) < (value, trial));
        known.insert(place, (value, trial));
    }

    /// Returns the value and the number of each trial that reached a rung of a bracket, best first.
    pub(in crate::tune) fn at(&self, bracket: u32, rung: u32) -> &[(f64, u64)] {
        self.0.get(&(bracket, rung)).map_or(&[], Vec::as_slice)
    }

    /// Returns each rung with the trials that reached it, best first. The rungs with the most training come
    /// first.
    pub(in crate::tune) fn highest_first(&self) -> impl Iterator<Item = (u32, &[(f64, u64)])> {
        let mut rungs: Vec<_> = self.0.iter().collect();
        rungs.sort_by_key(|((bracket, rung), _)| (std::cmp::Reverse(bracket + rung), *bracket));
        rungs.into_iter().map(|((_, rung), seen)| (*rung, seen.as_slice()))
    }
}
