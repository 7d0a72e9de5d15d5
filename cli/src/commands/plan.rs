//! `dtrain plan`, and plans as files.

use super::emit;
use crate::args::PlanArgs;
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::load;
use crate::output::word;
use crate::render::html::{of_plan, page};
use crate::render::plan::long;
use crate::{job, rates, trials};
use dtrain_planner::explain::Depth;
use dtrain_planner::{Plan, plan};
use dtrain_recipes::Model;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A plan as it is stored and printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// blake3 of the plan in canonical JSON.
    pub(crate) digest: String,
    /// The plan.
    pub(crate) plan: Plan,
}

/// Plans a recipe, explains the plan, and saves it where asked to.
pub(crate) fn run(context: &Context, args: &PlanArgs) -> Outcome {
    if let Some(on) = &args.on {
        return super::outlook::run(context, args, on);
    }
    let loaded = load(&args.recipe.recipe, &args.recipe.layers, &[])?;
    if let Some(exit) = job::sent(context, &loaded.checked.recipe, false)? {
        return Ok(exit);
    }
    let mut history = trials::open_history(context)?;
    let plan = rates::plan(context, &mut history, &loaded)?;
    let shown = long(&plan, depth(args), args.top, context.out.paint_data);
    if let Some(path) = &args.html {
        if let Model::Command(_) = plan.recipe.model {
            return Err(Failure::new(
                Exit::Usage,
                "--html needs predicted step times, and a foreign command has none",
            ));
        }
        let picture = rates::picture(&history, &plan)?;
        save(path, &page(&of_plan(&plan, picture)))?;
        context.out.say(&format!("drawn in {}", path.display()));
    }
    let stored = Stored { digest: plan.digest(), plan };
    if let Some(path) = &args.out {
        write(path, &stored)?;
    }
    if let Some(format) = args.emit {
        emit::run(context, args, &stored.plan, format)?;
        return Ok(Exit::Done);
    }
    if context.out.json {
        context.out.json("plan", &stored)?;
    } else {
        context.out.data(&shown)?;
    }
    match &args.out {
        Some(path) => {
            context.out.say(&format!("saved as {} (digest {})", path.display(), &stored.digest[..12]));
            context.out.next(&format!("dtrain run {}", word(path.display())));
        }
        None => context.out.next(&format!("dtrain run {}", word(&loaded.name))),
    }
    Ok(Exit::Done)
}

/// How much is told of what was not chosen.
pub(super) fn depth(args: &PlanArgs) -> Depth {
    if args.explain { Depth::Full } else { Depth::Short }
}

pub(crate) fn write(path: &Path, stored: &Stored) -> Result<(), Failure> {
    save(path, &(crate::output::document("plan", stored, true)? + "\n"))
}

/// Writes a file that the user named.
pub(super) fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot write {}", path.display())).cause(error.to_string())
    })
}

/// Reads a plan from a file. `None` when the file is no JSON, and so may be a recipe.
pub(crate) fn read(path: &Path) -> Result<Option<Plan>, Failure> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    parse(&text).map(Some).map_err(|cause| {
        Failure::new(Exit::Usage, format!("{} cannot be used as a plan", path.display()))
            .cause(cause)
            .hint("`dtrain plan RECIPE --out FILE` writes a plan; it is not meant to be edited")
    })
}

fn parse(text: &str) -> Result<Plan, String> {
    #[derive(Deserialize)]
    struct Version {
        plan: Format,
    }
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let version: Version = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let found = version.plan.format;
    if found > plan::FORMAT {
        return Err(format!("it has format {found}; this version reads up to {}", plan::FORMAT));
    }
    let stored: Stored = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if stored.plan.choices.is_empty() {
        return Err("it has no choices".to_owned());
    }
    let digest = stored.plan.digest();
    if digest != stored.digest {
        return Err(format!(
            "its digest is {}, expected {}: the file was modified",
            &digest[..12],
            stored.digest
        ));
    }
    Ok(stored.plan)
}
