//! Reads the YAML that is emitted: blocks, lists, and scalars by the rules of version 1.1, which PyYAML
//! follows.

use serde_json::{Map, Value};

/// Returns the documents of a file.
pub(in super::super) fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(document).collect()
}

fn document(text: &str) -> Value {
    let lines = text.lines().map(without_comment).filter(|line| !line.trim().is_empty());
    let lines = lines.map(|line| (line.len() - line.trim_start().len(), line.trim().to_owned())).collect();
    let mut reader = YamlReader { lines, at: 0 };
    let value = reader.block(0);
    assert!(reader.next().is_none(), "nothing is left of the document: {:?}", reader.next());
    value
}

/// Removes a comment: `#` at the start or after a space, outside quotation marks.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (place, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before == ' ' => return line[..place].trim_end(),
            (None, '"' | '\'') if before == ' ' || before == '[' => quote = Some(c),
            (Some(open), c) if open == c && before != '\\' => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

struct YamlReader {
    /// Lines with their indentation.
    lines: Vec<(usize, String)>,
    at: usize,
}

impl YamlReader {
    fn next(&self) -> Option<(usize, String)> {
        self.lines.get(self.at).cloned()
    }

    /// Returns the lines of this indentation, and those within.
    fn block(&mut self, indent: usize) -> Value {
        let (found, first) = self.next().expect("a block has lines");
        assert_eq!(found, indent, "the indentation of `{first}`");
        if first.starts_with("- ") { self.list(indent) } else { self.mapping(indent) }
    }

    fn list(&mut self, indent: usize) -> Value {
        let mut items = Vec::new();
        while let Some((found, line)) = self.next() {
            let Some(item) = line.strip_prefix("- ").filter(|_| found == indent) else { break };
            if !item.starts_with(['"', '\'']) && (item.contains(": ") || item.ends_with(':')) {
                self.lines[self.at] = (indent + 2, item.into());
                items.push(self.block(indent + 2));
            } else {
                items.push(scalar(item));
                self.at += 1;
            }
        }
        Value::Array(items)
    }

    fn mapping(&mut self, indent: usize) -> Value {
        let mut object = Map::new();
        while let Some((found, line)) = self.next() {
            if found != indent || line.starts_with("- ") {
                break;
            }
            self.at += 1;
            let entry = line.strip_suffix(':').map(|key| (key, ""));
            let (key, value) = entry
                .or_else(|| line.split_once(": "))
                .unwrap_or_else(|| panic!("`{line}` has no key and value"));
            let value = match (value, self.next()) {
                ("", Some((deeper, _))) if deeper > indent => self.block(deeper),
                // Nothing stands below it.
                ("", _) => Value::Null,
                // The value stands in the line of its key.
                (value, _) => scalar(value),
            };
            assert!(object.insert(key.into(), value).is_none(), "`{key}` is there twice");
        }
        Value::Object(object)
    }
}

fn scalar(text: &str) -> Value {
    if let Some(items) = text.strip_prefix('[') {
        let items = items.strip_suffix(']').expect("a list ends in its line");
        return Value::Array(items.split(", ").map(scalar).collect());
    }
    if text.starts_with('"') {
        return serde_json::from_str(text).expect("a quotation of JSON");
    }
    if let Some(quoted) = text.strip_prefix('\'') {
        let quoted = quoted.strip_suffix('\'').expect("a quotation ends in its line");
        return quoted.replace("''", "'").into();
    }
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => return true.into(),
        "false" | "no" | "off" => return false.into(),
        "null" | "~" => return Value::Null,
        // A number or plain text.
        _ => {}
    }
    assert!(
        !text.starts_with(['*', '&', '!', '|', '>', '%', '@', '{', '`', '?']),
        "`{text}` is no plain text"
    );
    // A fraction has a point: without one, `1e-8` is text.
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(integer), _) => integer.into(),
        (_, Ok(fraction)) if text.contains('.') => fraction.into(),
        _ => text.into(),
    }
}

#[test]
fn scalars_are_those_of_yaml_1_1() {
    for (text, expected) in [
        ("a: 1.0e-8", serde_json::json!({"a": 1e-8})),
        ("a: 1e-8", serde_json::json!({"a": "1e-8"})),
        ("a: 'NO' # no", serde_json::json!({"a": "NO"})),
        ("a: NO", serde_json::json!({"a": false})),
        (
            "a:\n  - b: [1, x]\n    c: \"2 # 3\"\n  - d",
            serde_json::json!({"a": [{"b": [1, "x"], "c": "2 # 3"}, "d"]}),
        ),
    ] {
        assert_eq!(documents(text), [expected], "{text}");
    }
}
