//! The library of built-in recipes.

use crate::source::{ConfigLayer, Source};

macro_rules! library {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../library/", $name, ".toml")))),*]
    };
}

const RECIPES: &[(&str, &str)] =
    library!["char-gpt", "gpt2-124m", "llama-1b", "mnist-cnn", "tabular-mlp", "tiny-llama"];

/// Returns the names of the built-in recipes, sorted; `extends` calls them `library/NAME`.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}

/// Returns the built-in recipe with this name (without `library/`). Its data paths are relative to the folder
/// of the recipe that extends it.
pub fn builtin_recipe(name: &str) -> Option<Source> {
    let (name, text) = RECIPES.iter().find(|(known, _)| *known == name)?;
    Some(Source::new(format!("library/{name}"), ConfigLayer::Extended, *text))
}
