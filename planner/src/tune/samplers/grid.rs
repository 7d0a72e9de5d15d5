//! Grid search: all combinations of a few values of each dimension, in order.

use super::ask_context::AskContext;
use crate::tune::event::ProposalSource;
use crate::tune::scale::{Dimension, Scale, middle};
use crate::tune::value::TrialValue;

/// Highest number of combinations that are looked at; later ones are never tried.
const LOOKED_AT: u64 = 100_000;

/// Returns the next untried combination of values. A dimension with too many values has `levels` of them, its
/// bounds included.
pub(super) fn next(context: &AskContext, levels: u32) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let dimensions = context.space.dimensions();
    let sizes: Vec<usize> = dimensions.iter().map(|dimension| size(dimension, levels)).collect();
    let count = sizes.iter().fold(1u64, |count, size| count.saturating_mul(*size as u64));
    (0..count.min(LOOKED_AT)).find_map(|number| {
        let digits = digits(number, &sizes);
        let pairs = dimensions.iter().zip(digits.iter().zip(&sizes));
        let point: Vec<f64> = pairs.map(|(dimension, (digit, size))| at(dimension, *digit, *size)).collect();
        let values = context.space.values(&point);
        // An inactive dimension has only its first digit, so that no values come twice.
        let is_first =
            values.iter().zip(&digits).all(|(value, digit)| *value != TrialValue::Inactive || *digit == 0);
        (is_first && context.is_untried(&values)).then_some((values, ProposalSource::Grid))
    })
}

/// Returns the number of values of a dimension that the grid has.
fn size(dimension: &Dimension, levels: u32) -> usize {
    let levels = usize::try_from(levels.max(2)).expect("a few levels");
    dimension.count().filter(|count| *count <= levels || !is_range(dimension)).unwrap_or(levels)
}

/// Returns `true` if a dimension has bounds rather than a list of values.
fn is_range(dimension: &Dimension) -> bool {
    !matches!(dimension.scale, Scale::Levels(_) | Scale::Names(_))
}

/// Returns the digits of `number` in the mixed radix `sizes`, with the lowest digit last.
fn digits(mut number: u64, sizes: &[usize]) -> Vec<usize> {
    let mut digits = vec![0; sizes.len()];
    for (digit, size) in digits.iter_mut().zip(sizes).rev() {
        let size = *size as u64;
        *digit = usize::try_from(number % size).expect("below a size");
        number /= size;
    }
    digits
}

/// Returns the coordinate for a digit of a dimension: the middle of a cell if there are few values, otherwise
/// evenly spaced from bound to bound.
#[expect(clippy::cast_precision_loss, reason = "a few levels")]
fn at(dimension: &Dimension, digit: usize, size: usize) -> f64 {
    if dimension.count() == Some(size) { middle(digit, size) } else { digit as f64 / (size - 1) as f64 }
}
