//! Reads Python modules of imports, assignments, functions that return an expression, and loops of one
//! assignment. Functions with parameters are kept as text.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Key of a call's name in the object of its arguments; those without a keyword have their place as key.
pub(super) const CALLED: &str = "()";

/// A module, read.
#[derive(Default)]
pub(in super::super) struct PythonModule {
    /// Imported names, with the modules that they are from.
    pub(in super::super) imports: BTreeMap<String, String>,
    /// Assigned values, and returned ones by the name of their function. Names of numbers, texts and lists of
    /// them are replaced by their values; other names are texts.
    pub(in super::super) values: Map<String, Value>,
    /// Calls with their keywords.
    pub(in super::super) calls: Vec<(String, Vec<String>)>,
    /// Functions with parameters, as they are written.
    pub(in super::super) functions: BTreeMap<String, String>,
}

impl PythonModule {
    /// Reads a module.
    pub(in super::super) fn of(text: &str) -> Self {
        let (text, functions) = without_functions(text);
        let module = Self { functions, ..Self::default() };
        let mut reader = PythonReader { tokens: tokens(&text), at: 0, module };
        while reader.at < reader.tokens.len() {
            reader.statement();
        }
        reader.module
    }
}

/// Returns the text without its functions that have parameters, and these by their names.
fn without_functions(text: &str) -> (String, BTreeMap<String, String>) {
    let (mut others, mut functions, mut current) = (String::new(), BTreeMap::new(), None);
    for line in text.split_inclusive('\n') {
        let header = line.strip_prefix("def ").and_then(|rest| rest.split_once('('));
        match header {
            Some((name, parameters)) if !parameters.starts_with(')') => current = Some(name.to_owned()),
            _ if line.starts_with([' ', '\n']) => {}
            _ => current = None,
        }
        match &current {
            Some(name) => *functions.entry(name.clone()).or_default() += line,
            None => others += line,
        }
    }
    (others, functions)
}

#[derive(Clone, Debug, PartialEq)]
enum PythonToken {
    Name(String),
    Text(String),
    Number(String),
    Sign(char),
}

fn tokens(text: &str) -> Vec<PythonToken> {
    let (mut found, mut rest) = (Vec::new(), text.chars().peekable());
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\n' => {}
            '#' => while rest.next_if(|c| *c != '\n').is_some() {},
            '"' => {
                let is_raw = found.pop_if(|last| *last == PythonToken::Name("r".into())).is_some();
                let mut inside = String::new();
                loop {
                    match rest.next().expect("a text ends") {
                        '"' => break,
                        '\\' => inside.extend(['\\', rest.next().expect("a text ends")]),
                        other => inside.push(other),
                    }
                }
                let text = if is_raw {
                    inside
                } else {
                    serde_json::from_str(&format!("\"{inside}\"")).expect("a text")
                };
                found.push(PythonToken::Text(text));
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::from(c);
                while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || "_.".contains(*c)) {
                    name.push(c);
                }
                found.push(PythonToken::Name(name));
            }
            c if c.is_ascii_digit() => {
                let mut number = String::from(c);
                while let Some(c) = rest.next_if(|c| {
                    c.is_ascii_digit() || ".e".contains(*c) || "+-".contains(*c) && number.ends_with('e')
                }) {
                    number.push(c);
                }
                found.push(PythonToken::Number(number));
            }
            c => found.push(PythonToken::Sign(c)),
        }
    }
    found
}

struct PythonReader {
    tokens: Vec<PythonToken>,
    at: usize,
    module: PythonModule,
}

impl PythonReader {
    fn next(&mut self) -> PythonToken {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned().unwrap_or_else(|| panic!("the module ends within a statement"))
    }

    fn takes(&mut self, token: &PythonToken) -> bool {
        let is_next = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn takes_sign(&mut self, sign: char) -> bool {
        self.takes(&PythonToken::Sign(sign))
    }

    fn takes_word(&mut self, word: &str) -> bool {
        self.takes(&PythonToken::Name(word.into()))
    }

    #[track_caller]
    fn expect(&mut self, sign: char) {
        assert!(
            self.takes_sign(sign),
            "`{sign}` before {:?}",
            &self.tokens[self.at..(self.at + 5).min(self.tokens.len())]
        );
    }

    fn name(&mut self) -> String {
        match self.next() {
            PythonToken::Name(name) => name,
            other => panic!("{other:?} is no name"),
        }
    }

    fn set(&mut self, name: String, value: Value) {
        assert!(self.module.values.insert(name.clone(), value).is_none(), "{name} is set twice");
    }

    fn statement(&mut self) {
        if self.takes_word("from") {
            let origin = self.name();
            assert!(self.takes_word("import"), "something is imported from {origin}");
            let in_parentheses = self.takes_sign('(');
            loop {
                let name = self.name();
                self.module.imports.insert(name, origin.clone());
                if !self.takes_sign(',') || in_parentheses && self.takes_sign(')') {
                    break;
                }
            }
        } else if self.takes_word("import") {
            let origin = self.name();
            let name = if self.takes_word("as") { self.name() } else { origin.clone() };
            self.module.imports.insert(name, origin);
        } else if self.takes_word("def") {
            let name = self.name();
            for sign in ['(', ')'] {
                self.expect(sign);
            }
            if self.takes_sign('-') {
                self.expect('>');
                self.name();
            }
            self.expect(':');
            assert!(self.takes_word("return"), "{name} returns a value");
            let value = self.expression();
            self.set(name, value);
        } else if self.takes_word("for") {
            let name = self.name();
            assert!(self.takes_word("in"), "a loop over something");
            let mut body = Map::from_iter([("in".into(), self.expression())]);
            self.expect(':');
            body.extend(self.assignment());
            self.set(format!("for-{name}"), Value::Object(body));
        } else {
            for (name, value) in self.assignment() {
                self.set(name, value);
            }
        }
    }

    fn assignment(&mut self) -> Vec<(String, Value)> {
        let mut names = Vec::new();
        loop {
            let name = self.name();
            names.push(if self.takes_sign('[') { self.subscript(&name) } else { name });
            if !self.takes_sign(',') {
                break;
            }
        }
        self.expect('=');
        let mut values = Vec::new();
        for name in names {
            if !values.is_empty() {
                self.expect(',');
            }
            values.push((name, self.expression()));
        }
        values
    }

    fn subscript(&mut self, name: &str) -> String {
        let key = self.expression();
        self.expect(']');
        format!("{name}[{}]", key.as_str().expect("a text as key"))
    }

    fn expression(&mut self) -> Value {
        match self.next() {
            PythonToken::Text(text) => text.into(),
            PythonToken::Number(number) => {
                serde_json::from_str(&number).unwrap_or_else(|_| panic!("{number} is no number"))
            }
            PythonToken::Sign('[') => self.items(']'),
            PythonToken::Sign('(') => self.items(')'),
            PythonToken::Sign('{') => self.dictionary(),
            PythonToken::Sign(sign) => {
                panic!("no expression begins with `{sign}`: {:?}", &self.tokens[self.at..])
            }
            PythonToken::Name(name) => match name.as_str() {
                "None" => Value::Null,
                "True" => true.into(),
                "False" => false.into(),
                "lambda" => {
                    let name = self.name();
                    self.expect(':');
                    Value::Object(Map::from_iter([(format!("lambda-{name}"), self.expression())]))
                }
                // Any other name, with what follows it.
                _ => self.named(name),
            },
        }
    }

    /// Returns a name, with what is called or looked up with it.
    fn named(&mut self, mut name: String) -> Value {
        if self.takes_sign('[') {
            return self.subscript(&name).into();
        }
        while self.takes_sign('(') {
            let object = self.arguments(&name);
            if !self.takes_sign('.') {
                return object;
            }
            name = format!("{name}().{}", self.name());
        }
        match self.module.values.get(&name) {
            Some(Value::Object(_)) | None => name.into(),
            Some(Value::Array(items)) if items.iter().any(Value::is_object) => name.into(),
            Some(value) => value.clone(),
        }
    }

    fn arguments(&mut self, name: &str) -> Value {
        let (mut object, mut keywords) = (Map::new(), Vec::new());
        while !self.takes_sign(')') {
            let is_keyword = self.tokens.get(self.at + 1) == Some(&PythonToken::Sign('='));
            let key = if is_keyword {
                let key = self.name();
                self.expect('=');
                keywords.push(key.clone());
                key
            } else {
                object.len().to_string()
            };
            let value = self.expression();
            assert!(object.insert(key.clone(), value).is_none(), "{name} takes `{key}` twice");
            if !self.takes_sign(',') {
                self.expect(')');
                break;
            }
        }
        self.module.calls.push((name.into(), keywords));
        object.insert(CALLED.into(), name.into());
        Value::Object(object)
    }

    /// Returns the items up to `end`, or those of a comprehension.
    fn items(&mut self, end: char) -> Value {
        let mut items = Vec::new();
        while !self.takes_sign(end) {
            items.push(self.expression());
            if let Some(range) = self.comprehension() {
                self.expect(end);
                let each = items.pop().expect("it was just read");
                return Value::Object(Map::from_iter([("each".into(), each), ("in".into(), range)]));
            }
            if !self.takes_sign(',') {
                self.expect(end);
                break;
            }
        }
        Value::Array(items)
    }

    fn dictionary(&mut self) -> Value {
        let mut object = Map::new();
        while !self.takes_sign('}') {
            let key = self.expression();
            self.expect(':');
            let value = self.expression();
            if let Some(range) = self.comprehension() {
                self.expect('}');
                return Value::Object(Map::from_iter([("each".into(), value), ("in".into(), range)]));
            }
            object.insert(key.as_str().expect("a text as key").into(), value);
            if !self.takes_sign(',') {
                self.expect('}');
                break;
            }
        }
        Value::Object(object)
    }

    fn comprehension(&mut self) -> Option<Value> {
        self.takes_word("for").then(|| {
            self.name();
            assert!(self.takes_word("in"), "a comprehension over something");
            self.expression()
        })
    }
}
