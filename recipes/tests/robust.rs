//! No text makes the checker panic, and no text takes it long.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::{
    CheckContext, ConfigLayer, Document, Problem, Source, check, library, render_all, resolve_extends,
};
use proptest::prelude::*;
use std::path::Path;

/// Everything a caller does with a recipe's bytes. `Err` is what a user would read.
fn read(bytes: Vec<u8>) -> Result<(), String> {
    let resolve = |name: &str, _: &Source| Err(format!("no recipe {name:?}"));
    let checked = || -> Result<_, Vec<Problem>> {
        let document = Document::parse_bytes(Path::new("r.toml"), ConfigLayer::Recipe, bytes)?;
        let again = Document::from_leaves(document.leaves());
        let context = CheckContext::of_file(Path::new("r.toml"));
        let result = check(&resolve_extends(document, &resolve)?, &context);
        let same = check(&resolve_extends(again, &resolve)?, &context);
        assert_eq!(result.is_ok(), same.is_ok(), "leaves keep everything");
        result
    };
    match checked() {
        Ok(checked) => {
            assert_eq!(dtrain_recipes::recipe_digest::digest(&checked.recipe).len(), 64);
            assert!(checked.recipe.model.sample_tokens() > 0);
            Ok(())
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            Err(render_all(&problems, false))
        }
    }
}

#[test]
fn a_huge_file_is_refused_without_being_read() {
    let text = read(vec![b'#'; (1 << 20) + 1]).unwrap_err();
    assert_eq!(
        text,
        "error: r.toml is too large for a recipe: 1048577 bytes, at most 1048576 are read\n\
         hint: put data into files and list them in `data.train`\n"
    );
}

#[test]
fn bytes_that_are_not_text_are_refused_with_their_place() {
    let text = read(b"name = \"a\"\n# \xff\xfe\n".to_vec()).unwrap_err();
    assert_eq!(
        text,
        "error: r.toml is not UTF-8 text\n  = the first byte that cannot be read is byte 14 (line 2)\n\
         hint: save the file as UTF-8\n"
    );
}

#[test]
fn deep_nesting_is_an_error() {
    for text in [format!("a = {}", "[".repeat(200_000)), format!("a = {}", "{b=".repeat(200_000))] {
        assert!(read(text.into_bytes()).is_err());
    }
    let dotted = format!("{}a = 1", "a.".repeat(50_000));
    assert!(read(dotted.into_bytes()).is_err());
}

#[test]
fn a_file_full_of_wrong_keys_is_explained_in_time() {
    let text: String = (0..20_000).map(|n| format!("key_{n} = 1\n")).collect();
    let explained = read(text.into_bytes()).unwrap_err();
    assert!(explained.contains("unknown key"), "{}", &explained[..200]);
}

#[test]
fn assignments_never_panic() {
    for (key, value) in [
        ("", ""),
        (".", "1"),
        ("train..seed", "1"),
        ("train.seed", ""),
        ("train.seed", "\u{0}"),
        ("a", "[[["),
        ("ü.ß", "é"),
        ("model", "{ kind = \"mlp\" }"),
        ("train.seed", "=1"),
    ] {
        if let Ok(document) = Document::from_override(ConfigLayer::Assignment, "--set", key, value) {
            let problems = check(&document, &CheckContext::of_file(Path::new("r.toml"))).unwrap_err();
            assert!(render_all(&problems, true).contains("error"));
        }
    }
}

fn samples() -> impl Strategy<Value = String> {
    let texts: Vec<String> =
        library::names().map(|name| library::builtin_recipe(name).unwrap().text).collect();
    prop::sample::select(texts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(read(bytes));
    }

    #[test]
    fn random_text_never_panics(text in "\\PC{0,200}") {
        drop(read(text.into_bytes()));
    }

    #[test]
    fn mutated_recipes_never_panic(
        text in samples(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..12, "[-\\[\\]{}=.,\"'#0-9a-z é\n]{0,6}"), 1..6),
    ) {
        let mut characters: Vec<char> = text.chars().collect();
        for (at, removed, inserted) in edits {
            let at = at.index(characters.len().max(1)).min(characters.len());
            let end = (at + removed).min(characters.len());
            characters.splice(at..end, inserted.chars());
        }
        drop(read(characters.into_iter().collect::<String>().into_bytes()));
    }

    #[test]
    fn mutated_values_never_panic(
        text in samples(),
        line in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            "0", "-1", "1", "9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e308", "-0.0", "nan",
            "inf", "true", "\"\"", "\"auto\"", "\"none\"", "\"5%\"", "\"1e18\"", "\"9e18 tokens\"", "[]", "[1]", "[[]]", "{}",
            "{ log = [1, 2] }", "{ choices = [\"a\"] }", "2026-01-01", "\"gpu-[0-9]\"", "1048576", "65536", "4294967296",
        ]),
    ) {
        let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        let at = line.index(lines.len());
        if let Some((key, _)) = lines[at].clone().split_once('=') {
            lines[at] = format!("{key}= {value}");
        }
        drop(read(lines.join("\n").into_bytes()));
    }
}
