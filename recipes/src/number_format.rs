//! Formats numbers for people: exact counts with commas, rates and estimates with three digits.

/// Formats a count with three digits and a decimal prefix: `812`, `12.3 k`, `1.25 M`.
pub fn count(value: f64) -> String {
    scaled(value, ["", " k", " M", " G", " T"])
}

/// Formats a number of parameters with three digits, as papers do: `259`, `793 K`, `124 M`, `8.03 B`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn parameters(number: u64) -> String {
    scaled(number as f64, ["", " K", " M", " B", " T"])
}

/// Formats `value` with three digits and the suffix of its power of 1,000.
fn scaled(value: f64, suffixes: [&str; 5]) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let (mut rest, mut power) = (value, 0);
    while rest.abs() >= 999.5 && power + 1 < suffixes.len() {
        rest /= 1000.0;
        power += 1;
    }
    let digits = match (power, rest.abs()) {
        (0, _) => usize::from(rest.fract() != 0.0 && rest.abs() < 100.0),
        (_, size) if size < 9.995 => 2,
        (_, size) if size < 99.95 => 1,
        _ => 0,
    };
    format!("{rest:.digits$}{}", suffixes[power])
}

/// Formats an exact count: `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let first = digits.len() % 3;
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && place % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_three_digits() {
        let shown = [0.0, 7.0, 7.25, 812.0, 999.9, 12_345.0, 999_999.0, 1_250_000.0, 3.2e9].map(count);
        assert_eq!(shown, ["0", "7", "7.2", "812", "1.00 k", "12.3 k", "1.00 M", "1.25 M", "3.20 G"]);
        assert_eq!(count(f64::NAN), "NaN");
    }

    #[test]
    fn parameters_have_the_suffixes_of_papers() {
        let shown = [259, 793_000, 124_000_000, 8_030_261_248, 405_000_000_000, 1_030_000_000_000];
        assert_eq!(shown.map(parameters), ["259", "793 K", "124 M", "8.03 B", "405 B", "1.03 T"]);
    }

    #[test]
    fn digits_are_grouped_by_three() {
        let grouped = [1, 12, 123, 1_234, 12_345, 123_456, 1_234_567].map(thousands);
        assert_eq!(grouped, ["1", "12", "123", "1,234", "12,345", "123,456", "1,234,567"]);
    }
}
