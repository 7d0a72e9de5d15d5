//! Names and comments stay plain: one name for one type, doc comments that say what a thing is, and sentences that say who.

use dtrain_tests::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The folders that are counted.
const CRATES: [&str; 6] = ["recipes", "protocol", "planner", "runner", "worker", "cli"];

/// Names that several types may have anywhere: associated types, and names that are always written after their module.
const COMMON: [&str; 3] = ["Error", "Kind", "State"];

/// Most names of several types. Today they are associated types such as `Output`.
const SHARED_NAMES: usize = 20;

/// Doc comments that begin with a question word, in thousandths of all.
const QUESTIONS: usize = 20;

/// Most comments about an unnamed person.
const UNNAMED_PERSONS: usize = 20;

/// A source file: its path below the root, and its text.
fn sources() -> Vec<(String, String)> {
    let files = CRATES.iter().flat_map(|name| super::files(&root().join(name).join("src"), &["rs"]));
    let with_text = files.map(|file| {
        let name = file.strip_prefix(root()).expect("inside").display().to_string();
        (name, fs::read_to_string(&file).expect("sources are UTF-8"))
    });
    with_text.collect()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests") || name.ends_with("tests.rs")
}

/// The type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) => {
            rest.strip_prefix('(').map_or(rest, |inside| inside.split_once(')').map_or("", |(_, rest)| rest))
        }
        None => line,
    };
    let mut words = line.split_whitespace();
    if !["struct", "enum", "trait", "type", "union"].contains(&words.next()?) {
        return None;
    }
    let name = words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name)
}

#[test]
fn a_type_has_a_name_of_its_own() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| !is_test(file)) {
        for name in text.lines().filter_map(declared) {
            places.entry(name.to_owned()).or_default().insert(file.clone());
        }
    }
    assert!(places.len() > 1000, "{} types were found: did the sources move?", places.len());
    let shared: Vec<_> =
        places.iter().filter(|(name, files)| files.len() > 1 && !COMMON.contains(&name.as_str())).collect();
    assert!(shared.len() <= SHARED_NAMES, "{} names are those of several types: {shared:#?}", shared.len());
}

/// The comment of a line, `None` where the line is code.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//")
}

/// The text of a line of documentation.
fn documentation(line: &str) -> Option<&str> {
    comment(line)?.strip_prefix(['/', '!'])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[test]
fn documentation_says_what_a_thing_is() {
    let (mut blocks, mut questions) = (0, Vec::new());
    for (file, text) in sources() {
        let mut was = false;
        for (number, line) in text.lines().enumerate() {
            let found = documentation(line);
            if let Some(text) = found.filter(|_| !was) {
                blocks += 1;
                let first = words(text).next().unwrap_or_default();
                if ["What", "How", "Whether", "Who", "Why"].contains(&first) {
                    questions.push(format!("{file}:{}:{text}", number + 1));
                }
            }
            was = found.is_some();
        }
    }
    assert!(blocks > 10_000, "{blocks} blocks were found: did the sources move?");
    let why = "begin with a question word; write what the thing is or does";
    assert!(
        questions.len() * 1000 <= QUESTIONS * blocks,
        "{} of {blocks} {why}: {questions:#?}",
        questions.len()
    );
}

#[test]
fn comments_say_who() {
    let persons = ["nobody", "whoever", "somebody", "someone", "anybody"];
    let mut found = Vec::new();
    for (file, text) in sources() {
        let lines = text.lines().enumerate().filter(|(_, line)| {
            comment(line).is_some_and(|text| words(&text.to_lowercase()).any(|word| persons.contains(&word)))
        });
        found.extend(lines.map(|(number, line)| format!("{file}:{}: {}", number + 1, line.trim())));
    }
    assert!(found.len() <= UNNAMED_PERSONS, "say who instead: {found:#?}");
}

#[test]
fn commands_are_named_by_lib_alone() {
    let is_outside = |file: &str| {
        file.starts_with("cli/src/")
            && file != "cli/src/lib.rs"
            && !file.starts_with("cli/src/commands/")
            && !is_test(file)
    };
    let outside =
        sources().into_iter().filter(|(file, text)| is_outside(file) && text.contains("commands::"));
    let found: Vec<_> = outside.map(|(file, _)| file).collect();
    assert!(found.is_empty(), "move what they share below the commands: {found:#?}");
}

#[test]
fn declarations_are_recognized() {
    for (line, name) in [
        ("pub struct Plan {", Some("Plan")),
        ("    pub(crate) enum Kind<T> {", Some("Kind")),
        ("type Output = f64;", Some("Output")),
        ("pub(in crate::a) trait Ops: Send {", Some("Ops")),
        ("let structure = 1;", None),
        ("/// struct Plan", None),
        ("pub fn struct_of() {}", None),
    ] {
        assert_eq!(declared(line), name, "{line}");
    }
}
