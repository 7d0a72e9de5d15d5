//! Formats numbers for people: exact counts with commas, rates and estimates with three digits.

/// Formats a count with three digits and a decimal prefix: `812`, `12.3 k`, `1.25 M`.
pub fn count(value: f64) -> String {
    const PREFIXES: [&str; 5] = ["", " k", " M", " G", " T"];
    if !value.is_finite() {
        return value.to_string();
    }
    let (mut rest, mut prefix) = (value, 0);
    while rest.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        rest /= 1000.0;
        prefix += 1;
    }
    let digits = match (prefix, rest.abs()) {
        (0, _) => usize::from(rest.fract() != 0.0 && rest.abs() < 100.0),
        (_, size) if size < 9.995 => 2,
        (_, size) if size < 99.95 => 1,
        _ => 0,
    };
    format!("{rest:.digits$}{}", PREFIXES[prefix])
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
    fn digits_are_grouped_by_three() {
        let grouped = [1, 12, 123, 1_234, 12_345, 123_456, 1_234_567].map(thousands);
        assert_eq!(grouped, ["1", "12", "123", "1,234", "12,345", "123,456", "1,234,567"]);
    }
}
