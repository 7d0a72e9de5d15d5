//! Names of series in the tools that trials are exported to.

use super::runs::RunSeries;
use dtrain_protocol::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Returns unique names for series: the key, with `separator` and `rank_N` appended except for the lowest
/// rank that reports it. Characters that `allows` rejects become `_`.
pub(super) fn names(series: &[RunSeries], separator: &str, allows: impl Fn(char) -> bool) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut lowest: BTreeMap<&str, Rank> = BTreeMap::new();
    for one in series {
        let known = lowest.entry(&one.key).or_insert(one.rank);
        *known = one.rank.min(*known);
    }
    series
        .iter()
        .map(|series| {
            let plain: String = series.key.chars().map(|c| if allows(c) { c } else { '_' }).collect();
            let is_lowest = lowest[series.key.as_str()] == series.rank;
            let mut name = if is_lowest { plain } else { format!("{plain}{separator}rank_{}", series.rank) };
            while !taken.insert(name.clone()) {
                name.push('_');
            }
            name
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let series = |key: &str, rank| RunSeries { key: key.into(), rank: Rank(rank), samples: Vec::new() };
        let all = [series("loss", 0), series("a?", 0), series("a!", 0), series("loss", 2)];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        assert_eq!(names(&all, "/", is_word), ["loss", "a_", "a__", "loss/rank_2"]);
        assert_eq!(names(&all[1..2], "/", |_| true), ["a?"]);
        // If rank 0 reports nothing, the lowest other rank has the plain name.
        let last = [series("acc", 3), series("acc", 7)];
        assert_eq!(names(&last, "/", |_| true), ["acc", "acc/rank_7"]);
    }
}
