//! Words of the language: each means something, and no two mean the same.

use dtrain_recipes::document::Document;
use dtrain_recipes::keys::{Key, Kind, ValueType, keys};
use dtrain_recipes::keyword_enum::Keywords;
use dtrain_recipes::source::{ConfigLayer, Source};
use dtrain_recipes::{CheckContext, CheckedRecipe, check};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The words that a shape takes, apart from "auto" and "none" of any shape.
fn words(shape: ValueType) -> Option<Keywords> {
    match shape {
        ValueType::OneOf(words) => Some(words),
        ValueType::OrAuto(inner) | ValueType::OrNone(inner) | ValueType::Choice(inner) => words(*inner),
        _ => None,
    }
}

fn keys_with_words() -> Vec<(&'static Key, Keywords)> {
    let found: Vec<_> = keys().iter().filter_map(|key| Some((key, words(key.shape)?))).collect();
    assert!(found.len() > 20, "{} keys have words", found.len());
    found
}

#[test]
fn every_word_of_the_table_of_keys_has_a_value_of_its_own() {
    for (key, words) in keys_with_words() {
        let place = |word: &&str| words.value(word).unwrap_or_else(|| panic!("{}: {word}", key.path));
        let values: BTreeSet<usize> = words.names().iter().map(place).collect();
        assert_eq!(values.len(), words.names().len(), "{}", key.path);
        assert_eq!(words.value("no such word"), None, "{}", key.path);
    }
}

#[test]
fn every_word_of_a_key_makes_another_recipe() {
    for (key, words) in keys_with_words() {
        let mut recipes = BTreeSet::new();
        for word in words.names() {
            let checked = with(key, word);
            let found = checked.resolved.iter().find(|value| value.path == key.path);
            let found = found.map(|value| value.value.as_str());
            assert_eq!(found, Some(format!("{word:?}").as_str()), "{}", key.path);
            let recipe = serde_json::to_string(&checked.recipe).expect("a recipe is JSON");
            assert!(recipes.insert(recipe), "{} = {word:?} is as another word", key.path);
        }
    }
}

/// A recipe in which a key has a word, and whatever that word asks for.
fn with(key: &Key, word: &str) -> CheckedRecipe {
    let quoted = format!("{word:?}");
    let (kind, more): (Kind, &[(&str, &str)]) = match (key.path, word) {
        ("model.kind", kind) => (Kind::from_name(kind).expect("a kind"), &[]),
        ("model.lora.layers" | "model.lora.base", _) => (Kind::Decoder, &[("model.lora.rank", "8")]),
        ("model.rotary_scaling.kind", _) => {
            (Kind::Decoder, &[("model.positions", "\"rotary\""), ("model.rotary_scaling.factor", "2.0")])
        }
        ("data.format", "chat") => {
            (Kind::Decoder, &[("data.tokenizer", "\"t.json\""), ("model.vocab", "256")])
        }
        ("data.loss_on", _) => (
            Kind::Decoder,
            &[("data.format", "\"chat\""), ("data.tokenizer", "\"t.json\""), ("model.vocab", "256")],
        ),
        ("data.format", "tokens") => (Kind::Decoder, &[("model.vocab", "256")]),
        ("data.format", "csv") => (Kind::Mlp, &[]),
        ("data.format", "idx") => (Kind::Cnn, &[("data.labels", "\"labels\"")]),
        ("data.format", "images") => (Kind::Cnn, &[]),
        ("objective.goal", _) => (Kind::Command, &[("objective.metric", "\"f1\"")]),
        ("train.fp8_recipe", _) => (Kind::Decoder, &[("train.precision", "\"fp8\"")]),
        ("tune.pruner", "threshold") => (Kind::Decoder, &[("tune.threshold", "3.0")]),
        ("cluster.launcher", "ssh") => (Kind::Decoder, &[("cluster.hosts", "[\"a\"]")]),
        ("cluster.transport", _) => {
            (Kind::Decoder, &[("cluster.launcher", "\"ssh\""), ("cluster.hosts", "[\"a\"]")])
        }
        // Other words need nothing beside them.
        _ => (key.kinds[0], &[]),
    };
    let mut document =
        Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, base(kind))).expect("TOML");
    for (path, value) in more.iter().copied().chain([(key.path, quoted.as_str())]) {
        let said = Document::from_override(ConfigLayer::Assignment, "--set", path, value).expect("a key");
        document = said.layer_over(document);
    }
    let context = CheckContext { folder: PathBuf::new(), name: "words".to_owned() };
    check(&document, &context).unwrap_or_else(|problems| {
        panic!("{} = {word:?}: {}", key.path, dtrain_recipes::render_all(&problems, false))
    })
}

fn base(kind: Kind) -> &'static str {
    match kind {
        Kind::Decoder => {
            "[model]\nkind = 'decoder'\nlayers = 4\nhidden = 64\nheads = 4\ncontext = 64\n\
             [data]\ntrain = 'a.txt'\n[objective]\nstop = { steps = 10 }"
        }
        Kind::Mlp => {
            "[model]\nkind = 'mlp'\ninputs = 4\nhidden = [8]\nclasses = 3\n\
             [data]\ntrain = 'a.csv'\ntarget = 'class'\n[objective]\nstop = { steps = 10 }"
        }
        Kind::Cnn => {
            "[model]\nkind = 'cnn'\nchannels = 1\nheight = 8\nwidth = 8\nstages = [8]\nclasses = 3\n\
             [data]\ntrain = '*/*.png'\n[objective]\nstop = { steps = 10 }"
        }
        Kind::Custom => {
            "[model]\nkind = 'custom'\nnetwork = 'mine'\ncontext = 64\n\
             [data]\ntrain = 'a.txt'\n[objective]\nstop = { steps = 10 }"
        }
        Kind::Command => "[model]\nkind = 'command'\nargv = ['true']",
    }
}
