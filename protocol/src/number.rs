//! Numbers that may be infinite or not a number, as JSON: JSON has none of these, and they are written as text.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes a number; one that is not finite as `"NaN"`, `"inf"` or `"-inf"`.
pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { to.serialize_f64(*value) } else { to.serialize_str(&value.to_string()) }
}

/// Reads what [`serialize`] writes; `null`, which other programs write for it, is not a number.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Text(String),
        Null,
    }
    match Written::deserialize(from)? {
        Written::Number(value) => Ok(value),
        Written::Text(text) => {
            text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a number")))
        }
        Written::Null => Ok(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Figure(#[serde(with = "super")] f64);

    #[test]
    fn every_number_comes_back() {
        for value in [0.25, -3.0, f64::INFINITY, f64::NEG_INFINITY, f64::MAX] {
            let json = serde_json::to_string(&Figure(value)).expect("json");
            assert_eq!(serde_json::from_str::<Figure>(&json).expect("a number").0, value, "{json}");
        }
        let json = serde_json::to_string(&Figure(f64::NAN)).expect("json");
        assert!(serde_json::from_str::<Figure>(&json).expect("a number").0.is_nan(), "{json}");
        assert!(serde_json::from_str::<Figure>("null").expect("a number").0.is_nan());
        assert!(serde_json::from_str::<Figure>("\"many\"").is_err());
    }
}
