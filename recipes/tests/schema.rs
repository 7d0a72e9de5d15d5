//! The schema and the checker say the same, because both read one table; here they are held against each other.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::json_schema::json_schema;
use dtrain_recipes::keys::keys;
use serde_json::Value;
use std::collections::BTreeSet;

fn is_of_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("type {other}"),
    }
}

/// The part of JSON Schema that our schema uses.
fn fits(schema: &Value, value: &Value) -> bool {
    let Value::Object(rules) = schema else { return true };
    rules.iter().all(|(rule, wanted)| match rule.as_str() {
        "type" => {
            let one = std::slice::from_ref(wanted);
            wanted.as_array().map_or(one, Vec::as_slice).iter().any(|name| is_of_type(name, value))
        }
        "enum" => wanted.as_array().unwrap().contains(value),
        "const" => wanted == value,
        "anyOf" => wanted.as_array().unwrap().iter().any(|one| fits(one, value)),
        "allOf" => wanted.as_array().unwrap().iter().all(|one| fits(one, value)),
        "not" => !fits(wanted, value),
        "then" => !fits(&rules["if"], value) || fits(wanted, value),
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(key, value)| wanted.get(key).is_none_or(|inner| fits(inner, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let known = |key: &String| rules.get("properties").is_some_and(|known| known.get(key).is_some());
            object.iter().all(|(key, value)| known(key) || (wanted.is_object() && fits(wanted, value)))
        }),
        "required" => value.as_object().is_none_or(|object| {
            wanted.as_array().unwrap().iter().all(|key| object.contains_key(key.as_str().unwrap()))
        }),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(wanted, item))),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap()),
        "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= wanted.as_u64().unwrap()),
        "minimum" => value.as_f64().is_none_or(|x| x >= wanted.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|x| x <= wanted.as_f64().unwrap()),
        "exclusiveMinimum" => value.as_f64().is_none_or(|x| x > wanted.as_f64().unwrap()),
        "exclusiveMaximum" => value.as_f64().is_none_or(|x| x < wanted.as_f64().unwrap()),
        // Of patterns, the one that tells a word from the path of a file and a URL.
        "pattern" if wanted == r"^bytes$|\.json$|^https?://" => value.as_str().is_none_or(|text| {
            text == "bytes"
                || text.ends_with(".json")
                || ["http://", "https://"].iter().any(|s| text.starts_with(s))
        }),
        "$schema" | "title" | "description" | "examples" | "pattern" | "if" => true,
        other => panic!("rule {other}"),
    })
}

fn json_of(folder: &str, name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{name}.toml"));
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every property of the schema as a dotted path.
fn properties(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let nested = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    nested.chain(schema.get("items")).for_each(|inner| properties(inner, path, found));
    for (key, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let before = found.len();
        properties(inner, &path, found);
        if found.len() == before {
            found.insert(path);
        }
    }
}

#[test]
fn every_key_is_in_the_schema_and_nothing_else() {
    let mut found = BTreeSet::new();
    properties(&json_schema(), "", &mut found);
    // Inside a value: the forms of a search and of a tokenizer.
    let is_form = |path: &String| [".choices", ".log", ".bpe"].iter().any(|form| path.ends_with(form));
    let searched: BTreeSet<String> = found
        .iter()
        .map(|path| if is_form(path) { path.rsplit_once('.').unwrap().0.to_owned() } else { path.clone() })
        .collect();
    let known: BTreeSet<String> = keys().iter().map(|key| key.path.to_owned()).collect();
    assert_eq!(searched, known);
}

#[test]
fn every_sample_that_holds_fits_the_schema() {
    let schema = json_schema();
    for folder in ["tests/valid", "library"] {
        for entry in std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap()
        {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(fits(&schema, &json_of(folder, name)), "{}", path.display());
        }
    }
}

#[test]
fn the_schema_refuses_what_one_value_gets_wrong() {
    let schema = json_schema();
    let samples = [
        "unknown_key",
        "unknown_section",
        "unknown_key_in_stop",
        "unknown_key_in_search",
        "missing_sizes",
        "type_quoted_number",
        "type_fraction_for_count",
        "type_flag",
        "type_hosts",
        "type_argv",
        "range_zero",
        "range_beta",
        "range_keep",
        "range_zero_stage",
        "range_port",
        "word_kind",
        "word_optimizer",
        "word_launcher",
        "word_tokenizer",
        "search_both",
        "search_no_choices",
        "search_log_one_bound",
        "search_log_zero",
        "unit_missing_time",
        "host_no_address",
        "host_one_bracket",
    ];
    for name in samples {
        assert!(!fits(&schema, &json_of("tests/invalid", name)), "{name}");
    }
}

#[test]
fn the_table_of_keys_is_as_it_was() {
    let line = |key: &dtrain_recipes::keys::Key| {
        let kinds: Vec<&str> = key.kinds.iter().map(|kind| kind.name()).collect();
        format!("{} [{}] {:?} {:?}: {}\n", key.path, kinds.join(" "), key.shape, key.need, key.doc)
    };
    insta::assert_snapshot!(keys().iter().map(line).collect::<String>());
}
