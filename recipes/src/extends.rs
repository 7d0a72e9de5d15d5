//! Resolves `extends`: recipes that build on other recipes.

use crate::document::{Document, Value};
use crate::library;
use crate::problem::Problem;
use crate::source::{ConfigLayer, Origin, Source};
use std::path::{Component, Path, PathBuf};

/// Maximum length of a chain of recipes that extend one another.
const DEEPEST: usize = 16;

/// A function that finds the recipe that `extends` names. Its arguments are the name and the source that
/// contains it, to which a relative path is relative. `Err` is the reason why there is no such recipe.
pub type Resolver<'r> = &'r dyn Fn(&str, &Source) -> Result<Source, String>;

/// Lays a document over the recipes that it extends, and removes its `extends` key.
///
/// `library/NAME` is built in; `resolve` finds everything else. Cycles are errors.
pub fn resolve_extends(document: Document, resolve: Resolver<'_>) -> Result<Document, Vec<Problem>> {
    let mut chain: Vec<String> = document.source.iter().map(|source| source.name.clone()).collect();
    let root = document.source.as_ref().and_then(|source| source.folder.as_deref()).map(plain);
    let root = root.unwrap_or_default();
    let mut merged = document;
    while let Some(entry) = merged.remove("extends") {
        let origin = entry.node.origin;
        let Value::Text(name) = &entry.node.value else {
            let problem = Problem::new("`extends` must be the name of a recipe, in quotes").at(&origin);
            return Err(vec![problem.hint("write for example `extends = \"library/tiny-llama\"`")]);
        };
        let mut source = found(name, &origin, resolve).map_err(|problem| vec![problem])?;
        // A path that has no relative form from the recipe's folder is absolute, or relative to the working
        // directory.
        if let Some(folder) = &source.folder {
            let folder = plain(folder);
            source.base = folder.strip_prefix(&root).unwrap_or(&folder).to_owned();
        }
        if chain.contains(&source.name) {
            let problem = Problem::new(format!(
                "`extends` is circular: it leads back to \
                                               {}",
                source.name
            ))
            .at(&origin);
            return Err(vec![problem.note(format!("{} → {}", chain.join(" → "), source.name))]);
        }
        if chain.len() >= DEEPEST {
            let message = format!("more than {DEEPEST} levels of `extends`");
            return Err(vec![Problem::new(message).at(&origin)]);
        }
        chain.push(source.name.clone());
        let mut below = Document::parse(&source)?;
        // Name and description are not inherited.
        below.remove("name");
        below.remove("description");
        same_kind(&merged, &below, &source.name)?;
        merged = merged.layer_over(below);
    }
    Ok(merged)
}

/// Returns a path without `.` components, so that `strip_prefix` works on folders.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| !matches!(part, Component::CurDir)).collect()
}

/// Checks that a recipe has the same kind of model as the recipe `name` that it extends.
fn same_kind(above: &Document, below: &Document, name: &str) -> Result<(), Vec<Problem>> {
    let (Some(wanted), Some(found)) = (above.get("model.kind"), below.get("model.kind")) else {
        return Ok(());
    };
    match (&wanted.value, &found.value) {
        (Value::Text(a), Value::Text(b)) if a != b => {
            let message = format!("the model is of kind {a:?}, but {name} is for {b:?}");
            let problem = Problem::new(message).at(&wanted.origin).note_at("the other kind", &found.origin);
            Err(vec![problem.hint(format!("extend a recipe for {a:?}, or set `kind = {b:?}`"))])
        }
        _ => Ok(()),
    }
}

fn found(name: &str, origin: &Origin, resolve: Resolver<'_>) -> Result<Source, Problem> {
    let unknown = |why: String| Problem::new(format!("`extends`: {why}")).at(origin);
    if let Some(stem) = name.strip_prefix("library/") {
        return library::builtin_recipe(stem).ok_or_else(|| {
            let near = library::names().map(|name| (strsim::jaro_winkler(stem, name), name));
            let best = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score > 0.7);
            let problem = unknown(format!("the library has no recipe {stem:?}"));
            match best {
                Some((_, near)) => problem.hint(format!("did you mean \"library/{near}\"?")),
                None => problem.hint(format!("it has {}", library::names().collect::<Vec<_>>().join(", "))),
            }
        });
    }
    let Some(from) = origin.source() else { return Err(unknown("nothing to extend".to_owned())) };
    let found = resolve(name, from).map_err(unknown)?;
    Ok(Source { layer: ConfigLayer::Extended, ..found })
}
