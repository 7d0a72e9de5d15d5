//! `dtrain show`: one trial, or a recipe's settings.

use crate::args::ShowArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load;
use crate::output::shell_quoted;
use dtrain_recipes::ResolvedValue;
use serde::Serialize;

/// Shows a trial, or with `--resolved` a recipe.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> CommandResult {
    if args.resolved {
        return resolved(context, args);
    }
    if !args.layers.set.is_empty() || args.layers.cluster.is_some() {
        return Err(CommandError::new(ExitReason::Usage, "--set and --cluster are for recipes")
            .hint("`dtrain show --resolved RECIPE` shows a recipe"));
    }
    super::history::show(context, args.what.as_deref().unwrap_or("last"), args)
}

/// One setting as JSON.
#[derive(Serialize)]
struct ResolvedSetting {
    key: String,
    value: String,
    /// Source of the value: `default`, `recipe.toml:12:9`, `--set`, …
    origin: String,
    layer: String,
}

#[derive(Serialize)]
struct ResolvedSettings {
    settings: Vec<ResolvedSetting>,
}

fn resolved(context: &Context, args: &ShowArgs) -> CommandResult {
    let name = args.what.as_deref().unwrap_or("recipe.toml");
    let loaded = load(context.out, name, &args.layers, &[])?;
    let values = &loaded.checked.resolved;
    if context.out.json {
        let setting = |value: &ResolvedValue| ResolvedSetting {
            key: value.path.clone(),
            value: value.value.clone(),
            origin: value.origin.to_string(),
            layer: value.origin.layer().to_string(),
        };
        context.out.json("settings", &ResolvedSettings { settings: values.iter().map(setting).collect() })?;
    } else {
        context.out.data(&table(values))?;
    }
    context.out.next(&format!("dtrain plan {}", shell_quoted(name)));
    Ok(ExitReason::Done)
}

/// Formats key, value and source in columns; a long value shifts only its own line.
fn table(values: &[ResolvedValue]) -> String {
    let width = |lengths: Vec<usize>| lengths.into_iter().filter(|length| *length <= 40).max().unwrap_or(0);
    let keys = width(values.iter().map(|value| value.path.chars().count()).collect());
    let texts = width(values.iter().map(|value| value.value.chars().count()).collect());
    let line = |value: &ResolvedValue| {
        format!("{:<keys$}  {:<texts$}  {}", value.path, value.value, value.origin).trim_end().to_owned()
    };
    values.iter().map(line).collect::<Vec<_>>().join("\n")
}
