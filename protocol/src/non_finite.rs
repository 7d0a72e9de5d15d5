//! Serde functions for numbers that may be infinite or NaN, which JSON lacks: they are written as text.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Serializes a number; writes one that is not finite as `"NaN"`, `"inf"` or `"-inf"`.
pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { to.serialize_f64(*value) } else { to.serialize_str(&value.to_string()) }
}

/// Deserializes the output of [`serialize`]; `null`, which other programs write, becomes NaN.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum NumberRepr {
        Number(f64),
        Text(String),
        Null,
    }
    match NumberRepr::deserialize(from)? {
        NumberRepr::Number(value) => Ok(value),
        NumberRepr::Text(text) => {
            text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a number")))
        }
        NumberRepr::Null => Ok(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct JsonNumber(#[serde(with = "super")] f64);

    #[test]
    fn every_number_comes_back() {
        for value in [0.25, -3.0, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
            let json = serde_json::to_string(&JsonNumber(value)).expect("json");
            assert_eq!(serde_json::from_str::<JsonNumber>(&json).expect("a number").0, value, "{json}");
        }
        let json = serde_json::to_string(&JsonNumber(f64::NAN)).expect("json");
        assert!(serde_json::from_str::<JsonNumber>(&json).expect("a number").0.is_nan(), "{json}");
        assert!(serde_json::from_str::<JsonNumber>("null").expect("a number").0.is_nan());
        assert!(serde_json::from_str::<JsonNumber>("\"many\"").is_err());
    }
}
