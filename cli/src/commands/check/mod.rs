//! `dtrain check`: validates a recipe.

mod try_output;

use crate::args::CheckArgs;
use crate::command_error::{CommandResult, ProblemJson};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load_without_download;
use crate::output::{problem_text, shell_quoted};
use crate::render::number::counted;
use crate::{precheck, workdir};
use dtrain_recipes::number_format;
use dtrain_recipes::{Model, Recipe};
use serde::Serialize;

/// Checks a recipe and the files that it names; prints every problem found.
pub(crate) fn run(context: &Context, args: &CheckArgs) -> CommandResult {
    let CheckArgs { recipe: args, output } = args;
    if let Some(output) = output {
        return try_output::run(context, args, output);
    }
    let looked = load_without_download(context.out, &args.recipe, &args.layers, &[])
        .and_then(|loaded| {
            workdir::check(context, &loaded.checked.recipe, &loaded.folder)?;
            Ok(loaded)
        })
        .and_then(|loaded| precheck::find_problems(context, &loaded).map(|warnings| (loaded, warnings)));
    match looked {
        Ok((loaded, warnings)) => {
            let recipe = &loaded.checked.recipe;
            if context.out.json {
                let digest = dtrain_recipes::recipe_digest::digest(recipe);
                let warnings = warnings.iter().map(ProblemJson::of).collect();
                let report =
                    RecipeValidation { valid: true, digest: Some(digest), problems: Vec::new(), warnings };
                context.out.json("check", &report)?;
            }
            for warning in &warnings {
                context.out.say(&problem_text(context.out.paint.yellow("warning"), warning));
            }
            if let Some(note) = precheck::hub_model_note(&loaded.checked) {
                context.out.say(&note);
            }
            if let Some(downloads) = precheck::downloads(&loaded) {
                context.out.say(&downloads);
            }
            context.out.say(&format!("{} is a valid recipe: {}", args.recipe, summary(recipe)));
            context.out.next(&format!("dtrain plan {}", shell_quoted(&args.recipe)));
            Ok(ExitReason::Done)
        }
        Err(failure) if context.out.json && !failure.recipe_problems().is_empty() => {
            let problems = failure.recipe_problems().iter().map(ProblemJson::of).collect();
            let report = RecipeValidation { valid: false, digest: None, problems, warnings: Vec::new() };
            context.out.json("check", &report)?;
            Ok(ExitReason::Usage)
        }
        Err(failure) => Err(failure),
    }
}

/// Describes in a few words the training that a recipe asks for.
pub(crate) fn summary(recipe: &Recipe) -> String {
    let kind = match &recipe.model {
        Model::Decoder(decoder) => format!("decoder, {} layers of {}", decoder.layers, decoder.hidden),
        Model::Mlp(mlp) => format!("mlp, widths {:?}", mlp.widths()),
        Model::Cnn(cnn) => format!("residual network, stages {:?}", cnn.stages),
        Model::Custom(own) => {
            format!("network {:?}, {}", own.network, counted(recipe.model.blocks().into(), "block"))
        }
        Model::Command(command) => return format!("command {}", command.argv.join(" ")),
    };
    let parameters = number_format::parameters(recipe.model.parameters());
    if recipe.model.has_frozen_weights() {
        let trained = number_format::parameters(recipe.model.trained_parameters());
        return format!("{kind}, {parameters} parameters, {trained} in adapters that are trained");
    }
    format!("{kind}, {parameters} parameters")
}

#[derive(Serialize)]
struct RecipeValidation {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Problems for which `dtrain run` would refuse the recipe.
    problems: Vec<ProblemJson>,
    /// Remarks about the data, and problems that may appear on other hosts.
    warnings: Vec<ProblemJson>,
}
