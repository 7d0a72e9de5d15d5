//! `dtrain plan --on`: estimates the cost of a recipe on GPUs that are not there.

use super::plan_output::{PlanOutput, output_plan};
use super::worker;
use crate::args::{EngineName, PlanArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load_without_running;
use crate::output::shell_quoted;
use crate::plan_file::{PlanOrigin, StoredPlan};
use crate::render::answer::on_several_lines;
use crate::render::html::{page, what_if_page};
use crate::{rates, this_host};
use clap::ValueEnum;
use dtrain_planner::Plan;
use dtrain_planner::answer::{Answer, ROWS};
use dtrain_planner::emit::ConfigFormat;
use dtrain_planner::engine::{self, Engine};
use dtrain_planner::hardware::on::MachineError;
use dtrain_planner::hardware::{AcceleratorKind, HostGroup, Machine};
use dtrain_planner::text::wrapped;
use dtrain_planner::what_if::{
    DatasheetPlanError, DatasheetPlanRequest, NEXT, explain, explain_mixed_cluster, plan_from_datasheets,
    plan_mixed_cluster, to_plan, worker_only_kind,
};

/// Searches all layouts on the GPUs that `on` describes, and prints the cost of the best.
pub(crate) fn run(context: &Context, args: &PlanArgs, on: &str) -> CommandResult {
    let loaded = load_without_running(&args.recipe.recipe, &args.recipe.layers, &[])?;
    loaded.print_notes(context.out);
    let recipe = &loaded.checked.recipe;
    let machine =
        Machine::parse(on, args.network, &recipe.cluster.gpu).map_err(|error| unknown_machine(&error))?;
    let groups = &machine.groups;
    if worker_only_kind(&recipe.model).is_some() {
        return worker::run(context, args, (on, groups), &loaded);
    }
    let engine = engine(args, groups)?;
    let [cluster] = groups[..] else {
        refuse_what_is_for_equal_hosts(args)?;
        let found = plan_mixed_cluster(recipe, groups, engine).map_err(|error| refusal(&error))?;
        let explanation =
            args.explain.then(|| wrapped(&explain_mixed_cluster(&found), context.out.style().width));
        let made = PlanOutput {
            stored: None,
            document: ("mixed_outlook", &found),
            answer: Answer::of_mixed_plan(&found, groups),
            explanation,
            page: None,
            next: (!args.explain).then(|| command_on(args, on, &["--explain"])),
        };
        return output_plan(context, args, &made);
    };
    let top = args.top.unwrap_or(ROWS);
    let request = DatasheetPlanRequest { recipe, cluster, engine, next: top.max(NEXT) };
    let found = plan_from_datasheets(&request).map_err(|error| refusal(&error))?;
    let mut stored = None;
    if args.out.is_some() || args.emit.is_some() {
        let plan = to_plan(&request, &found, (loaded.folder.clone(), this_host::PROGRAM));
        let plan = plan.map_err(|error| CommandError::of(ExitReason::Usage, &error))?;
        let plan = Plan { settings: loaded.checked.settings(), ..plan };
        // The data may be on another machine.
        stored = Some(StoredPlan::of(plan, Some(PlanOrigin::of(&loaded, &args.recipe.layers, &[], None))));
    }
    let made = PlanOutput {
        stored: stored.as_ref(),
        document: ("outlook", &found),
        answer: Answer::of_datasheet_plan(&found, &cluster),
        explanation: args.explain.then(|| wrapped(&explain(&found, top), context.out.style().width)),
        page: args.html.as_ref().map(|_| page(&what_if_page(&found))),
        next: Some(next(args, on, engine)),
    };
    output_plan(context, args, &made)
}

fn unknown_machine(error: &MachineError) -> CommandError {
    let failure = CommandError::new(ExitReason::Usage, error.to_string());
    let failure = match &error.cause {
        Some(cause) => failure.cause(cause.clone()),
        None => failure,
    };
    failure.hint(error.hint.clone())
}

/// Returns the command that follows from a plan for `engine`: the one that writes its files, or for a program of
/// dtrain's own the one that runs on such hosts.
pub(super) fn next(args: &PlanArgs, on: &str, engine: &dyn Engine) -> String {
    let here = |command: &[&str]| {
        let recipe = shell_quoted(&args.recipe.recipe);
        let layers = args.recipe.layers.arguments();
        let (command, options) = command.split_first().expect("a command has a name");
        let words = [*command, recipe.as_str()].into_iter().chain(layers.iter().map(String::as_str));
        on_several_lines(words.chain(options.iter().copied()))
    };
    if engine.name() == engine::DTRAIN.name() {
        return here(&["dtrain probe"]);
    }
    if engine.name() == engine::FSDP_PROGRAM.name() {
        return here(&["dtrain run", "--engine fsdp"]);
    }
    let format =
        if engine.name() == engine::JAX.name() { ConfigFormat::Maxtext.word() } else { engine.name() };
    command_on(args, on, &[&format!("--emit {format}"), "--emit-to FOLDER"])
}

/// Returns the command of `args` for the hosts `on`, with `more` options.
fn command_on(args: &PlanArgs, on: &str, more: &[&str]) -> String {
    let mut words = vec!["dtrain plan".to_owned(), shell_quoted(&args.recipe.recipe)];
    words.extend(args.recipe.layers.arguments());
    words.push(format!("--on {}", shell_quoted(on)));
    words.extend(args.network.map(|gbit| format!("--network {gbit}")));
    let engine = args.engine.and_then(|engine| engine.to_possible_value());
    words.extend(engine.map(|engine| format!("--engine {}", engine.get_name())));
    words.extend(more.iter().map(|&option| option.to_owned()));
    on_several_lines(words.iter().map(String::as_str))
}

fn refuse_what_is_for_equal_hosts(args: &PlanArgs) -> Result<(), CommandError> {
    let said = [
        ("--html", args.html.is_some()),
        ("--emit", args.emit.is_some()),
        ("--out", args.out.is_some()),
        ("--top", args.top.is_some()),
    ];
    match said.into_iter().find(|(_, is_said)| *is_said) {
        None => Ok(()),
        Some((flag, _)) => {
            Err(CommandError::new(ExitReason::Usage, format!("`{flag}` needs identical hosts"))
                .hint("name one group in `--on`, or omit the flag"))
        }
    }
}

/// Returns the engine that the user named, else that of `--emit`, else one that supports the GPUs.
pub(super) fn engine(args: &PlanArgs, groups: &[HostGroup]) -> Result<&'static dyn Engine, CommandError> {
    let of_format = match args.emit {
        Some(ConfigFormat::Torchtitan) => Some(EngineName::Torchtitan),
        Some(ConfigFormat::Deepspeed) => Some(EngineName::Deepspeed),
        Some(ConfigFormat::HfTrainer) => Some(EngineName::HfTrainer),
        Some(ConfigFormat::Maxtext) => Some(EngineName::Jax),
        Some(ConfigFormat::Megatron | ConfigFormat::Slurm | ConfigFormat::Kubernetes) => {
            Some(EngineName::Megatron)
        }
        None => None,
    };
    let Some(name) = args.engine.or(of_format) else {
        let kinds: Vec<AcceleratorKind> = groups.iter().map(|group| group.gpu.kind()).collect();
        return engine::default_engine(&kinds).ok_or_else(|| {
            CommandError::new(ExitReason::Usage, "no engine runs on all of these together")
                .hint("plan each group by itself, with an `--on` of its own")
        });
    };
    match name {
        EngineName::Dtrain => Ok(&engine::DTRAIN),
        EngineName::Megatron => Ok(&engine::MEGATRON),
        EngineName::Fsdp => Ok(&engine::FSDP_PROGRAM),
        EngineName::HfTrainer => Ok(&engine::HF_TRAINER),
        EngineName::Deepspeed => Ok(&engine::DEEPSPEED),
        EngineName::Torchtitan => Ok(&engine::TORCHTITAN),
        EngineName::Jax => Ok(&engine::JAX),
        EngineName::Auto => {
            let message =
                "`--engine auto` looks at what is installed, and nothing is installed on hosts of `--on`";
            Err(CommandError::new(ExitReason::Usage, message).hint(
                "name an engine, or omit the flag; without `--on` it plans for the hosts of the recipe",
            ))
        }
        EngineName::MegatronDeepspeed => {
            let message = "nothing is written for megatron-deepspeed, so nothing is planned for it";
            let hint = "name megatron or deepspeed; `dtrain estimate` predicts runs of megatron-deepspeed";
            Err(CommandError::new(ExitReason::Usage, message).hint(hint))
        }
    }
}

pub(super) fn refusal(error: &DatasheetPlanError) -> CommandError {
    match error {
        DatasheetPlanError::NothingFits { .. }
        | DatasheetPlanError::NoLayout { .. }
        | DatasheetPlanError::Batch { .. }
        | DatasheetPlanError::Engine { .. } => CommandError::of(ExitReason::NothingFits, error),
        DatasheetPlanError::Worker(error) => rates::refusal(error),
        DatasheetPlanError::NoDecoder { .. }
        | DatasheetPlanError::NotWorkerOnly
        | DatasheetPlanError::OtherEngine { .. }
        | DatasheetPlanError::DifferentHosts { .. }
        | DatasheetPlanError::Devices
        | DatasheetPlanError::NoBatch
        | DatasheetPlanError::Precision { .. }
        | DatasheetPlanError::Part { .. }
        | DatasheetPlanError::Pin { .. } => CommandError::of(ExitReason::Usage, error),
    }
}
