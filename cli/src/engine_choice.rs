//! The choice of the training engine where the recipe leaves it open, and the times of others for comparison.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::engine_environments::on_all_hosts;
use crate::hosts;
use crate::render::number::seconds;
use dtrain_planner::Plan;
use dtrain_protocol::{DeviceKind, HostFacts};
use dtrain_recipes::{Devices, Model, Recipe, TrainingEngine};
use dtrain_runner::engine_environment::examine;
use dtrain_runner::launch::relay::RemoteHost;

/// Share by which predicted times may differ and still count as equal: then the engine that is listed first is
/// taken.
const TIE: f64 = 0.02;

/// Returns the engines that could train a recipe on these hosts: those that every host has, and dtrain's own
/// worker. On GPUs the others come first, on CPUs only dtrain's own is among them.
pub(crate) fn installed(
    context: &Context,
    recipe: &Recipe,
    host: &HostFacts,
    others: &mut [RemoteHost],
) -> Vec<TrainingEngine> {
    let on_gpus = has_cuda(recipe, host);
    let python = recipe.cluster.python.as_deref();
    let mut has = |engine: TrainingEngine| {
        let found = on_all_hosts(others, |host| match host {
            Some(host) => host.engine(engine, python).is_ok(),
            None => examine(&context.home, engine, python).is_ok(),
        });
        found.into_iter().all(|(_, is_there)| is_there)
    };
    let foreign = TrainingEngine::ALL.iter().copied().filter(|engine| on_gpus && engine.is_foreign());
    let mut engines: Vec<_> = foreign.filter(|engine| has(*engine)).collect();
    engines.push(TrainingEngine::Dtrain);
    engines
}

/// Returns `true` if a recipe is trained on GPUs that engines of other projects can use.
fn has_cuda(recipe: &Recipe, host: &HostFacts) -> bool {
    host.gpu_device() == Some(DeviceKind::Cuda) && recipe.cluster.devices != Devices::Cpu
}

/// Says what the other engines that are installed on the GPUs of a plan would take; nothing on CPUs.
pub(crate) fn print_others(
    context: &Context,
    plan: &Plan,
    mut plan_for: impl FnMut(&Recipe) -> Result<Plan, CommandError>,
) -> Result<(), CommandError> {
    if !has_cuda(&plan.recipe, &plan.host) || !matches!(plan.recipe.model, Model::Decoder(_)) {
        return Ok(());
    }
    let mut others = hosts::answering(context, &plan.recipe)?;
    let engines = installed(context, &plan.recipe, &plan.host, &mut others);
    // The plans use the same connections.
    drop(others);
    for engine in engines.into_iter().filter(|engine| *engine != plan.recipe.engine) {
        let planned = plan_for(&Recipe { engine, ..plan.recipe.clone() });
        context.out.say(&prediction(engine, &planned));
    }
    Ok(())
}

/// Formats what an engine would take, or why it cannot run the recipe.
fn prediction(engine: TrainingEngine, planned: &Result<Plan, CommandError>) -> String {
    match planned {
        Ok(plan) => format!("engine {engine}: {} per step predicted", step_time(plan)),
        Err(failure) => format!("engine {engine}: {}", failure.in_one_line()),
    }
}

/// Plans a recipe for each engine, and returns the fastest plan. Says what each engine would take.
///
/// `Err`, that of dtrain's own worker, if no engine can run any plan.
pub(crate) fn fastest(
    context: &Context,
    recipe: &Recipe,
    engines: &[TrainingEngine],
    mut plan: impl FnMut(&Recipe) -> Result<Plan, CommandError>,
) -> Result<Plan, CommandError> {
    let mut best: Option<Plan> = None;
    let mut refusal = None;
    for engine in engines {
        let planned = plan(&Recipe { engine: *engine, ..recipe.clone() });
        context.out.say(&prediction(*engine, &planned));
        match planned {
            Ok(planned) => {
                if best.as_ref().is_none_or(|best| is_faster(&planned, best)) {
                    best = Some(planned);
                }
            }
            Err(failure) => refusal = Some(failure),
        }
    }
    match best {
        Some(plan) => {
            context.out.say(&format!("engine {} is taken", plan.recipe.engine));
            Ok(plan)
        }
        None => Err(refusal.expect("there is at least one engine")),
    }
}

/// Returns `true` if a plan needs clearly less time per sample.
fn is_faster(plan: &Plan, other: &Plan) -> bool {
    sample_seconds(plan) < sample_seconds(other) * (1.0 - TIE)
}

#[expect(clippy::cast_precision_loss, reason = "a batch has few samples")]
fn sample_seconds(plan: &Plan) -> f64 {
    let best = plan.best();
    best.price().step.0 / best.candidate.split.global().max(1) as f64
}

fn step_time(plan: &Plan) -> String {
    seconds(plan.best().price().step.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit_code::ExitReason;
    use crate::output::Output;
    use dtrain_recipes::{CheckContext, ConfigLayer, Document, Source, check};

    fn recipe() -> Recipe {
        let text = "engine = \"auto\"\n[model]\nkind = \"decoder\"\nlayers = 1\nhidden = 8\nheads = 1\ncontext = 8\n\
            [data]\ntrain = \"*.txt\"\n[objective.stop]\nsteps = 1\n";
        let document = Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, text)).expect("TOML");
        check(&document, &CheckContext { folder: "/".into(), name: "r".into() }).expect("a recipe").recipe
    }

    fn context() -> Context {
        Context::new(Output::new(false, true), Some("/nowhere".into())).expect("a context")
    }

    #[test]
    fn on_cpus_dtrains_own_worker_is_the_only_choice() {
        let host = HostFacts { gpus: Vec::new(), ..crate::this_host::facts() };
        assert_eq!(installed(&context(), &recipe(), &host, &mut []), [TrainingEngine::Dtrain]);
    }

    #[test]
    fn an_engine_that_cannot_run_the_recipe_is_not_taken() {
        let engines = [TrainingEngine::Torchtitan, TrainingEngine::Dtrain];
        let mut asked = Vec::new();
        let failure = fastest(&context(), &recipe(), &engines, |recipe| {
            asked.push(recipe.engine);
            Err(CommandError::new(ExitReason::NothingFits, format!("not with {}", recipe.engine)))
        });
        assert_eq!(failure.expect_err("none can").message(), "not with dtrain");
        assert_eq!(asked, engines);
    }
}
