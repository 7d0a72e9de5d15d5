//! `dtrain plan --on`: what a recipe would cost on GPUs that are not here.

mod on;

use super::plan::{Made, TOP, deliver, depth};
use crate::args::{EngineName, PlanArgs};
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::describe;
use crate::plan_file::{MadeFrom, Stored};
use crate::rates;
use crate::render::html::{of_outlook, page};
use dtrain_planner::Plan;
use dtrain_planner::analytic::PartKind;
use dtrain_planner::analytic::search::Cluster;
use dtrain_planner::choice::explain::wrapped;
use dtrain_planner::engine::emit::Format;
use dtrain_planner::engine::{self, Engine};
use dtrain_planner::outlook::{
    NEXT, OutlookError, OutlookRequest, as_plan, explain, explain_mixed, mixed_outlook, outlook,
};
use on::groups;

/// Searches all layouts of the GPUs that `on` describes, and says what the best would cost.
pub(crate) fn run(context: &Context, args: &PlanArgs, on: &str) -> Outcome {
    let loaded = describe(&args.recipe.recipe, &args.recipe.layers, &[])?;
    let recipe = &loaded.checked.recipe;
    let groups = groups(on, args.network)?;
    let engine = engine(args, &groups)?;
    let [cluster] = groups[..] else {
        refuse_what_is_for_equal_hosts(args)?;
        let found = mixed_outlook(recipe, &groups, engine).map_err(|error| refusal(&error))?;
        if context.out.json {
            context.out.json("mixed_outlook", &found)?;
        } else {
            context.out.data(&wrapped(&explain_mixed(&found), context.out.style().width))?;
        }
        return Ok(Exit::Done);
    };
    let top = args.top.unwrap_or(TOP);
    let request = OutlookRequest { recipe, cluster, engine, next: top.max(NEXT) };
    let found = outlook(&request).map_err(|error| refusal(&error))?;
    let mut stored = None;
    if args.out.is_some() || args.emit.is_some() {
        let plan = as_plan(&request, &found, (loaded.folder.clone(), rates::PROGRAM));
        let plan = plan.map_err(|error| Failure::of(Exit::Usage, &error))?;
        let plan = Plan { settings: loaded.checked.settings(), ..plan };
        // Its data may be elsewhere.
        stored = Some(Stored::of(plan, Some(MadeFrom::of(&loaded, &args.recipe.layers, &[], None))));
    }
    let made = Made {
        stored: stored.as_ref(),
        document: ("outlook", &found),
        text: wrapped(&explain(&found, depth(args), top), context.out.style().width),
        page: args.html.as_ref().map(|_| page(&of_outlook(&found))),
        next: None,
    };
    deliver(context, args, &made)
}

fn refuse_what_is_for_equal_hosts(args: &PlanArgs) -> Result<(), Failure> {
    let said = [
        ("--explain", args.explain),
        ("--html", args.html.is_some()),
        ("--emit", args.emit.is_some()),
        ("--out", args.out.is_some()),
        ("--top", args.top.is_some()),
    ];
    match said.into_iter().find(|(_, is_said)| *is_said) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::new(Exit::Usage, format!("`{flag}` needs identical hosts"))
            .hint("name one group in `--on`, or omit the flag")),
    }
}

/// The engine that the user named, or the one that the plan is written for, or one that runs on what there is.
fn engine(args: &PlanArgs, groups: &[Cluster]) -> Result<&'static dyn Engine, Failure> {
    let of_format = match args.emit {
        Some(Format::Torchtitan) => Some(EngineName::Torchtitan),
        Some(Format::Deepspeed) => Some(EngineName::Deepspeed),
        Some(Format::Fsdp) => Some(EngineName::Fsdp),
        Some(Format::Maxtext) => Some(EngineName::Jax),
        Some(Format::Megatron | Format::Slurm | Format::Kubernetes) => Some(EngineName::Megatron),
        None => None,
    };
    let Some(name) = args.engine.or(of_format) else {
        let kinds: Vec<PartKind> = groups.iter().map(|group| group.gpu.kind()).collect();
        return engine::usual(&kinds).ok_or_else(|| {
            Failure::new(Exit::Usage, "no engine runs on all of these together")
                .hint("plan each group by itself, with an `--on` of its own")
        });
    };
    match name {
        EngineName::Dtrain => Ok(&engine::DTRAIN),
        EngineName::Megatron => Ok(&engine::MEGATRON),
        EngineName::Fsdp => Ok(&engine::FSDP),
        EngineName::Deepspeed => Ok(&engine::DEEPSPEED),
        EngineName::Torchtitan => Ok(&engine::TORCHTITAN),
        EngineName::Jax => Ok(&engine::JAX),
        EngineName::MegatronDeepspeed => {
            let message = "nothing is written for megatron-deepspeed, so nothing is planned for it";
            let hint = "name megatron or deepspeed; `dtrain estimate` predicts runs of megatron-deepspeed";
            Err(Failure::new(Exit::Usage, message).hint(hint))
        }
    }
}

fn refusal(error: &OutlookError) -> Failure {
    match error {
        OutlookError::NothingFits { .. } | OutlookError::NoLayout { .. } | OutlookError::Engine { .. } => {
            Failure::of(Exit::NothingFits, error)
        }
        OutlookError::NoDecoder { .. }
        | OutlookError::Adapters
        | OutlookError::NoBatch
        | OutlookError::Part { .. }
        | OutlookError::Pin { .. } => Failure::of(Exit::Usage, error),
    }
}
