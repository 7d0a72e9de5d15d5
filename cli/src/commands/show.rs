//! `dtrain show`.

use crate::args::ShowArgs;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::load;
use crate::output::word;
use dtrain_recipes::Resolved;
use serde::Serialize;

/// Shows a trial, or with `--resolved` a recipe.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> Outcome {
    if args.resolved {
        return resolved(context, args);
    }
    if !args.layers.set.is_empty() || args.layers.cluster.is_some() {
        return Err(Failure::new(Exit::Usage, "--set and --cluster are for recipes")
            .hint("`dtrain show --resolved RECIPE` shows a recipe"));
    }
    super::history::show(context, args.what.as_deref().unwrap_or("last"), args)
}

/// One setting as JSON.
#[derive(Serialize)]
struct Setting {
    key: String,
    value: String,
    /// `default`, `recipe.toml:12:9`, `--set`, …
    origin: String,
    layer: String,
}

#[derive(Serialize)]
struct Settings {
    settings: Vec<Setting>,
}

fn resolved(context: &Context, args: &ShowArgs) -> Outcome {
    let name = args.what.as_deref().unwrap_or("recipe.toml");
    let loaded = load(name, &args.layers, &[])?;
    let values = &loaded.checked.resolved;
    if context.out.json {
        let setting = |value: &Resolved| Setting {
            key: value.path.clone(),
            value: value.value.clone(),
            origin: value.origin.to_string(),
            layer: value.origin.layer().to_string(),
        };
        context.out.json("settings", &Settings { settings: values.iter().map(setting).collect() })?;
    } else {
        context.out.data(&table(values))?;
    }
    context.out.next(&format!("dtrain plan {}", word(name)));
    Ok(Exit::Done)
}

/// Key, value and place, in columns; a long value moves the place of its own line only.
fn table(values: &[Resolved]) -> String {
    let width = |lengths: Vec<usize>| lengths.into_iter().filter(|length| *length <= 40).max().unwrap_or(0);
    let keys = width(values.iter().map(|value| value.path.chars().count()).collect());
    let texts = width(values.iter().map(|value| value.value.chars().count()).collect());
    let line = |value: &Resolved| {
        format!("{:<keys$}  {:<texts$}  {}", value.path, value.value, value.origin).trim_end().to_owned()
    };
    values.iter().map(line).collect::<Vec<_>>().join("\n")
}
