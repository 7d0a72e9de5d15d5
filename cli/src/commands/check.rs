//! `dtrain check`.

use crate::args::RecipeArgs;
use crate::context::Context;
use crate::failure::{Exit, Outcome, ProblemJson};
use crate::load::load;
use crate::output::word;
use crate::render::number::whole;
use dtrain_recipes::{Model, Recipe};
use serde::Serialize;

/// Checks a recipe and the files it names.
pub(crate) fn run(context: &Context, args: &RecipeArgs) -> Outcome {
    match load(&args.recipe, &args.layers, &[]) {
        Ok(loaded) => {
            let recipe = &loaded.checked.recipe;
            if context.out.json {
                let digest = dtrain_recipes::canonical::digest(recipe);
                context
                    .out
                    .json("check", &Report { valid: true, digest: Some(digest), problems: Vec::new() })?;
            }
            context.out.say(&format!("{} is a valid recipe: {}", args.recipe, summary(recipe)));
            context.out.next(&format!("dtrain plan {}", word(&args.recipe)));
            Ok(Exit::Done)
        }
        Err(failure) if context.out.json && !failure.recipe_problems().is_empty() => {
            let problems = failure.recipe_problems().iter().map(ProblemJson::of).collect();
            context.out.json("check", &Report { valid: false, digest: None, problems })?;
            Ok(Exit::Usage)
        }
        Err(failure) => Err(failure),
    }
}

/// What is trained, in a few words.
pub(crate) fn summary(recipe: &Recipe) -> String {
    let kind = match &recipe.model {
        Model::Decoder(decoder) => format!("decoder, {} layers of {}", decoder.layers, decoder.hidden),
        Model::Mlp(mlp) => format!("mlp, widths {:?}", mlp.widths()),
        Model::Cnn(cnn) => format!("residual network, stages {:?}", cnn.stages),
        Model::Command(command) => return format!("command {}", command.argv.join(" ")),
    };
    format!("{kind}, {} parameters", whole(recipe.model.parameters()))
}

#[derive(Serialize)]
struct Report {
    valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    problems: Vec<ProblemJson>,
}
