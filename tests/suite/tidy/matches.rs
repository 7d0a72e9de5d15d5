//! A `match` on a text names every text that it knows, or says why any other is treated as it is.
//!
//! The compiler does not say what a `match` on a text forgets: where its last arm is `_ => Optimizer::Adamw`, a new optimizer
//! trains AdamW. So the texts of a recipe are enums, and the few matches that are left have a comment on the arm for the rest.

use dtrain_tests::root;
use std::fs;

/// Sources that read the texts of a recipe.
const READERS: [&str; 5] = [
    "recipes/src",
    "planner/src/emit",
    "planner/src/engine",
    "worker/src/train_step.rs",
    "worker/src/train_step",
];

#[test]
fn a_match_on_a_text_says_why_any_other_text_is_treated_as_it_is() {
    let (mut silent, mut matches) = (Vec::new(), 0);
    for reader in READERS.map(|reader| root().join(reader)) {
        for file in if reader.is_dir() { super::files(&reader, &["rs"]) } else { vec![reader] } {
            let source = fs::read_to_string(&file).expect("sources are UTF-8");
            let name = file.strip_prefix(root()).expect("inside").display().to_string();
            silent.extend(silent_arms(&source).into_iter().map(|line| format!("{name}:{line}")));
            matches += arms(&masked(&source)).iter().filter(|arms| is_on_text(arms)).count();
        }
    }
    assert!(matches > 15, "{matches} matches on texts were found: did the sources move?");
    let why = "these arms take any text; match on an enum, or say in a comment why they may";
    assert!(silent.is_empty(), "{why}: {silent:#?}");
}

#[test]
fn an_arm_for_any_text_is_found_wherever_it_hides() {
    let silent = |arms: &str| silent_arms(&format!("fn f() {{\nmatch x.of(|y| {{ y }}) {{\n{arms}\n}}\n}}"));
    for (arms, line) in [
        ("\"a\" => 1,\n_ => 2,", 4),
        ("\"a\" | \"b\" => 1,\nother => g(other),", 4),
        ("Some(\"a\") => 1,\nSome(_) => 2,\nNone => 3,", 4),
        ("r#\"a \\\" b\"# => { 1 }\n_ => 2,", 4),
        ("(Some(\"a\"), true) => 1,\n(any, false) => 2,", 4),
        ("[\"a\", _] => 1,\n\n[_, 'b'] => match y { \"c\" => 1, },", 5),
        ("1 => match y {\n\"c\" => f::<A, B>(|a, b| a),\n// It is \"d\".\n\n_ => 2 },\n_ => 3,", 7),
        ("\"a // b\" if c => X { d: 1 },\n\"https://b\" | _ => 2,", 4),
        ("\"a\" => 1,\n#[expect(x, reason = \"y\")]\n_ => 2,", 5),
    ] {
        assert_eq!(silent(arms), [line], "{arms}");
    }
    for arms in [
        "\"a\" => 1,\n// Every other is refused.\n_ => 2,",
        "\"a\" => 1,\n_ => 2, // Every other is refused.",
        "Some(A) => \"a\",\n_ => \"b\",",
        "'\"' => 1,\n'a' if x == \"y\" => 2,\n_ => 3, /* \" */",
        "\"a\" => 1,\nNone | Some(A::B) => 2,",
        "(\"a\", _) => 1,\n(\"b\", [first, ..]) => 2,",
        "\"a\" => 1,\n_ if c => 3,\n// The rest.\n_ => 2,",
    ] {
        assert_eq!(silent(arms), [0; 0], "{arms}");
    }
}

/// An arm of a `match`: its pattern without guard, whether it has one, and the line it begins on.
struct Arm {
    pattern: String,
    has_guard: bool,
    line: usize,
}

/// The lines of arms that take any text, in a `match` of which another arm takes one, and have no comment.
fn silent_arms(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let has_comment = |line: usize| {
        let above = line.checked_sub(2).map_or("", |above| lines[above].trim_start());
        above.starts_with("//") || lines[line - 1].contains(" // ")
    };
    let all = arms(&masked(source));
    let on_text = all.iter().filter(|arms| is_on_text(arms)).flatten();
    let open = on_text.filter(|arm| !arm.has_guard && takes_rest(&arm.pattern));
    open.map(|arm| arm.line).filter(|line| !has_comment(*line)).collect()
}

fn is_on_text(arms: &[Arm]) -> bool {
    arms.iter().any(|arm| arm.pattern.contains('"'))
}

/// Whether one of the alternatives of a pattern names no text, and has a place that takes anything.
fn takes_rest(pattern: &str) -> bool {
    // Variants and constants begin with a capital.
    let is_binding = |path: &str| {
        let name = path.rsplit("::").next().unwrap_or(path);
        name.starts_with(|first: char| first.is_lowercase() || first == '_')
            && !matches!(name, "true" | "false" | "ref" | "mut")
    };
    let paths = |text: &str| {
        text.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).any(is_binding) || text.contains("..")
    };
    pattern.split('|').any(|one| !one.contains('"') && paths(one))
}

/// The arms of each `match` of a masked source.
fn arms(source: &[char]) -> Vec<Vec<Arm>> {
    let is_part = |at: usize| source.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let is_match = |at: &usize| {
        source[*at..].starts_with(&['m', 'a', 't', 'c', 'h'])
            && !is_part(*at + 5)
            && (*at == 0 || !is_part(*at - 1))
    };
    (0..source.len()).filter(is_match).map(|at| arms_of(source, at)).collect()
}

/// The arms of the `match` that begins at a place.
fn arms_of(source: &[char], begin: usize) -> Vec<Arm> {
    let (mut arms, mut depth, mut after) = (Vec::new(), 0, None);
    for at in begin..source.len() {
        match source[at] {
            '{' if depth == 0 && after.is_none() => after = Some(at + 1),
            '(' | '[' | '{' => depth += 1,
            '}' if depth == 0 => break,
            ')' | ']' => depth -= 1,
            // A body in braces ends without a comma.
            '}' => {
                depth -= 1;
                after = if depth == 0 { after.map(|_| at + 1) } else { after };
            }
            ',' if depth == 0 => after = after.map(|_| at + 1),
            '=' if depth == 0 && source.get(at + 1) == Some(&'>') => {
                arms.extend(after.map(|after| arm(source, after, at)));
            }
            _ => {}
        }
    }
    arms
}

/// The arm whose pattern lies between two places.
fn arm(source: &[char], begin: usize, end: usize) -> Arm {
    let text: String = source[begin..end].iter().collect();
    let mut pattern = text.trim_start();
    while let Some((_, rest)) = pattern.strip_prefix("#[").and_then(|rest| rest.split_once(']')) {
        pattern = rest.trim_start();
    }
    let skipped = &text[..text.len() - pattern.len()];
    let before = source[..begin].iter().copied().chain(skipped.chars()).filter(|c| *c == '\n').count();
    let (pattern, has_guard) =
        pattern.split_once(" if ").map_or((pattern, false), |(pattern, _)| (pattern, true));
    Arm { pattern: pattern.trim().to_owned(), has_guard, line: before + 1 }
}

/// A source with blanks for comments and the letters of texts, and zeros for letters in quotes.
fn masked(source: &str) -> Vec<char> {
    let text: Vec<char> = source.chars().collect();
    let mut out = text.clone();
    let mut at = 0;
    while at < text.len() {
        let (end, instead) = match text[at..] {
            ['/', '/', ..] => (until(&text, at, "\n"), ' '),
            ['/', '*', ..] => (until(&text, at + 2, "*/") + 2, ' '),
            ['"', ..] => {
                let hashes = text[..at].iter().rev().take_while(|c| **c == '#').count();
                let is_raw = at > hashes && text[at - hashes - 1] == 'r';
                let end = if is_raw {
                    until(&text, at + 1, &format!("\"{}", "#".repeat(hashes)))
                } else {
                    end_of_text(&text, at + 1)
                };
                (out[at], at) = ('"', at + 1);
                out[at..end.min(text.len())].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = ' ');
                at = end + 1;
                continue;
            }
            ['\'', '\\', ..] => (until(&text, at + 3, "'") + 1, '0'),
            ['\'', _, '\'', ..] => (at + 3, '0'),
            _ => {
                at += 1;
                continue;
            }
        };
        let end = end.min(text.len());
        out[at..end].iter_mut().filter(|c| **c != '\n').for_each(|c| *c = instead);
        at = end;
    }
    out
}

/// The place of the first `wanted` from a place on, or the end.
fn until(text: &[char], begin: usize, wanted: &str) -> usize {
    let wanted: Vec<char> = wanted.chars().collect();
    (begin..text.len()).find(|at| text[*at..].starts_with(&wanted)).unwrap_or(text.len())
}

/// The place of the quote that ends a text.
fn end_of_text(text: &[char], begin: usize) -> usize {
    let mut at = begin;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at
}
