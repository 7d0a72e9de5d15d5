//! How much of the difference between trials each dimension alone explains.

/// Trials below which nothing is said.
const TRIALS_LEAST: usize = 6;

/// Different values up to which each is a group of its own.
const VALUES_MOST: usize = 6;

/// The share of the variance of the ranks of costs that lies between groups of like values of a dimension, for each dimension.
///
/// `places` has for each trial a coordinate for every dimension, `None` where the dimension does not exist; such a trial says nothing
/// of that dimension. Groups are single values where there are few, otherwise parts of equal size of the ordered trials. With `n`
/// trials in `k` groups, squares within groups `W` and all squares `T`, the share is `1 − W/(n − k) · (n − 1)/T`, not below 0: it
/// does not grow by chance when there are more groups (epsilon squared). Ranks are told instead of costs, so that a
/// diverged trial does not hide all others. `None` where there are too few trials or values.
///
/// Shares need not add up to 1: dimensions that only matter together have none.
pub fn importance(places: &[Vec<Option<f64>>], costs: &[f64]) -> Vec<Option<f64>> {
    let dimensions = places.first().map_or(0, Vec::len);
    (0..dimensions).map(|dimension| share(places, costs, dimension)).collect()
}

fn share(places: &[Vec<Option<f64>>], costs: &[f64], dimension: usize) -> Option<f64> {
    let known = places.iter().zip(costs).filter(|(_, cost)| cost.is_finite());
    let mut told: Vec<(f64, f64)> =
        known.filter_map(|(place, cost)| Some((place.get(dimension).copied()??, *cost))).collect();
    told.sort_by(|a, b| a.0.total_cmp(&b.0));
    if told.len() < TRIALS_LEAST {
        return None;
    }
    let ranks = ranks(&told.iter().map(|(_, cost)| *cost).collect::<Vec<_>>());
    let groups = groups(&told.iter().map(|(place, _)| *place).collect::<Vec<_>>());
    let free = told.len().checked_sub(groups.len()).filter(|free| groups.len() > 1 && *free > 0)?;
    let all = squares(&ranks);
    let within: f64 = groups.into_iter().map(|group| squares(&ranks[group])).sum();
    (all > 0.0).then(|| (1.0 - within / count(free) * count(told.len() - 1) / all).clamp(0.0, 1.0))
}

/// Ranges of like places among ordered ones.
fn groups(places: &[f64]) -> Vec<std::ops::Range<usize>> {
    let mut edges: Vec<usize> = (1..places.len()).filter(|at| places[at - 1] < places[*at]).collect();
    if edges.len() >= VALUES_MOST {
        // Equal places stay together: an edge is moved on to where the place changes.
        let parts = if places.len() >= 20 { 4 } else { 3 };
        let moved = (1..parts).filter_map(|part| {
            let wanted = part * places.len() / parts;
            edges.iter().copied().find(|edge| *edge >= wanted)
        });
        edges = moved.collect();
        edges.dedup();
    }
    let begins = std::iter::once(0).chain(edges.iter().copied());
    let ends = edges.iter().copied().chain([places.len()]);
    begins.zip(ends).map(|(begin, end)| begin..end).collect()
}

/// The rank of each value from 1, equal ones with the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let below = |value: f64| count(values.iter().filter(|other| **other < value).count());
    let equal = |value: f64| count(values.iter().filter(|other| **other == value).count());
    values.iter().map(|value| below(*value) + f64::midpoint(1.0, equal(*value))).collect()
}

fn squares(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / count(values.len().max(1));
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

#[expect(clippy::cast_precision_loss, reason = "trials are counted")]
fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::sobol::Sobol;

    /// Trials of three dimensions of which the last exists in every other trial only.
    fn trials(cost: impl Fn(&[f64]) -> f64) -> (Vec<Vec<Option<f64>>>, Vec<f64>) {
        let points: Vec<Vec<f64>> = (0..60).map(|number| Sobol::new(3, 7).point(number)).collect();
        let costs = points.iter().map(|point| cost(point)).collect();
        let place = |(number, point): (usize, Vec<f64>)| {
            vec![Some(point[0]), Some(point[1]), (number % 2 == 0).then_some((point[2] * 3.0).floor() / 3.0)]
        };
        (points.into_iter().enumerate().map(place).collect(), costs)
    }

    #[test]
    fn what_decides_is_told_from_what_does_not_matter() {
        let (places, costs) = trials(|point| (point[0] - 0.4).abs());
        let told = importance(&places, &costs);
        assert!(told[0].is_some_and(|share| share > 0.6), "{told:?}");
        assert!(
            told[1].is_some_and(|share| share < 0.2) && told[2].is_some_and(|share| share < 0.2),
            "{told:?}"
        );
    }

    #[test]
    fn one_diverged_trial_hides_nothing_and_few_trials_tell_nothing() {
        let (places, mut costs) = trials(|point| point[1]);
        costs[3] = 1e30;
        costs[4] = f64::NAN;
        let told = importance(&places, &costs);
        assert!(told[1].is_some_and(|share| share > 0.7), "{told:?}");
        assert_eq!(importance(&places[..4], &costs[..4]), [None, None, None]);
        assert_eq!(importance(&places, &vec![1.0; 60]), [None, None, None]);
        assert!(importance(&[], &[]).is_empty());
    }

    #[test]
    fn groups_are_values_where_there_are_few_and_parts_where_there_are_many() {
        assert_eq!(groups(&[0.0, 0.0, 0.5, 1.0, 1.0]), [0..2, 2..3, 3..5]);
        let many: Vec<f64> = (0..12).map(f64::from).collect();
        assert_eq!(groups(&many), [0..4, 4..8, 8..12]);
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    }
}
