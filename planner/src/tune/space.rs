//! What is searched: dimensions, each mapped to the unit interval and back.
//!
//! A trial is remembered by its values, never by its place in the cube, so that trials can be read again when bounds
//! have moved.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A value of a dimension, as it stands in a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count.
    Whole(u64),
    /// A number.
    Real(f64),
    /// A name.
    Word(String),
}

impl Value {
    /// The number it is; `None` for a name.
    pub fn number(&self) -> Option<f64> {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            Self::Whole(count) => Some(*count as f64),
            Self::Real(number) => Some(*number),
            Self::Word(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(count) => write!(f, "{count}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// Which values a dimension has, and how far they are from each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Numbers of three significant digits, even in the logarithm.
    Log {
        /// Smallest, positive.
        low: f64,
        /// Largest, above `low`.
        high: f64,
    },
    /// Whole numbers, even in the logarithm.
    Counts {
        /// Smallest, positive.
        low: u64,
        /// Largest, above `low`.
        high: u64,
    },
    /// A few values that have an order, evenly apart; at least two.
    Levels(Vec<Value>),
    /// A few values without an order, all equally far from each other; at least two.
    Names(Vec<Value>),
}

/// A value that is searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// What it is called, such as `train.learning_rate`.
    pub name: String,
    /// Its values.
    pub scale: Scale,
}

impl Dimension {
    /// The value at `coordinate`, which is held within [0, 1].
    pub fn value(&self, coordinate: f64) -> Value {
        let coordinate = coordinate.clamp(0.0, 1.0);
        match &self.scale {
            Scale::Log { low, high } => {
                Value::Real(three_digits(between(*low, *high, coordinate)).clamp(*low, *high))
            }
            Scale::Counts { low, high } => Value::Whole(count_at(*low, *high, coordinate)),
            Scale::Levels(all) | Scale::Names(all) => all[cell(coordinate, all.len())].clone(),
        }
    }

    /// Where a value lies, in [0, 1] when it is within the bounds; `None` when it is no value of this dimension at all.
    pub fn coordinate(&self, value: &Value) -> Option<f64> {
        match &self.scale {
            Scale::Log { low, high } => position(*low, *high, value),
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            Scale::Counts { low, high } => position(*low as f64, *high as f64, value),
            Scale::Levels(all) | Scale::Names(all) => {
                all.iter().position(|one| one == value).map(|place| middle(place, all.len()))
            }
        }
    }

    /// The value of this dimension that is nearest to a number, by its ratio; `None` among names.
    pub fn nearest(&self, number: f64) -> Option<Value> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } => {
                self.coordinate(&Value::Real(number)).map(|at| self.value(at))
            }
            Scale::Levels(all) => {
                let far =
                    |value: &Value| value.number().map_or(f64::INFINITY, |one| (one / number).ln().abs());
                all.iter().min_by(|a, b| far(a).total_cmp(&far(b))).cloned()
            }
            Scale::Names(_) => None,
        }
    }

    /// Whether places near each other have values near each other, without steps that matter.
    pub fn is_continuous(&self) -> bool {
        matches!(self.scale, Scale::Log { .. } | Scale::Counts { .. })
    }

    /// Whether all its values are equally far from each other.
    pub fn is_named(&self) -> bool {
        matches!(self.scale, Scale::Names(_))
    }

    /// How many values it has; `None` when they are too many to be tried one by one.
    pub fn count(&self) -> Option<usize> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } => None,
            Scale::Levels(all) | Scale::Names(all) => Some(all.len()),
        }
    }
}

/// The dimensions of a search, at most [`super::sobol::DIMENSIONS_MOST`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Space(Vec<Dimension>);

impl Space {
    /// A space of these dimensions.
    pub fn new(dimensions: Vec<Dimension>) -> Self {
        let most = super::sobol::DIMENSIONS_MOST;
        assert!(dimensions.len() <= most, "at most {most} dimensions are searched");
        Self(dimensions)
    }

    /// The dimensions in their order.
    pub fn dimensions(&self) -> &[Dimension] {
        &self.0
    }

    /// The values at a point of the unit cube.
    pub fn values(&self, point: &[f64]) -> Vec<Value> {
        assert_eq!(point.len(), self.0.len(), "a coordinate for every dimension");
        self.0.iter().zip(point).map(|(dimension, coordinate)| dimension.value(*coordinate)).collect()
    }

    /// Where values lie; `None` when one of them is no value of its dimension.
    pub fn point(&self, values: &[Value]) -> Option<Vec<f64>> {
        let fits = values.len() == self.0.len();
        let mut pairs = self.0.iter().zip(values);
        fits.then(|| pairs.by_ref().map(|(dimension, value)| dimension.coordinate(value)).collect()).flatten()
    }

    /// Which dimensions have values that are all equally far from each other.
    pub fn named(&self) -> Vec<bool> {
        self.0.iter().map(Dimension::is_named).collect()
    }

    /// Every point of a space of few values, in order; `None` when a dimension has too many.
    pub fn all(&self) -> Option<impl Iterator<Item = Vec<Value>>> {
        let sizes: Vec<usize> = self.0.iter().map(Dimension::count).collect::<Option<_>>()?;
        let count: usize = sizes.iter().product();
        Some((0..count).map(move |number| self.numbered(number, &sizes)))
    }

    /// The values whose places in their dimensions are the digits of `number`.
    fn numbered(&self, mut number: usize, sizes: &[usize]) -> Vec<Value> {
        let mut value = |(dimension, size): (&Dimension, &usize)| {
            let place = number % size;
            number /= size;
            dimension.value(middle(place, *size))
        };
        self.0.iter().zip(sizes).map(&mut value).collect()
    }
}

fn between(low: f64, high: f64, coordinate: f64) -> f64 {
    (low.ln() + coordinate * (high / low).ln()).exp()
}

fn position(low: f64, high: f64, value: &Value) -> Option<f64> {
    let number = value.number().filter(|number| *number > 0.0 && number.is_finite())?;
    Some((number / low).ln() / (high / low).ln())
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts are far below 2^52 and positive"
)]
fn count_at(low: u64, high: u64, coordinate: f64) -> u64 {
    (between(low as f64, high as f64, coordinate).round() as u64).clamp(low, high)
}

/// Which of `count` cells of the unit interval a coordinate lies in.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few cells, and a coordinate within [0, 1]"
)]
fn cell(coordinate: f64, count: usize) -> usize {
    ((coordinate * count as f64) as usize).min(count - 1)
}

/// The middle of cell `place` of `count`.
#[expect(clippy::cast_precision_loss, reason = "a few cells")]
fn middle(place: usize, count: usize) -> f64 {
    (place as f64 + 0.5) / count as f64
}

/// Three significant digits, through text, so that 0.00123 is the number one writes and not its neighbour.
fn three_digits(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dimension(scale: Scale) -> Dimension {
        Dimension { name: "x".into(), scale }
    }

    fn words(all: &[&str]) -> Vec<Value> {
        all.iter().map(|word| Value::Word((*word).into())).collect()
    }

    fn mixed() -> Space {
        Space::new(vec![
            dimension(Scale::Log { low: 1e-5, high: 1e-2 }),
            dimension(Scale::Counts { low: 1, high: 400 }),
            dimension(Scale::Levels([8, 16, 32].map(Value::Whole).to_vec())),
            dimension(Scale::Names(words(&["f32", "bf16"]))),
        ])
    }

    proptest! {
        #[test]
        fn values_lie_where_they_came_from(point in prop::collection::vec(0.0f64..1.0, 4)) {
            let space = mixed();
            let values = space.values(&point);
            let place = space.point(&values).expect("they are values of the space");
            prop_assert!((place[0] - point[0]).abs() < 1e-3, "three digits of three decades");
            prop_assert!(place.iter().all(|coordinate| (0.0..=1.0).contains(coordinate)));
            prop_assert_eq!(space.values(&place), values, "a place and its values are one");
        }

        #[test]
        fn values_survive_their_text(point in prop::collection::vec(0.0f64..1.0, 4)) {
            let values = mixed().values(&point);
            let text = serde_json::to_string(&values).expect("values are plain");
            prop_assert_eq!(serde_json::from_str::<Vec<Value>>(&text).expect("it was just written"), values);
        }
    }

    #[test]
    fn ends_are_reached_and_never_passed() {
        let space = mixed();
        assert_eq!(
            space.values(&[0.0; 4]),
            [Value::Real(1e-5), Value::Whole(1), Value::Whole(8), Value::Word("f32".into())]
        );
        assert_eq!(
            space.values(&[1.5; 4]),
            [Value::Real(1e-2), Value::Whole(400), Value::Whole(32), Value::Word("bf16".into())]
        );
        assert_eq!(dimension(Scale::Log { low: 1.239, high: 2.0 }).value(0.0), Value::Real(1.24));
        assert_eq!(dimension(Scale::Log { low: 1.231, high: 2.0 }).value(0.0), Value::Real(1.231));
    }

    #[test]
    fn what_is_no_value_of_the_space_has_no_place() {
        let space = mixed();
        let mut values = space.values(&[0.5; 4]);
        assert!(space.point(&values).is_some());
        assert!(space.point(&values[..3]).is_none());
        values[3] = Value::Word("f8".into());
        assert!(space.point(&values).is_none());
        values[3] = Value::Word("f32".into());
        values[0] = Value::Real(0.1);
        let outside = space.point(&values).expect("a trial of wider bounds is still known");
        assert!((outside[0] - 4.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_nearest_value_is_nearest_by_ratio() {
        let batch = dimension(Scale::Levels([8, 16, 64].map(Value::Whole).to_vec()));
        assert_eq!(batch.nearest(30.0), Some(Value::Whole(16)));
        assert_eq!(batch.nearest(33.0), Some(Value::Whole(64)));
        let rate = dimension(Scale::Log { low: 1e-4, high: 1e-3 });
        assert_eq!(rate.nearest(3e-4), Some(Value::Real(3e-4)));
        assert_eq!(rate.nearest(0.5), Some(Value::Real(1e-3)));
        assert_eq!(dimension(Scale::Names(words(&["a", "b"]))).nearest(1.0), None);
    }

    #[test]
    fn a_space_of_few_values_is_told_whole() {
        let few = Space::new(mixed().dimensions()[2..].to_vec());
        let all: Vec<_> = few.all().expect("six").collect();
        assert_eq!(all.len(), 6);
        assert!((0..6).all(|a| (0..a).all(|b| all[a] != all[b])));
        assert!(mixed().all().is_none());
    }
}
