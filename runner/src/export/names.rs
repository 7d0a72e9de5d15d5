//! What other tools call a series.

use super::runs::Series;
use std::collections::BTreeSet;

/// A name for each series, all different: the key, for ranks other than 0 with `separator` and `rank_N` behind it.
/// Characters that `allows` refuses become `_`.
pub(super) fn names(series: &[Series], separator: &str, allows: impl Fn(char) -> bool) -> Vec<String> {
    let mut taken = BTreeSet::new();
    series
        .iter()
        .map(|series| {
            let plain: String = series.key.chars().map(|c| if allows(c) { c } else { '_' }).collect();
            let mut name = match series.rank.0 {
                0 => plain,
                rank => format!("{plain}{separator}rank_{rank}"),
            };
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
    use dtrain_protocol::Rank;

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let series = |key: &str, rank| Series { key: key.into(), rank: Rank(rank), samples: Vec::new() };
        let all = [series("loss", 0), series("a?", 0), series("a!", 0), series("loss", 2)];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        assert_eq!(names(&all, "/", is_word), ["loss", "a_", "a__", "loss/rank_2"]);
        assert_eq!(names(&all[1..2], "/", |_| true), ["a?"]);
    }
}
