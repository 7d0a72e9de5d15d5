//! The JSON Schema of recipes, for editors. It is generated from the table of keys alone.

use crate::keys::{KEYS, Key, Kind, Requirement, ValueType};
use serde_json::{Map, Value, json};

/// Returns the JSON Schema (2020-12) of a recipe file.
///
/// It describes single values. Contradictions between values are left to the checker.
pub fn json_schema() -> Value {
    let kinds: Vec<Value> = Kind::ALL.iter().map(|kind| required_of(*kind)).collect();
    let mut root = section("");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("dtrain recipe");
    root["allOf"] = Value::Array(kinds);
    root
}

/// Returns the JSON Schema of a recipe file as indented text that ends in a newline.
pub fn json_schema_text() -> String {
    format!("{:#}\n", json_schema())
}

/// Returns the schema of the section at `path` and of all that it contains.
fn section(path: &str) -> Value {
    let mut properties = Map::new();
    for key in KEYS {
        let Some(rest) = below(path, key.path) else { continue };
        let name = rest.split('.').next().unwrap_or(rest);
        if !properties.contains_key(name) {
            let inner = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            properties.insert(name.to_owned(), member(&inner));
        }
    }
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Returns the schema of the section or key at `path`. A key whose type depends on the kind of model has one
/// alternative per type.
fn member(path: &str) -> Value {
    let keys: Vec<&Key> = KEYS.iter().filter(|key| key.path == path).collect();
    match keys.as_slice() {
        [] => match path {
            "train.optimizer" => {
                let kind = member("train.optimizer.kind");
                json!({ "anyOf": [kind, section(path)] })
            }
            "cluster.workdir" => {
                let send = member("cluster.workdir.send");
                json!({ "anyOf": [send, section(path)] })
            }
            "cluster.hosts" => {
                let mut host = section(path);
                host["required"] = json!(["address"]);
                json!({ "type": "array", "items": { "anyOf": [member("cluster.hosts.address"), host] } })
            }
            // Every other section is an object of its keys.
            path => section(path),
        },
        [key] => described(key),
        several => json!({ "anyOf": several.iter().map(|key| described(key)).collect::<Vec<_>>() }),
    }
}

fn described(key: &Key) -> Value {
    let mut value = shape(key.shape);
    let absent = match key.need {
        Requirement::Required => "Required.".to_owned(),
        Requirement::Default(default) => format!("Default: {default}."),
        Requirement::Optional(meaning) => format!("When absent: {meaning}."),
    };
    value["description"] = json!(format!("{}. {absent}", key.doc));
    value
}

fn shape(shape_of: ValueType) -> Value {
    let number = || json!({ "type": "number" });
    let text = || json!({ "type": "string", "minLength": 1 });
    let either = |a: Value, b: Value| json!({ "anyOf": [a, b] });
    match shape_of {
        ValueType::Text => text(),
        ValueType::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$" }),
        ValueType::Host => json!({ "type": "string", "pattern": "^[^-\\s][^\\s]*$" }),
        ValueType::Network => json!({ "type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$" }),
        ValueType::HttpUrl => json!({ "type": "string", "pattern": "^[hH][tT][tT][pP]://[!-~]+$" }),
        ValueType::Flag => json!({ "type": "boolean" }),
        ValueType::Whole(low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
        ValueType::Above(low, high) => json!({ "type": "number", "exclusiveMinimum": low, "maximum": high }),
        ValueType::Below(low, high) => json!({ "type": "number", "minimum": low, "exclusiveMaximum": high }),
        ValueType::Level => either(number(), percentage()),
        ValueType::Metric => json!({ "type": "string", "pattern": "^[A-Za-z0-9_./:@-]{1,128}$" }),
        ValueType::Share => either(json!({ "type": "number", "minimum": 0, "maximum": 1 }), percentage()),
        ValueType::Part => {
            either(json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }), percentage())
        }
        ValueType::Epochs => either(json!({ "type": "number", "exclusiveMinimum": 0 }), quantity("3 epochs")),
        ValueType::Tokens => either(at_least_one(), quantity("20M tokens")),
        ValueType::Samples(_) => either(at_least_one(), quantity("50K samples")),
        ValueType::Steps => either(at_least_one(), quantity("500 steps")),
        ValueType::Size => quantity("200 MiB"),
        ValueType::Time => quantity("30 min"),
        ValueType::Warmup => either(at_least_one(), quantity("500 steps")),
        ValueType::Period => either(at_least_one(), quantity("5 min")),
        ValueType::OneOf(words) => json!({ "enum": words.names() }),
        ValueType::Files => either(text(), json!({ "type": "array", "items": text(), "minItems": 1 })),
        ValueType::Folder => text(),
        ValueType::Texts => json!({ "type": "array", "items": text(), "minItems": 1 }),
        ValueType::Environment => {
            json!({ "type": "object", "additionalProperties": { "type": ["string", "integer", "boolean"] } })
        }
        ValueType::Headers => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        ValueType::Params => json!({ "type": "object", "additionalProperties": param() }),
        ValueType::Settings => {
            json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
        }
        ValueType::Variables => {
            json!({ "type": "array", "items": { "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" }, "minItems": 1 })
        }
        ValueType::Wholes(low, high) => {
            json!({ "type": "array", "items": shape(ValueType::Whole(low, high)), "minItems": 1 })
        }
        ValueType::Tokenizer => either(
            json!({ "type": "string", "pattern": "^bytes$|\\.json$|^https?://" }),
            json!({
                "type": "object",
                "properties": { "bpe": { "type": "integer", "minimum": 257, "maximum": 1_048_576 } },
                "required": ["bpe"],
                "additionalProperties": false
            }),
        ),
        ValueType::Valid => either(
            json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 }),
            shape(ValueType::Files),
        ),
        ValueType::OrNone(inner) => either(json!({ "const": "none" }), shape(*inner)),
        ValueType::OrAuto(inner) => either(json!({ "const": "auto" }), shape(*inner)),
        ValueType::Choice(inner) => choice(*inner),
    }
}

fn choice(inner: ValueType) -> Value {
    let only = |name: &str, values: Value| {
        json!({
            "type": "object",
            "properties": { name: values },
            "required": [name],
            "additionalProperties": false
        })
    };
    let item = || shape(inner);
    let mut forms = vec![json!({ "const": "auto" }), item()];
    forms.push(only("choices", json!({ "type": "array", "items": item(), "minItems": 1 })));
    if !matches!(inner, ValueType::OneOf(_)) {
        forms.push(only("log", json!({ "type": "array", "items": item(), "minItems": 2, "maxItems": 2 })));
    }
    json!({ "anyOf": forms })
}

/// Returns the schema of a param: either a value or a range.
fn param() -> Value {
    let value = || json!({ "type": ["string", "number", "boolean"] });
    let bounds = || json!({ "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 });
    let values = || json!({ "type": "array", "items": value(), "minItems": 1 });
    let condition = json!({ "anyOf": [value(), values()] });
    let forms = json!([{ "required": ["choices"] }, { "required": ["log"] }, { "required": ["uniform"] }]);
    let range = json!({
        "type": "object",
        "properties": {
            "choices": values(),
            "log": bounds(),
            "uniform": bounds(),
            "default": value(),
            "when": { "type": "object", "additionalProperties": condition }
        },
        "additionalProperties": false,
        "anyOf": forms
    });
    json!({ "anyOf": [value(), range] })
}

fn percentage() -> Value {
    json!({ "type": "string", "examples": ["5%"] })
}

fn quantity(example: &str) -> Value {
    json!({ "type": "string", "examples": [example] })
}

fn at_least_one() -> Value {
    json!({ "type": "integer", "minimum": 1 })
}

/// Returns the schema rule that `model` has all keys that models of this kind require. It does not apply to a
/// recipe that extends another.
fn required_of(kind: Kind) -> Value {
    let needed: Vec<&str> = KEYS
        .iter()
        .filter(|key| key.need == Requirement::Required && key.kinds.contains(&kind))
        .filter_map(|key| key.path.strip_prefix("model."))
        .collect();
    json!({
        "if": {
            "properties": { "model": { "properties": { "kind": { "const": kind.name() } }, "required": ["kind"] } },
            "required": ["model"],
            "not": { "required": ["extends"] }
        },
        "then": { "properties": { "model": { "required": needed } } }
    })
}

/// Returns the part of the path `key` below `section`; `None` if the key is not in that section.
fn below<'k>(section: &str, key: &'k str) -> Option<&'k str> {
    if section.is_empty() { Some(key) } else { key.strip_prefix(section)?.strip_prefix('.') }
}
