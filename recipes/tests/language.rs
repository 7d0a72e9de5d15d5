//! The language as a user meets it: samples that hold, samples that do not, and what is said about them.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, Problem, Source, check, render_all, resolve_extends,
};
use std::path::Path;

fn read(name: &str, text: &str) -> Result<CheckedRecipe, Vec<Problem>> {
    let resolve = |wanted: &str, _: &Source| match wanted {
        "base.toml" => Ok(Source::file(Path::new("shared/base.toml"), ConfigLayer::Extended, BASE)),
        "loop.toml" => Ok(Source::new("loop.toml", ConfigLayer::Extended, "extends = \"loop.toml\"")),
        other => Err(format!("no recipe {other:?}")),
    };
    let document = Document::parse(&Source::file(Path::new(name), ConfigLayer::Recipe, text))?;
    check(&resolve_extends(document, &resolve)?, &CheckContext::of_file(Path::new(name)))
}

const BASE: &str = "[model]\nkind = \"decoder\"\nlayers = 2\nhidden = 64\nheads = 4\ncontext = 32\n\
[data]\ntrain = \"corpus/*.txt\"\n[objective]\nstop = { steps = 10 }\n";

fn resolved(checked: &CheckedRecipe) -> String {
    let line = |value: &dtrain_recipes::ResolvedValue| {
        format!("{} = {}  # {}\n", value.path, value.value, value.origin)
    };
    checked.resolved.iter().map(line).collect()
}

/// The samples of a folder, with their texts.
fn samples(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut samples: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        })
        .collect();
    samples.sort();
    samples
}

/// The recipe that its settings make again.
fn from_settings(checked: &CheckedRecipe) -> CheckedRecipe {
    let context = CheckContext { folder: "/elsewhere".into(), name: checked.recipe.name.clone() };
    let document = Document::from_settings("settings", &checked.settings());
    document
        .and_then(|document| check(&document, &context))
        .unwrap_or_else(|problems| panic!("{:?}\n{}", checked.settings(), render_all(&problems, false)))
}

#[test]
fn every_valid_sample_resolves() {
    let samples = samples("valid");
    assert!(samples.len() >= 6, "found {}", samples.len());
    for (name, text) in samples {
        match read(&format!("{name}.toml"), &text) {
            Ok(checked) => {
                insta::assert_snapshot!(format!("valid_{name}"), resolved(&checked));
                assert_eq!(from_settings(&checked).recipe, checked.recipe, "{name}");
            }
            Err(problems) => panic!("{name}:\n{}", render_all(&problems, false)),
        }
    }
}

#[test]
fn every_invalid_sample_is_explained() {
    let samples = samples("invalid");
    assert!(samples.len() >= 60, "found {}", samples.len());
    for (name, text) in samples {
        match read(&format!("{name}.toml"), &text) {
            Ok(checked) => panic!("{name} was accepted: {:?}", checked.recipe),
            Err(problems) => insta::assert_snapshot!(format!("invalid_{name}"), render_all(&problems, false)),
        }
    }
}

#[test]
fn every_library_recipe_holds() {
    for name in dtrain_recipes::library::names() {
        let source = dtrain_recipes::library::builtin_recipe(name).unwrap();
        let checked = read(&format!("{name}.toml"), &source.text);
        let checked = checked.unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)));
        assert_eq!(from_settings(&checked).recipe, checked.recipe, "{name}");
        insta::assert_snapshot!(
            format!("library_{name}"),
            format!("parameters: {}\n{}", checked.recipe.model.parameters(), resolved(&checked))
        );
    }
}
