//! The values of a `config.json`, and what is wrong with them.

use dtrain_recipes::Activation;
use serde_json::{Map, Value};

/// The values of a `config.json`, and the mistakes and notes found while reading them.
pub(super) struct ConfigReader {
    pub(super) map: Map<String, Value>,
    pub(super) reasons: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl ConfigReader {
    /// Returns the value of `key` if it is present and not null.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns the count of at least one at `key`, or `default` if the key is absent; records a mistake
    /// if there is neither.
    pub(super) fn count(&mut self, key: &str, default: Option<u32>) -> Option<u32> {
        let Some(value) = self.value(key) else {
            if default.is_none() {
                self.reasons.push(format!("`{key}` is missing"));
            }
            return default;
        };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        if count.is_none() {
            self.reasons.push(format!("`{key}` is {value}, expected a count of at least one"));
        }
        count
    }

    pub(super) fn number(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.value(key) else { return default };
        if let Some(number) = value.as_f64() {
            return number;
        }
        self.reasons.push(format!("`{key}` is {value}, expected a number"));
        default
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Records a mistake if the flag at `key` is not `wanted`, which is also its default.
    pub(super) fn refuse_unless(&mut self, key: &str, wanted: bool) {
        if self.flag(key, wanted) != wanted {
            self.reasons.push(format!("`{key}` is {}, and dtrain has only {wanted}", !wanted));
        }
    }

    /// Records a mistake if `key` has a value.
    pub(super) fn refuse_value(&mut self, key: &str, what: &str) {
        if let Some(value) = self.value(key) {
            self.reasons.push(format!("`{key}` is {value}, and dtrain has no {what}"));
        }
    }

    pub(super) fn activation(
        &mut self,
        key: &str,
        default: &str,
        known: &[(&str, Activation)],
    ) -> Option<Activation> {
        let name = self
            .value(key)
            .map_or(default.to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        let found = known.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation);
        if found.is_none() {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            self.reasons.push(format!("`{key}` is {name}, and dtrain has {}", names.join(", ")));
        }
        found
    }

    /// Notes the dropout at `keys`, which dtrain lacks: it changes training, not the computation of the
    /// weights.
    pub(super) fn dropout(&mut self, keys: &[(&str, f64)]) {
        for (key, default) in keys {
            let rate = self.number(key, *default);
            if rate > 0.0 {
                self.notes.push(format!("{key} = {rate} is left out: dtrain has no dropout"));
            }
        }
    }

    pub(super) fn quantization(&mut self) {
        if self.value("quantization_config").is_some() {
            self.reasons.push(
                "its weights are quantized (`quantization_config`); take the ones in bf16, f16 or f32".into(),
            );
        }
    }
}
