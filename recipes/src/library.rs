//! Recipes that come with dtrain.

use crate::source::{ConfigLayer, Source};

macro_rules! library {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../library/", $name, ".toml")))),*]
    };
}

const RECIPES: &[(&str, &str)] =
    library!["char-gpt", "gpt2-124m", "llama-1b", "mnist-cnn", "tabular-mlp", "tiny-llama"];

/// The names, in order; `library/NAME` is what `extends` calls them.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}

/// The recipe with this name (without `library/`). Data paths in it start from the folder of the recipe that
/// extends it.
pub fn builtin_recipe(name: &str) -> Option<Source> {
    let (name, text) = RECIPES.iter().find(|(known, _)| *known == name)?;
    Some(Source::new(format!("library/{name}"), ConfigLayer::Extended, *text))
}
