//! JSON objects that keep the order of their keys.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// A JSON object whose keys stay in order; a map of `serde_json` would sort them.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderedObject(Vec<(&'static str, ObjectEntry)>);

#[derive(Clone, Debug)]
enum ObjectEntry {
    Value(Value),
    OrderedObject(OrderedObject),
}

impl OrderedObject {
    /// Adds a value under `key`.
    pub(super) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((key, ObjectEntry::Value(value.into())));
        self
    }

    /// Adds an object under `key`.
    pub(super) fn object(mut self, key: &'static str, object: Self) -> Self {
        self.0.push((key, ObjectEntry::OrderedObject(object)));
        self
    }

    /// Returns the object as indented JSON, with a final newline.
    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("all keys are text") + "\n"
    }
}

impl Serialize for OrderedObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, entry) in &self.0 {
            match entry {
                ObjectEntry::Value(value) => map.serialize_entry(key, value)?,
                ObjectEntry::OrderedObject(object) => map.serialize_entry(key, object)?,
            }
        }
        map.end()
    }
}
