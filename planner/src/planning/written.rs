//! Digest of a plan as its file is written: in plans of an older format, the digest covers the names of that
//! format.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;
use std::fmt;

/// A JSON value whose objects keep the order of their keys.
enum Ordered {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Returns the blake3 digest, in hex, of the value under `key` in a JSON object, written without spaces;
/// `None` where the object lacks the key.
///
/// `Err` when the text is no JSON object.
pub fn digest_of(key: &str, text: &str) -> Result<Option<String>, serde_json::Error> {
    let Ordered::Object(fields) = serde_json::from_str(text)? else {
        return Err(Error::custom("it is no JSON object"));
    };
    let value = fields.into_iter().find(|(name, _)| name == key);
    Ok(value.map(|(_, value)| super::plan::digest(&value)))
}

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => to.serialize_unit(),
            Self::Bool(flag) => flag.serialize(to),
            Self::Number(number) => number.serialize(to),
            Self::Text(text) => text.serialize(to),
            Self::List(items) => items.serialize(to),
            Self::Object(fields) => {
                let mut map = to.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OrderedVisitor)
    }
}

struct OrderedVisitor;

impl<'de> Visitor<'de> for OrderedVisitor {
    type Value = Ordered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Ordered, E> {
        Ok(Ordered::Bool(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Ordered, E> {
        Ok(Ordered::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Ordered, E> {
        Ok(Ordered::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Ordered, E> {
        Ok(Number::from_f64(number).map_or(Ordered::Null, Ordered::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Ordered, E> {
        Ok(Ordered::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Ordered, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Ordered::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Ordered, A::Error> {
        let mut all = Vec::new();
        while let Some(field) = fields.next_entry()? {
            all.push(field);
        }
        Ok(Ordered::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_text_without_spaces_in_the_order_of_its_keys() {
        let text = r#"{ "a": 1, "plan": { "z": [1.0, 1e-7, null], "b": "\u009bx", "c": -3 } }"#;
        let bare = "{\"z\":[1.0,1e-7,null],\"b\":\"\u{9b}x\",\"c\":-3}";
        let wanted = blake3::hash(bare.as_bytes()).to_hex().to_string();
        assert_eq!(digest_of("plan", text).expect("JSON"), Some(wanted));
        assert_eq!(digest_of("other", text).expect("JSON"), None);
        digest_of("plan", "[]").expect_err("a list");
    }
}
