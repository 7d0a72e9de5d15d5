//! Quantities with their units. The unit is in the type, so that two quantities cannot be swapped.

mod parse;

pub use parse::{UnitError, bytes, epochs, fraction, samples, seconds, steps, tokens};

use crate::number_format::thousands;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of training samples: sequences for a decoder, images for a cnn, rows for an mlp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(pub u64);

/// A number of tokens. A sample that is not a sequence counts as one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

/// A duration in seconds, never negative and always finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.1} {}", UNITS[unit]) }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0;
        // The unit fits the rounded figure: 999.96 ms are 1.0 s, and 179.6 s are 3 min 00 s, not 2 min 60 s.
        if s < 0.999_95e-3 {
            write!(f, "{:.1} µs", s * 1e6)
        } else if s < 0.999_95 {
            write!(f, "{:.1} ms", s * 1e3)
        } else if s < 119.95 {
            write!(f, "{s:.1} s")
        } else if s.round() < 7200.0 {
            let s = s.round();
            write!(f, "{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0)
        } else if (s / 60.0).round() < 2880.0 {
            let minutes = (s / 60.0).round();
            write!(f, "{:.0} h {:02.0} min", (minutes / 60.0).floor(), minutes % 60.0)
        } else {
            write!(f, "{:.1} days", s / 86_400.0)
        }
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples", thousands(self.0))
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", thousands(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_duration_has_sixty_seconds_or_minutes(exponent in -7.0f64..9.0, shift in -1.0f64..1.0) {
            // A random duration, and values just around each whole minute and hour.
            let any = 10f64.powf(exponent);
            let near = |unit: f64| (any / unit).round() * unit;
            for seconds in [any, near(1.0) + shift / 1e4, near(60.0) + shift, near(3600.0) + shift] {
                let text = Seconds(seconds.max(0.0)).to_string();
                for wrong in [" 60 s", " 60 min", "1000.0 ms", "1000.0 µs", "120.0 s", "120 min", "48 h"] {
                    prop_assert!(!text.contains(wrong), "{seconds}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_duration_is_rounded_before_it_is_divided() {
        let check = |seconds: f64, text: &str| assert_eq!(Seconds(seconds).to_string(), text, "{seconds}");
        check(179.4, "2 min 59 s");
        check(179.6, "3 min 00 s");
        check(3599.6, "60 min 00 s");
        check(7199.9, "2 h 00 min");
        check(10_799.0, "3 h 00 min");
        check(10_740.0, "2 h 59 min");
    }
}
