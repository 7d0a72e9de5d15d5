//! `dtrain plan --on`: what a recipe would cost on GPUs that are not here.

use super::emit;
use super::plan::{depth, save};
use crate::args::{EngineStyle, PlanArgs};
use crate::context::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::load::describe;
use crate::rates;
use crate::render::html::{of_outlook, page};
use dtrain_planner::analytic::hardware::{gpu, gpus};
use dtrain_planner::analytic::search::Cluster;
use dtrain_planner::analytic::{Gpu, Style};
use dtrain_planner::emit::Format;
use dtrain_planner::outlook::{
    OutlookError, OutlookRequest, as_plan, explain, explain_mixed, mixed_outlook, outlook,
};

/// Searches all layouts of the GPUs that `on` describes, and says what the best would cost.
pub(crate) fn run(context: &Context, args: &PlanArgs, on: &str) -> Outcome {
    let loaded = describe(&args.recipe.recipe, &args.recipe.layers, &[])?;
    let (recipe, style) = (&loaded.checked.recipe, style(args));
    let groups = groups(on, args.network)?;
    let [cluster] = groups[..] else {
        refuse_what_is_for_equal_hosts(args)?;
        let found = mixed_outlook(recipe, &groups, style).map_err(|error| refusal(&error))?;
        if context.out.json {
            context.out.json("mixed_outlook", &found)?;
        } else {
            context.out.data(&explain_mixed(&found))?;
        }
        return Ok(Exit::Done);
    };
    let request = OutlookRequest { recipe, cluster, style };
    let found = outlook(&request).map_err(|error| refusal(&error))?;
    if let Some(format) = args.emit {
        let plan = as_plan(&request, &found, (loaded.folder.clone(), rates::PROGRAM));
        let plan = plan.map_err(|error| {
            Failure::new(Exit::Usage, format!("the choice cannot be written for {}", format.word()))
                .cause(error.to_string())
        })?;
        emit::run(context, args, &plan, format)?;
        return Ok(Exit::Done);
    }
    if let Some(path) = &args.html {
        save(path, &page(&of_outlook(&found)))?;
        context.out.say(&format!("drawn in {}", path.display()));
    }
    if context.out.json {
        context.out.json("outlook", &found)?;
    } else {
        context.out.data(&explain(&found, depth(args)))?;
    }
    Ok(Exit::Done)
}

fn refuse_what_is_for_equal_hosts(args: &PlanArgs) -> Result<(), Failure> {
    let said =
        [("--explain", args.explain), ("--html", args.html.is_some()), ("--emit", args.emit.is_some())];
    match said.into_iter().find(|(_, is_said)| *is_said) {
        None => Ok(()),
        Some((flag, _)) => Err(Failure::new(Exit::Usage, format!("`{flag}` needs identical hosts"))
            .hint("name one group in `--on`, or omit the flag")),
    }
}

/// The style of the engine that the user named, or of the one that the plan is written for.
fn style(args: &PlanArgs) -> Style {
    let of_format = match args.emit {
        Some(Format::Torchtitan) => EngineStyle::Torchtitan,
        Some(Format::Deepspeed) => EngineStyle::MegatronDeepspeed,
        Some(Format::Fsdp) => EngineStyle::Fsdp,
        Some(Format::Megatron | Format::Slurm | Format::Kubernetes) | None => EngineStyle::Megatron,
    };
    match args.engine.unwrap_or(of_format) {
        EngineStyle::Megatron => Style::Modern,
        EngineStyle::MegatronDeepspeed => Style::Research,
        EngineStyle::Fsdp => Style::Fsdp,
        EngineStyle::Torchtitan => Style::Compiled,
        EngineStyle::Jax => Style::Xla,
    }
}

/// Groups of equal hosts from `HOSTSxGPUS TYPE`, with `+` between them.
fn groups(on: &str, network: Option<f64>) -> Result<Vec<Cluster>, Failure> {
    let groups = on.split('+').map(|group| cluster(group, network)).collect::<Result<Vec<_>, _>>()?;
    let all = groups.iter().try_fold(0, |all: u32, group| all.checked_add(group.devices));
    match all {
        Some(_) => Ok(groups),
        None => Err(Failure::new(Exit::Usage, format!("`--on {on:?}` is too many GPUs"))),
    }
}

/// A group from `HOSTSxGPUS TYPE`.
fn cluster(on: &str, network: Option<f64>) -> Result<Cluster, Failure> {
    let wrong = |what: String| {
        Failure::new(Exit::Usage, what).hint(
            "write `--on \"2048x8 H100-SXM-80GB\"`: hosts, GPUs per host and GPU type; `+` joins groups",
        )
    };
    let Some((size, part)) = on.trim().split_once(' ') else {
        return Err(wrong(format!("`--on {on:?}` names no GPU type")));
    };
    let count = |text: &str| text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
    let numbers = size.split_once(['x', '×']).and_then(|(hosts, each)| count(hosts).zip(count(each)));
    let Some((hosts, per_host)) = numbers else {
        return Err(wrong(format!("`{size}` is not a number of hosts and GPUs per host")));
    };
    let Some(gpu) = gpu(part) else { return Err(unknown(part)) };
    if u32::checked_mul(hosts, per_host).is_none() {
        return Err(wrong(format!("`{size}` is too many GPUs")));
    }
    let usual = Cluster::of(gpu, hosts, per_host);
    match network {
        None => Ok(usual),
        Some(gbit) if gbit.is_finite() && gbit > 0.0 => Ok(Cluster { network: gbit / 8.0 * 1e9, ..usual }),
        Some(gbit) => Err(Failure::new(Exit::Usage, format!("`--network {gbit}` is not a valid bandwidth"))
            .hint("give the Gbit/s per GPU, such as `--network 400`")),
    }
}

fn unknown(part: &str) -> Failure {
    let known: Vec<String> = gpus().iter().map(|gpu: &Gpu| gpu.words.join(" ").to_uppercase()).collect();
    Failure::new(Exit::Usage, format!("unknown GPU type `{part}`"))
        .hint(format!("known types: {}", known.join(", ")))
}

fn refusal(error: &OutlookError) -> Failure {
    match error {
        OutlookError::NothingFits { .. } | OutlookError::NoLayout { .. } => {
            Failure::of(Exit::NothingFits, error)
        }
        OutlookError::NoDecoder { .. } | OutlookError::NoBatch | OutlookError::Pin { .. } => {
            Failure::of(Exit::Usage, error)
        }
    }
}
