//! Tally of rejected candidates, by reason.

use crate::layout::rejection::{RejectedGroup, Rejection};
use std::collections::BTreeMap;

/// Rejected candidates, counted by heading of the reason, with the candidate under each that came nearest to
/// fitting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RejectionTally {
    groups: BTreeMap<String, (u64, u64, String, Rejection)>,
}

impl RejectionTally {
    /// Counts `count` more candidates under the heading of `rejection`, and keeps the candidate with the
    /// smallest `distance` from fitting.
    pub fn add(&mut self, count: u64, rejection: &Rejection, described: impl Fn() -> String, distance: u64) {
        match self.groups.get_mut(&rejection.heading()) {
            Some((counted, nearest, words, kept)) => {
                *counted += count;
                if distance < *nearest {
                    (*nearest, *words, *kept) = (distance, described(), rejection.clone());
                }
            }
            None => {
                let first = (count, distance, described(), rejection.clone());
                self.groups.insert(rejection.heading(), first);
            }
        }
    }

    /// Returns the groups of rejected candidates, the most frequent reason first.
    pub fn groups(self) -> Vec<RejectedGroup> {
        let group =
            |(heading, (count, _, nearest, rejection))| RejectedGroup { heading, count, nearest, rejection };
        let mut groups: Vec<RejectedGroup> = self.groups.into_iter().map(group).collect();
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.heading.cmp(&b.heading)));
        groups
    }
}
