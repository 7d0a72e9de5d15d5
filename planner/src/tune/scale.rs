//! A dimension of a search: its values, mapped to the unit interval and back.

use super::value::TrialValue;
use serde::{Deserialize, Serialize};

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
        low: i64,
        /// Largest, above `low`.
        high: i64,
    },
    /// Numbers, even between the bounds, in steps of about a thousandth of the range.
    Uniform {
        /// Smallest.
        low: f64,
        /// Largest, above `low`.
        high: f64,
    },
    /// Whole numbers, even between the bounds.
    Integers {
        /// Smallest.
        low: i64,
        /// Largest, above `low`.
        high: i64,
    },
    /// A few values that have an order, evenly apart; at least two.
    Levels(Vec<TrialValue>),
    /// A few values without an order, all equally far from each other; at least two.
    Names(Vec<TrialValue>),
}

/// A value that is searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// What it is called, such as `train.learning_rate`.
    pub name: String,
    /// Its values.
    pub scale: Scale,
    /// Dimensions before this one, by their places, each with values of which it must have one for this dimension to exist.
    /// Where one has not, the value is [`TrialValue::Inactive`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<(usize, Vec<TrialValue>)>,
}

/// Whole numbers that are tried one by one, at most.
const COUNTED_MOST: usize = 1000;

/// Whole numbers from which on steps between them no longer matter.
const SMOOTH: u64 = 24;

impl Dimension {
    /// A dimension that always exists.
    pub fn new(name: impl Into<String>, scale: Scale) -> Self {
        Self { name: name.into(), scale, when: Vec::new() }
    }

    /// The value at `coordinate`, which is held within [0, 1].
    pub fn value(&self, coordinate: f64) -> TrialValue {
        let coordinate = coordinate.clamp(0.0, 1.0);
        match &self.scale {
            Scale::Log { low, high } => {
                TrialValue::Real(three_digits(between(*low, *high, coordinate)).clamp(*low, *high))
            }
            Scale::Counts { low, high } => TrialValue::Whole(count_at(*low, *high, coordinate)),
            Scale::Uniform { low, high } => TrialValue::Real(stepped(*low, *high, coordinate)),
            Scale::Integers { low, high } => TrialValue::Whole(integer_at(*low, *high, coordinate)),
            Scale::Levels(all) | Scale::Names(all) => all[cell(coordinate, all.len())].clone(),
        }
    }

    /// Where a value lies, in [0, 1] when it is within the bounds; `None` when it is no value of this dimension at all.
    pub fn coordinate(&self, value: &TrialValue) -> Option<f64> {
        match &self.scale {
            Scale::Log { low, high } => position(*low, *high, value),
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            Scale::Counts { low, high } => position(*low as f64, *high as f64, value),
            Scale::Uniform { low, high } => finite(value).map(|number| (number - low) / (high - low)),
            #[expect(clippy::cast_precision_loss, reason = "whole numbers are far below 2^52")]
            Scale::Integers { low, high } => {
                finite(value).map(|number| (number - *low as f64 + 0.5) / (*high as f64 - *low as f64 + 1.0))
            }
            Scale::Levels(all) | Scale::Names(all) => {
                all.iter().position(|one| one == value).map(|place| middle(place, all.len()))
            }
        }
    }

    /// The value of this dimension that is nearest to a number, by its ratio where the scale is a logarithm or all are
    /// positive; `None` among names.
    pub fn nearest(&self, number: f64) -> Option<TrialValue> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } | Scale::Integers { .. } => {
                self.coordinate(&TrialValue::Real(number)).map(|at| self.value(at))
            }
            Scale::Levels(all) => {
                let is_positive = number > 0.0 && all.iter().all(|one| one.number().is_some_and(|n| n > 0.0));
                let far = |value: &TrialValue| {
                    value.number().map_or(f64::INFINITY, |one| match is_positive {
                        true => (one / number).ln().abs(),
                        false => (one - number).abs(),
                    })
                };
                all.iter().min_by(|a, b| far(a).total_cmp(&far(b))).cloned()
            }
            Scale::Names(_) => None,
        }
    }

    /// Whether places near each other have values near each other, without steps that matter.
    pub fn is_continuous(&self) -> bool {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } => true,
            Scale::Integers { low, high } => high.abs_diff(*low) >= SMOOTH,
            Scale::Levels(_) | Scale::Names(_) => false,
        }
    }

    /// Whether all its values are equally far from each other.
    pub fn is_categorical(&self) -> bool {
        matches!(self.scale, Scale::Names(_))
    }

    /// How many values it has; `None` when they are too many to be tried one by one.
    pub fn count(&self) -> Option<usize> {
        match &self.scale {
            Scale::Log { .. } | Scale::Counts { .. } | Scale::Uniform { .. } => None,
            Scale::Integers { low, high } => usize::try_from(high.abs_diff(*low))
                .ok()
                .map(|steps| steps.saturating_add(1))
                .filter(|count| *count <= COUNTED_MOST),
            Scale::Levels(all) | Scale::Names(all) => Some(all.len()),
        }
    }
}

fn finite(value: &TrialValue) -> Option<f64> {
    value.number().filter(|number| number.is_finite())
}

fn between(low: f64, high: f64, coordinate: f64) -> f64 {
    (low.ln() + coordinate * (high / low).ln()).exp()
}

fn position(low: f64, high: f64, value: &TrialValue) -> Option<f64> {
    let number = finite(value).filter(|number| *number > 0.0)?;
    Some((number / low).ln() / (high / low).ln())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count_at(low: i64, high: i64, coordinate: f64) -> i64 {
    (between(low as f64, high as f64, coordinate).round() as i64).clamp(low, high)
}

/// The whole number whose cell of the unit interval a coordinate lies in.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "whole numbers are far below 2^52"
)]
fn integer_at(low: i64, high: i64, coordinate: f64) -> i64 {
    low.saturating_add((coordinate * (high as f64 - low as f64 + 1.0)) as i64).min(high)
}

/// The number at a coordinate, to a thousandth of the power of ten that the range contains.
///
/// The bounds themselves are reached, however many digits they have.
fn stepped(low: f64, high: f64, coordinate: f64) -> f64 {
    if coordinate <= 0.0 || coordinate >= 1.0 {
        return if coordinate <= 0.0 { low } else { high };
    }
    let number = low + coordinate * (high - low);
    let digits = 3.0 - (high - low).log10().floor();
    // Through text, so that 0.123 is the number one writes and not its neighbour.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held within 0 and 300")]
    let places = digits.clamp(0.0, 300.0) as usize;
    let step = 10f64.powf(-digits.min(0.0));
    let rounded = (number / step).round() * step;
    let text = format!("{:.*}", places, if digits < 0.0 { rounded } else { number });
    // A zero has no sign.
    text.parse().unwrap_or(number).clamp(low, high) + 0.0
}

/// Which of `count` cells of the unit interval a coordinate lies in.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a few cells, and a coordinate within [0, 1]"
)]
pub(super) fn cell(coordinate: f64, count: usize) -> usize {
    ((coordinate * count as f64) as usize).min(count - 1)
}

/// The middle of cell `place` of `count`.
#[expect(clippy::cast_precision_loss, reason = "a few cells")]
pub(super) fn middle(place: usize, count: usize) -> f64 {
    (place as f64 + 0.5) / count as f64
}

/// Three significant digits, through text, so that 0.00123 is the number one writes and not its neighbour.
fn three_digits(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(scale: Scale) -> Dimension {
        Dimension::new("x", scale)
    }

    #[test]
    fn bounds_of_three_digits_are_kept() {
        assert_eq!(dimension(Scale::Log { low: 1.239, high: 2.0 }).value(0.0), TrialValue::Real(1.24));
        assert_eq!(dimension(Scale::Log { low: 1.231, high: 2.0 }).value(0.0), TrialValue::Real(1.231));
    }

    #[test]
    fn numbers_that_are_even_between_bounds_have_the_digits_one_writes() {
        let at = |low, high, coordinate| dimension(Scale::Uniform { low, high }).value(coordinate);
        assert_eq!(at(0.0, 0.5, 0.3), TrialValue::Real(0.15));
        assert_eq!(at(0.0, 1.0, 1.0 / 3.0), TrialValue::Real(0.333));
        assert_eq!(at(-1.0, 1.0, 0.5), TrialValue::Real(0.0));
        assert_eq!(at(0.0, 5e6, 0.123_456_7), TrialValue::Real(617_000.0));
        assert_eq!(at(0.123_456, 0.2, 0.0), TrialValue::Real(0.123_456), "the lower bound itself");
        assert_eq!(at(0.1, 0.234_567, 1.0), TrialValue::Real(0.234_567), "the upper bound itself");
    }

    #[test]
    fn whole_numbers_are_equally_likely_also_below_zero() {
        let scale = dimension(Scale::Integers { low: -2, high: 1 });
        let all: Vec<TrialValue> = [0.0, 0.24, 0.26, 0.5, 0.76, 1.0].map(|at| scale.value(at)).to_vec();
        assert_eq!(all, [-2, -2, -1, 0, 1, 1].map(TrialValue::Whole));
        assert_eq!(scale.coordinate(&TrialValue::Whole(-2)), Some(0.125));
        assert_eq!(scale.count(), Some(4));
        assert!(!scale.is_continuous() && dimension(Scale::Integers { low: 0, high: 99 }).is_continuous());
    }

    #[test]
    fn the_nearest_value_is_nearest_by_ratio_or_by_difference() {
        let batch = dimension(Scale::Levels([8, 16, 64].map(TrialValue::Whole).to_vec()));
        assert_eq!(batch.nearest(30.0), Some(TrialValue::Whole(16)));
        assert_eq!(batch.nearest(33.0), Some(TrialValue::Whole(64)));
        let signed = dimension(Scale::Levels([-8, 0, 8].map(TrialValue::Whole).to_vec()));
        assert_eq!(signed.nearest(-3.0), Some(TrialValue::Whole(0)));
        let rate = dimension(Scale::Log { low: 1e-4, high: 1e-3 });
        assert_eq!(rate.nearest(3e-4), Some(TrialValue::Real(3e-4)));
        assert_eq!(rate.nearest(0.5), Some(TrialValue::Real(1e-3)));
        assert_eq!(dimension(Scale::Integers { low: 2, high: 9 }).nearest(6.4), Some(TrialValue::Whole(6)));
        let names = ["a", "b"].map(|word| TrialValue::Word(word.into())).to_vec();
        assert_eq!(dimension(Scale::Names(names)).nearest(1.0), None);
    }
}
