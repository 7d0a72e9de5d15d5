//! Learning-rate range test: the bounds worth searching, from short trials at rates far apart (after Smith
//! 2017).

/// Fall of the loss that counts as learning, as a fraction of the largest fall.
const VISIBLE: f64 = 0.1;

/// Lowest ratio of the upper bound to the lower one.
const LEAST: f64 = 9.0;

/// Returns the lowest and the highest learning rate worth searching. `trials` has learning rates in ascending
/// order, each with the cost after a few steps, or `None` where training diverged.
///
/// The low bound is the first rate whose cost is clearly below that of the lowest rate, which hardly changes
/// the weights. The high bound is the last rate whose cost is still below it. Short trials favor high rates,
/// so the best rate of a whole training lies between the two. `None` when no rate learns.
pub fn learning_rate_range(trials: &[(f64, Option<f64>)]) -> Option<(f64, f64)> {
    let untrained = trials.first()?.1?;
    let fall = |cost: &Option<f64>| cost.filter(|cost| cost.is_finite()).map(|cost| untrained - cost);
    let falls = || trials.iter().map(|(_, cost)| fall(cost));
    let largest = falls().flatten().fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    let first = falls().position(|fall| fall.is_some_and(|fall| fall >= VISIBLE * largest))?;
    let learns = falls().skip(first).take_while(|fall| fall.is_some_and(|fall| fall > 0.0)).count();
    let (low, high) = (trials[first].0, trials[first + learns - 1].0);
    Some((low.min(high / LEAST), high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials(costs: &[Option<f64>]) -> Vec<(f64, Option<f64>)> {
        let rates = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1];
        rates.into_iter().zip(costs.iter().copied()).collect()
    }

    #[test]
    fn rates_at_which_the_loss_falls_are_searched() {
        let found = learning_rate_range(&trials(&[Some(5.0), Some(4.98), Some(4.5), Some(3.0), None]));
        assert_eq!(found, Some((1e-3, 1e-2)));
        let found = learning_rate_range(&trials(&[Some(5.0), Some(4.5), Some(4.0), Some(3.0), Some(5.5)]));
        assert_eq!(found, Some((1e-4, 1e-2)), "the highest no longer learns");
    }

    #[test]
    fn bounds_are_never_close_together() {
        let (low, high) = learning_rate_range(&trials(&[Some(5.0), Some(5.0), Some(5.0), Some(3.0), None]))
            .expect("one learns");
        assert_eq!(high, 1e-2);
        assert!((high / low - LEAST).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_said_where_nothing_learns() {
        assert_eq!(learning_rate_range(&trials(&[Some(5.0), Some(5.1), None, None, None])), None);
        assert_eq!(learning_rate_range(&trials(&[None, None, None, None, None])), None);
        assert_eq!(learning_rate_range(&[]), None);
    }
}
