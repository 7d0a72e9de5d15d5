//! Formatting of numbers with units for people.

use dtrain_recipes::Seconds;
pub(crate) use dtrain_recipes::number_format::{count, thousands};
use std::time::Duration;

/// Formats a whole number with three digits and a suffix, such as `12.3 k`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn whole(value: u64) -> String {
    count(value as f64)
}

/// Formats a loss in nats with four decimals.
pub(crate) fn loss(value: f64) -> String {
    if value.is_finite() { format!("{value:.4}") } else { value.to_string() }
}

/// Formats a number without a unit: with four decimals, or with three digits if it is very small or large.
pub(crate) fn plain(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e6).contains(&size) || !value.is_finite() {
        format!("{value:.4}")
    } else {
        format!("{value:.2e}")
    }
}

/// Formats a duration in seconds with a fitting unit.
pub(crate) fn seconds(value: f64) -> String {
    if value.is_finite() { Seconds(value.max(0.0)).to_string() } else { "unknown".to_owned() }
}

/// Formats the time from `now_ms` until `until_ms`, both in milliseconds since the Unix epoch.
pub(crate) fn remaining(until_ms: u64, now_ms: u64) -> String {
    seconds(Duration::from_millis(until_ms.saturating_sub(now_ms)).as_secs_f64().ceil())
}

/// Formats the relative deviation of `measured` from `predicted`, such as `+3%`.
pub(crate) fn deviation(measured: f64, predicted: f64) -> String {
    format!("{:+.0}%", (measured / predicted - 1.0) * 100.0)
}

/// Formats how a measured time deviates: `3% slower than predicted`, or from twice on
/// `2.5× the predicted time`.
pub(crate) fn against(measured: f64, predicted: f64) -> String {
    let percent = (measured / predicted - 1.0) * 100.0;
    match percent.round() {
        0.0 => "as predicted".to_owned(),
        slower if slower >= 100.0 => format!("{:.1}× the predicted time", measured / predicted),
        slower if slower > 0.0 => format!("{slower:.0}% slower than predicted"),
        faster => format!("{:.0}% faster than predicted", -faster),
    }
}

/// Formats an accuracy in percent with `decimals` decimals. Values above 1 are no shares, and stay unchanged.
pub(crate) fn accuracy(value: f64, decimals: usize) -> String {
    if value.abs() <= 1.0 { format!("{:.decimals$}%", value * 100.0) } else { plain(value) }
}

/// Formats a number with a noun: `1 step`, `2 steps`, `12,000 steps`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{} {noun}s", thousands(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accuracy_above_1_is_no_share() {
        assert_eq!([accuracy(0.93, 1), accuracy(1.0, 2)], ["93.0%", "100.00%"]);
        assert_eq!(accuracy(93.0, 1), plain(93.0));
    }

    #[test]
    fn deviations_have_a_sign() {
        assert_eq!(deviation(103.0, 100.0), "+3%");
        assert_eq!(deviation(90.0, 100.0), "-10%");
        assert_eq!(against(110.0, 100.0), "10% slower than predicted");
        assert_eq!(against(1006.0, 100.0), "10.1× the predicted time");
        assert_eq!(against(200.0, 100.0), "2.0× the predicted time");
        assert_eq!(against(199.0, 100.0), "99% slower than predicted");
        assert_eq!(against(99.9, 100.0), "as predicted");
        assert_eq!(against(80.0, 100.0), "20% faster than predicted");
    }
}
