//! Numbers of an answer: step times and memory with three digits, intervals that name their unit once.

use dtrain_recipes::{Bytes, Seconds};

/// Number of bytes in a GiB.
pub const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Formats the time of a step with three digits: `82.1 ms`, `1.69 s`, `33.7 s`.
pub fn step_time(seconds: f64) -> String {
    if (0.999_95..9.995).contains(&seconds) {
        format!("{seconds:.2} s")
    } else {
        Seconds(seconds).to_string()
    }
}

/// Formats the interval of a step time: `1.48 to 1.92 s`.
pub fn step_interval(low: f64, high: f64) -> String {
    range(&step_time(low), &step_time(high), " to ")
}

/// Formats `part` of `whole` bytes: `62.8 of 79.6 GiB`.
pub fn bytes_of(part: f64, whole: f64) -> String {
    range(&bytes(part), &bytes(whole), " of ")
}

/// Formats a number of bytes: `62.8 GiB`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
pub fn bytes(bytes: f64) -> String {
    Bytes(bytes.max(0.0) as u64).to_string()
}

/// Formats a learning rate: `0.001`, `8.4e-5`.
pub fn learning_rate(rate: f64) -> String {
    if rate < 1e-3 { format!("{rate:e}") } else { rate.to_string() }
}

/// Joins two quantities, and leaves out the unit of the first where both have the same.
fn range(first: &str, second: &str, joint: &str) -> String {
    let split = |text: &str| {
        let (number, unit) = text.split_once(' ')?;
        (!unit.contains(' ')).then(|| (number.to_owned(), unit.to_owned()))
    };
    match (split(first), split(second)) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number}{joint}{second}"),
        _ => format!("{first}{joint}{second}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_named_once_and_three_digits_are_shown() {
        assert_eq!(step_interval(1.482, 1.919), "1.48 to 1.92 s");
        assert_eq!(step_interval(0.9, 1.2), "900.0 ms to 1.20 s");
        assert_eq!(step_interval(130.0, 150.0), "2 min 10 s to 2 min 30 s");
        assert_eq!(bytes_of(62.8 * GIB, 79.6 * GIB), "62.8 of 79.6 GiB");
        assert_eq!([1e-3, 8.4e-5, 1.2e-3].map(learning_rate), ["0.001", "8.4e-5", "0.0012"]);
    }
}
