//! The language as a user meets it: samples that hold, samples that do not, and what is said about them.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

use dtrain_recipes::keys::Kind;
use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, Optimizer, Problem, ResolvedValue, Source, check,
    render_all, resolve_extends,
};
use std::collections::BTreeMap;
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

/// A small recipe of each kind of model, which sets no more than it must.
const SMALL: [(Kind, &str); 5] = [
    (
        Kind::Decoder,
        "model = { kind = \"decoder\", layers = 2, hidden = 64, heads = 4, context = 32 }\n\
        data.train = \"*.txt\"\nobjective.stop.steps = 10\n",
    ),
    (
        Kind::Mlp,
        "model = { kind = \"mlp\", inputs = 4, hidden = [8], classes = 3 }\n\
        data = { train = \"rows.csv\", target = \"class\" }\nobjective.stop.steps = 10\n",
    ),
    (
        Kind::Cnn,
        "model = { kind = \"cnn\", channels = 1, height = 8, width = 8, stages = [4], classes = 3 }\n\
        data = { train = \"images-idx3-ubyte\", labels = \"labels-idx1-ubyte\" }\nobjective.stop.steps = 10\n",
    ),
    (
        Kind::Custom,
        "model = { kind = \"custom\", network = \"mine\", inputs = 4, classes = 3 }\n\
        data = { train = \"rows.csv\", target = \"class\" }\nobjective.stop.steps = 10\n",
    ),
    (Kind::Command, "model = { kind = \"command\", argv = [\"train\"] }\n"),
];

/// The small recipe of a kind, checked.
fn small(kind: Kind) -> CheckedRecipe {
    let (_, text) = SMALL.iter().find(|(of, _)| *of == kind).unwrap();
    read("small.toml", text).unwrap_or_else(|problems| panic!("{}", render_all(&problems, false)))
}

fn line(value: &ResolvedValue) -> String {
    format!("{} = {}  # {}\n", value.path, value.value, value.origin)
}

fn is_default(value: &ResolvedValue) -> bool {
    value.origin.layer() == ConfigLayer::Default
}

/// The values of a recipe that it sets, or whose defaults are not those of the small recipe of the same kind,
/// and the paths of that recipe's defaults that it has no value for.
///
/// Together with the snapshot of the defaults, this is every value. A new key with a default changes that
/// snapshot alone.
fn resolved(checked: &CheckedRecipe) -> String {
    let kind = checked.resolved.iter().find(|value| value.path == "model.kind").unwrap();
    let kind = Kind::ALL.iter().find(|known| format!("{:?}", known.name()) == kind.value).unwrap();
    let small = small(*kind);
    let same = |a: &ResolvedValue| {
        small.resolved.iter().any(|b| is_default(b) && a.path == b.path && a.value == b.value)
    };
    let values = checked.resolved.iter().filter(|value| !is_default(value) || !same(value)).map(line);
    let absent = small
        .resolved
        .iter()
        .filter(|value| is_default(value) && checked.resolved.iter().all(|other| other.path != value.path))
        .map(|value| format!("without {}\n", value.path));
    values.chain(absent).collect()
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
fn the_defaults_of_each_kind_are_as_they_were() {
    let mut kinds: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    for &kind in Kind::ALL {
        for value in small(kind).resolved.into_iter().filter(is_default) {
            kinds.entry((value.path, value.value)).or_default().push(kind.name());
        }
    }
    let line = |((path, value), kinds): (&(String, String), &Vec<&str>)| {
        format!("{path} = {value}  # {}\n", kinds.join(", "))
    };
    insta::assert_snapshot!(kinds.iter().map(line).collect::<String>());
    assert_eq!(small(Kind::Decoder).recipe.train.optimizer, Optimizer::ADAMW);
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
