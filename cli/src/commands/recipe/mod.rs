//! `dtrain recipe`: finds, shares and explains recipes.

mod package;

use crate::args::RecipeCommand;
use crate::command_error::CommandResult;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::find;
use crate::packages::{failure, store};
use crate::render::truncate::one_line;
use dtrain_recipes::keys::{Kind, Requirement, keys};
use dtrain_recipes::{Document, Source, library, sharing};
use serde::Serialize;
use std::path::Path;

/// Runs `dtrain recipe` with one of its subcommands.
pub(crate) fn run(context: &Context, command: RecipeCommand) -> CommandResult {
    match command {
        RecipeCommand::List => list(context),
        RecipeCommand::Add(args) => package::add(context, &args),
        RecipeCommand::Show { name } => show(context, &name),
        RecipeCommand::Update { package, allow_file } => {
            package::update(context, package.as_deref(), allow_file)
        }
        RecipeCommand::Remove { package } => package::remove(context, &package),
        RecipeCommand::Verify { allow_file } => package::verify(context, allow_file),
        RecipeCommand::Publish(args) => package::publish(context, &args),
        RecipeCommand::Trust { package } => package::grant(context, &package),
        RecipeCommand::Keys => table_of_keys(context),
    }
}

#[derive(Serialize)]
struct RecipeSummary {
    name: String,
    description: String,
}

#[derive(Serialize)]
struct RecipeCatalog {
    recipes: Vec<RecipeSummary>,
}

fn list(context: &Context) -> CommandResult {
    let mut recipes: Vec<RecipeSummary> = library::names()
        .filter_map(library::builtin_recipe)
        .map(|source| RecipeSummary { description: description(&source), name: source.name })
        .collect();
    let store = store(Path::new("."), false)?;
    for locked in sharing::list(&store).map_err(|error| failure(&error))? {
        let shown = sharing::show(&store, &locked.name).map_err(|error| failure(&error))?;
        for (path, _) in &shown.files {
            let Some(stem) = path.strip_suffix(".toml") else { continue };
            let name = format!("{}/{stem}", locked.name);
            let text = sharing::read_recipe(&store, &name, dtrain_recipes::ConfigLayer::Recipe)
                .map_err(|e| failure(&e))?;
            recipes.push(RecipeSummary { description: description(&text), name });
        }
    }
    if context.out.json {
        context.out.json("recipes", &RecipeCatalog { recipes })?;
    } else {
        let width = recipes.iter().map(|recipe| recipe.name.len()).max().unwrap_or(0);
        for recipe in &recipes {
            let description = one_line(&recipe.description);
            context.out.data(format!("{:<width$}  {description}", recipe.name).trim_end())?;
        }
    }
    context.out.next("dtrain recipe show library/char-gpt > recipe.toml");
    Ok(ExitReason::Done)
}

/// Returns the description in a recipe's own text.
fn description(source: &Source) -> String {
    let document = Document::parse(source).unwrap_or_else(|_| Document::empty());
    match document.get("description").map(|node| &node.value) {
        Some(dtrain_recipes::document::Value::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

#[derive(Serialize)]
struct PrintedRecipe {
    name: String,
    text: String,
}

fn show(context: &Context, name: &str) -> CommandResult {
    let source = find(name)?;
    if context.out.json {
        context.out.json("recipe", &PrintedRecipe { name: source.name, text: source.text })?;
    } else {
        context.out.data(&source.text)?;
    }
    Ok(ExitReason::Done)
}

#[derive(Serialize)]
struct KeyDescription {
    key: &'static str,
    /// Type of the key's value, as a user writes it.
    value: String,
    required: bool,
    /// Value that applies if the key is absent.
    default: &'static str,
    kinds: Vec<&'static str>,
    doc: &'static str,
}

#[derive(Serialize)]
struct KeyReference {
    keys: Vec<KeyDescription>,
}

fn table_of_keys(context: &Context) -> CommandResult {
    let all: Vec<KeyDescription> = keys()
        .iter()
        .map(|key| {
            let (required, default) = match key.need {
                Requirement::Required => (true, "none (required)"),
                Requirement::Default(text) | Requirement::Optional(text) => (false, text),
            };
            KeyDescription {
                key: key.path,
                value: key.shape.to_string(),
                required,
                default,
                kinds: key.kinds.iter().map(|kind| kind.name()).collect(),
                doc: key.doc,
            }
        })
        .collect();
    if context.out.json {
        context.out.json("keys", &KeyReference { keys: all })?;
        return Ok(ExitReason::Done);
    }
    let width = all.iter().map(|key| key.key.len()).max().unwrap_or(0);
    for key in &all {
        let kinds = if key.kinds.len() == Kind::NAMES.len() {
            String::new()
        } else {
            format!(" ({} only)", key.kinds.join(", "))
        };
        context.out.data(&format!(
            "{:<width$}  {}{kinds}\n{:width$}  {}; default: {}",
            key.key, key.doc, "", key.value, key.default
        ))?;
    }
    Ok(ExitReason::Done)
}
