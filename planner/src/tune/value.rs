//! Values of the dimensions of a search space.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A value of a dimension, as it stands in a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TrialValue {
    /// No value, as the dimension does not exist for the values of others. `null` in JSON.
    Inactive,
    /// A flag, `true` or `false`.
    Flag(bool),
    /// An integer value.
    Whole(i64),
    /// A real number, in f64.
    Real(f64),
    /// A name, such as that of an optimizer.
    Word(String),
}

impl TrialValue {
    /// Returns the value as a number; `None` for a name, a flag, and no value.
    pub fn number(&self) -> Option<f64> {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            Self::Whole(count) => Some(*count as f64),
            Self::Real(number) => Some(*number),
            Self::Inactive | Self::Flag(_) | Self::Word(_) => None,
        }
    }
}

impl fmt::Display for TrialValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inactive => f.write_str("-"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Whole(count) => write!(f, "{count}"),
            Self::Real(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_survives_its_text() {
        let word = TrialValue::Word("adam".into());
        let all = [
            TrialValue::Inactive,
            TrialValue::Flag(true),
            TrialValue::Whole(-3),
            TrialValue::Real(1.0),
            word,
        ];
        let text = serde_json::to_string(&all).expect("values are plain");
        assert_eq!(text, r#"[null,true,-3,1.0,"adam"]"#);
        assert_eq!(serde_json::from_str::<Vec<TrialValue>>(&text).expect("it was just written"), all);
    }
}
