//! The search space: dimensions, mapped to the unit cube and back.
//!
//! A trial is stored by its values, not by its coordinates, so that it can still be read when the bounds have
//! changed. A dimension may be conditional: it exists only for some values of earlier dimensions, and has no
//! value otherwise.

use super::scale::{Dimension, middle};
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// The dimensions over which a study searches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchSpace(Vec<Dimension>);

/// Coordinates of the values of a trial, one for each dimension; `None` for a dimension that does not exist
/// for them.
pub type Coordinates = Vec<Option<f64>>;

/// Highest number of combinations of values of which each is tried.
const ALL_MOST: usize = 100_000;

impl SearchSpace {
    /// Creates a search space with the given dimensions. Panics when a dimension depends on a later one.
    pub fn new(dimensions: Vec<Dimension>) -> Self {
        for (place, dimension) in dimensions.iter().enumerate() {
            let is_before = dimension.when.iter().all(|(other, _)| *other < place);
            assert!(is_before, "{} depends on a dimension that is not before it", dimension.name);
        }
        Self(dimensions)
    }

    /// Returns the dimensions of the space, in order.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.0
    }

    /// Returns the values at `point` of the unit cube; the coordinates of inactive dimensions are ignored.
    pub fn values(&self, point: &[f64]) -> Vec<TrialValue> {
        assert_eq!(point.len(), self.0.len(), "a coordinate for every dimension");
        let mut values = Vec::with_capacity(point.len());
        for (k, coordinate) in point.iter().enumerate() {
            let is_active = self.is_active(k, &values);
            values.push(if is_active { self.0[k].value(*coordinate) } else { TrialValue::Inactive });
        }
        values
    }

    /// Returns `true` if dimension `k` exists for the values of the dimensions before it.
    pub fn is_active(&self, k: usize, before: &[TrialValue]) -> bool {
        self.0[k].when.iter().all(|(other, wanted)| wanted.contains(&before[*other]))
    }

    /// Returns the coordinates of `values`; `None` when a value is not in its dimension, or is missing.
    pub fn coordinates(&self, values: &[TrialValue]) -> Option<Coordinates> {
        if values.len() != self.0.len() {
            return None;
        }
        let coordinate = |(k, value): (usize, &TrialValue)| match (self.is_active(k, values), value) {
            (false, TrialValue::Inactive) => Some(None),
            (false, _) | (true, TrialValue::Inactive) => None,
            (true, value) => self.0[k].coordinate(value).map(Some),
        };
        values.iter().enumerate().map(coordinate).collect()
    }

    /// Returns the point of the unit cube with these values; inactive dimensions are in the middle.
    pub fn point(&self, values: &[TrialValue]) -> Option<Vec<f64>> {
        self.coordinates(values).map(|place| fill_inactive(&place))
    }

    /// Returns a flag for each dimension: `true` if it is categorical.
    pub fn categorical(&self) -> Vec<bool> {
        self.0.iter().map(Dimension::is_categorical).collect()
    }

    /// Returns `true` if no dimension is conditional.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|dimension| dimension.when.is_empty())
    }

    /// Returns all combinations of values if the space is small, in order; `None` when there are too many.
    pub fn all(&self) -> Option<impl Iterator<Item = Vec<TrialValue>>> {
        let sizes: Vec<usize> = self.0.iter().map(Dimension::count).collect::<Option<_>>()?;
        let count = sizes.iter().try_fold(1usize, |count, size| count.checked_mul(*size))?;
        (count <= ALL_MOST).then(|| (0..count).filter_map(move |number| self.combination(number, &sizes)))
    }

    /// Returns the values whose indices are the digits of `number`, with the lowest digit for the last
    /// dimension; `None` where an inactive dimension has a digit other than 0, so that no values come twice.
    pub(super) fn combination(&self, mut number: usize, sizes: &[usize]) -> Option<Vec<TrialValue>> {
        let mut digits = vec![0; sizes.len()];
        for (digit, size) in digits.iter_mut().zip(sizes).rev() {
            *digit = number % size;
            number /= size;
        }
        let point: Vec<f64> = digits.iter().zip(sizes).map(|(digit, size)| middle(*digit, *size)).collect();
        let values = self.values(&point);
        let is_first =
            values.iter().zip(&digits).all(|(value, digit)| *value != TrialValue::Inactive || *digit == 0);
        is_first.then_some(values)
    }
}

/// Returns the coordinates `place` with inactive dimensions set to the middle, so that these do not change
/// which points are near.
pub fn fill_inactive(place: &[Option<f64>]) -> Vec<f64> {
    place.iter().map(|coordinate| coordinate.unwrap_or(0.5)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::Scale;
    use proptest::prelude::*;

    fn words(all: &[&str]) -> Vec<TrialValue> {
        all.iter().map(|word| TrialValue::Word((*word).into())).collect()
    }

    fn mixed() -> SearchSpace {
        let momentum = Scale::Uniform { low: 0.0, high: 0.99 };
        let when = vec![(3, words(&["sgd", "lion"]))];
        SearchSpace::new(vec![
            Dimension::new("rate", Scale::Log { low: 1e-5, high: 1e-2 }),
            Dimension::new("warmup", Scale::Counts { low: 1, high: 400 }),
            Dimension::new("batch", Scale::Levels([8, 16, 32].map(TrialValue::Whole).to_vec())),
            Dimension::new("optimizer", Scale::Names(words(&["adam", "sgd", "lion"]))),
            Dimension { when, ..Dimension::new("momentum", momentum) },
            Dimension { when: vec![(4, vec![TrialValue::Real(0.0)])], ..few_layers() },
        ])
    }

    fn few_layers() -> Dimension {
        Dimension::new("layers", Scale::Integers { low: -1, high: 2 })
    }

    proptest! {
        #[test]
        fn values_lie_where_they_came_from(point in prop::collection::vec(0.0f64..1.0, 6)) {
            let space = mixed();
            let values = space.values(&point);
            let place = space.coordinates(&values).expect("they are values of the space");
            prop_assert!((place[0].expect("always there") - point[0]).abs() < 1e-3, "three digits");
            prop_assert!(place.iter().flatten().all(|coordinate| (0.0..=1.0).contains(coordinate)));
            prop_assert_eq!(space.values(&fill_inactive(&place)), values, "a place and its values are one");
        }

        #[test]
        fn a_dimension_has_a_value_exactly_where_it_exists(point in prop::collection::vec(0.0f64..1.0, 6)) {
            let values = mixed().values(&point);
            let has_momentum = values[3] != TrialValue::Word("adam".into());
            prop_assert_eq!(values[4] != TrialValue::Inactive, has_momentum);
            prop_assert_eq!(values[5] != TrialValue::Inactive, values[4] == TrialValue::Real(0.0), "a chain of conditions");
            let mut wrong = values.clone();
            wrong[4] = if has_momentum { TrialValue::Inactive } else { TrialValue::Real(0.5) };
            prop_assert!(mixed().coordinates(&wrong).is_none());
        }

        #[test]
        fn values_survive_their_text(point in prop::collection::vec(0.0f64..1.0, 6)) {
            let values = mixed().values(&point);
            let text = serde_json::to_string(&values).expect("values are plain");
            prop_assert_eq!(serde_json::from_str::<Vec<TrialValue>>(&text).expect("it was just written"), values);
        }
    }

    #[test]
    fn ends_are_reached_and_never_passed() {
        let word = |word: &str| TrialValue::Word(word.into());
        let low = [TrialValue::Real(1e-5), TrialValue::Whole(1), TrialValue::Whole(8), word("adam")];
        assert_eq!(mixed().values(&[0.0; 6])[..4], low);
        let high = [
            TrialValue::Real(1e-2),
            TrialValue::Whole(400),
            TrialValue::Whole(32),
            word("lion"),
            TrialValue::Real(0.99),
        ];
        assert_eq!(mixed().values(&[1.5; 6])[..5], high);
    }

    #[test]
    fn what_is_no_value_of_the_space_has_no_place() {
        let space = mixed();
        let mut values = space.values(&[0.5; 6]);
        assert!(space.point(&values).is_some());
        assert!(space.point(&values[..3]).is_none());
        values[3] = TrialValue::Word("muon".into());
        assert!(space.point(&values).is_none());
        values[3] = TrialValue::Word("sgd".into());
        values[0] = TrialValue::Real(0.1);
        let outside = space.point(&values).expect("a trial of wider bounds is still known");
        assert!((outside[0] - 4.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_space_of_few_values_is_told_whole() {
        let names = Dimension::new("optimizer", Scale::Names(words(&["adam", "sgd"])));
        let layers = Dimension { when: vec![(0, words(&["sgd"]))], ..few_layers() };
        let space = SearchSpace::new(vec![names, layers]);
        let all: Vec<_> = space.all().expect("few").collect();
        assert_eq!(all.len(), 5, "adam alone, and sgd with four");
        assert!((0..5).all(|a| (0..a).all(|b| all[a] != all[b])));
        assert!(mixed().all().is_none());
    }
}
