//! Layers over layers, and what is left of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::recipe_differences::differences;
use dtrain_recipes::recipe_digest::{digest, json};
use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, Source, check, library, render_all, resolve_extends,
};
use std::path::Path;

const RECIPE: &str = "extends = \"library/tiny-llama\"\n[train]\nseed = 3\noptimizer = \"sgd\"\n";

fn document(text: &str) -> Document {
    let nothing = |name: &str, _: &Source| Err(format!("no recipe {name:?}"));
    let document =
        Document::parse(&Source::file(Path::new("here/r.toml"), ConfigLayer::Recipe, text)).unwrap();
    resolve_extends(document, &nothing).unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)))
}

fn set(key: &str, value: &str) -> Document {
    Document::from_override(ConfigLayer::Assignment, "--set", key, value).unwrap()
}

fn checked(document: &Document) -> CheckedRecipe {
    let context = CheckContext::of_file(Path::new("here/r.toml"));
    check(document, &context).unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)))
}

fn value(checked: &CheckedRecipe, path: &str) -> (String, String) {
    let found = checked.resolved.iter().find(|value| value.path == path).unwrap();
    (found.value.clone(), found.origin.to_string())
}

fn pair(value: &str, origin: &str) -> (String, String) {
    (value.to_owned(), origin.to_owned())
}

#[test]
fn the_later_layer_wins_and_says_who_it_is() {
    let settings = Source::new("settings.toml", ConfigLayer::Settings, "[train]\nseed = 9\nclip = 0.5\n");
    let variable = "environment variable DTRAIN_MODEL__LAYERS";
    let environment =
        Document::from_override(ConfigLayer::Environment, variable, "model.layers", "6").unwrap();
    let all = set("train.precision", "bf16")
        .layer_over(environment)
        .layer_over(document(RECIPE))
        .layer_over(Document::parse(&settings).unwrap());
    let checked = checked(&all);
    assert_eq!(value(&checked, "train.precision"), pair("\"bf16\"", "--set"));
    assert_eq!(value(&checked, "model.layers"), pair("6", variable));
    assert_eq!(value(&checked, "train.seed"), pair("3", "here/r.toml:3:8"));
    assert_eq!(value(&checked, "train.clip"), pair("0.5", "settings.toml:3:8"));
    assert_eq!(value(&checked, "model.heads"), pair("8", "library/tiny-llama:10:9"));
    assert_eq!(value(&checked, "train.schedule"), pair("\"cosine\"", "default"));
    assert_eq!(checked.recipe.name, "r", "the name of what is extended is not inherited");
}

#[test]
fn a_section_adds_and_an_inline_table_replaces() {
    let limit = |stop: &str| {
        let text = format!("extends = \"library/tiny-llama\"\n{stop}");
        checked(&document(&text)).recipe.objective.stop
    };
    let replaced = limit("[objective]\nstop = { steps = 5 }\n");
    assert_eq!((replaced.steps, replaced.tokens, replaced.time), (Some(5), None, None));
    let added = limit("[objective.stop]\nsteps = 5\n");
    assert_eq!((added.steps, added.tokens.map(|tokens| tokens.0)), (Some(5), Some(20_000_000)));
}

#[test]
fn leaves_rebuild_the_document() {
    let document = set("objective.stop.steps", "7").layer_over(document(RECIPE));
    let leaves = document.leaves();
    let paths: Vec<String> = leaves
        .iter()
        .map(|leaf| leaf.path.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join("."))
        .collect();
    assert!(paths.contains(&"train.seed".to_owned()), "{paths:?}");
    let (a, b) = (checked(&document), checked(&Document::from_leaves(leaves)));
    assert_eq!(a.recipe, b.recipe);
    let origins = |checked: &CheckedRecipe| {
        checked.resolved.iter().map(|value| value.origin.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(origins(&a), origins(&b));
}

#[test]
fn an_assignment_is_text_where_it_is_not_toml() {
    let recipe = document(RECIPE);
    let with = |key: &str, text: &str| checked(&set(key, text).layer_over(recipe.clone())).recipe;
    assert_eq!(with("name", "wide").name, "wide");
    assert_eq!(with("name", "2026").name, "2026");
    assert_eq!(with("data.train", "books/*.txt").data.unwrap().train, ["books/*.txt"]);
    assert_eq!(with("objective.stop.time", "1h 30min").objective.stop.time.unwrap().0, 5400.0);
    assert_eq!(with("train.seed", "0x10").train.seed, 16);
}

#[test]
fn a_wrong_assignment_is_drawn_without_a_line() {
    let all = set("train.sead", "3").layer_over(set("train.batch", "many")).layer_over(document(RECIPE));
    let problems = check(&all, &CheckContext::of_file(Path::new("here/r.toml"))).unwrap_err();
    insta::assert_snapshot!(render_all(&problems, false));
}

#[test]
fn a_missing_file_is_reported_where_it_is_named() {
    let checked =
        checked(&document("extends = \"library/tiny-llama\"\n[data]\ntrain = [\"a.txt\", \"b/*.txt\"]\n"));
    let problems: Vec<_> = checked.files.iter().map(|file| file.missing(Path::new("here"), None)).collect();
    insta::assert_snapshot!(render_all(&problems, false));
}

#[test]
fn equal_recipes_have_one_digest_however_they_are_written() {
    let a = checked(&document("name = \"a\"\nextends = \"library/tiny-llama\"\n")).recipe;
    let reordered = "[train]\nbatch = \"auto\"\n[objective.stop]\ntime = \"1800 s\"\ntokens = 20_000_000\n";
    let b =
        checked(&document(&format!("name = \"a\"\nextends = \"library/tiny-llama\"\n{reordered}"))).recipe;
    assert_eq!(digest(&a), digest(&b));
    insta::assert_snapshot!(json(&a));
}

#[test]
fn differences_are_flat() {
    let recipe = document(RECIPE);
    let a = checked(&recipe).recipe;
    let b = checked(
        &set("train.learning_rate", "{ log = [1e-4, 1e-2] }")
            .layer_over(set("model.layers", "5"))
            .layer_over(recipe),
    )
    .recipe;
    let lines: Vec<String> =
        differences(&a, &b).iter().map(|d| format!("{}: {} -> {}", d.path, d.before, d.after)).collect();
    assert_eq!(
        lines,
        [
            "model.layers: 4 -> 5",
            "train.learning_rate: auto -> —",
            "train.learning_rate.log.high: — -> 0.01",
            "train.learning_rate.log.low: — -> 0.0001",
        ]
    );
    assert!(differences(&a, &a).is_empty());
}

#[test]
fn the_library_has_the_published_numbers_of_parameters() {
    let parameters = |name: &str| {
        let source = library::builtin_recipe(name).unwrap();
        checked(&Document::parse(&source).unwrap()).recipe.model.parameters()
    };
    // GPT-2 small: 124,439,808 (openai/gpt-2). TinyLlama 1.1B: 1,100,048,384 (its model card).
    assert_eq!(parameters("gpt2-124m"), 124_439_808);
    assert_eq!(parameters("llama-1b"), 1_100_048_384);
}

#[test]
fn data_paths_start_from_the_folder_of_the_recipe_that_names_them() {
    let base = "[model]\nkind = \"decoder\"\nlayers = 2\nhidden = 64\nheads = 4\ncontext = 32\n\
        [data]\ntrain = [\"corpus/*.txt\", \"/absolute.txt\"]\n[objective]\nstop = { steps = 10 }\n";
    let train = |root: &str, named: &str, text: &str| {
        let resolve = |name: &str, from: &Source| {
            let path = from.folder.clone().unwrap_or_default().join(name);
            let text = if name.ends_with("base.toml") { base } else { "extends = \"../shared/base.toml\"\n" };
            Ok(Source::file(&path, ConfigLayer::Extended, text))
        };
        let source =
            Source::file(Path::new(root), ConfigLayer::Recipe, format!("extends = {named:?}\n{text}"));
        let document = resolve_extends(Document::parse(&source).unwrap(), &resolve).unwrap();
        // As the command line has it: the folder absolute, the layers taken apart and put together.
        let document = Document::from_leaves(document.leaves());
        let context = CheckContext { folder: Path::new("/somewhere/x").to_owned(), name: "r".to_owned() };
        check(&document, &context).unwrap().recipe.data.unwrap().train
    };
    assert_eq!(train("x/r.toml", "base.toml", ""), ["corpus/*.txt", "/absolute.txt"]);
    assert_eq!(train("x/r.toml", "../shared/base.toml", ""), ["../shared/corpus/*.txt", "/absolute.txt"]);
    assert_eq!(train("./x/r.toml", "./sub/base.toml", ""), ["sub/corpus/*.txt", "/absolute.txt"]);
    assert_eq!(train("r.toml", "sub/middle.toml", ""), ["sub/../shared/corpus/*.txt", "/absolute.txt"]);
    assert_eq!(train("x/r.toml", "../shared/base.toml", "[data]\ntrain = \"mine.txt\"\n"), ["mine.txt"]);
}
