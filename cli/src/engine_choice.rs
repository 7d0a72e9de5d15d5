//! The choice of the training engine where the recipe leaves it open, and the times of others for comparison.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::engine_environments::on_all_hosts;
use crate::render::number::seconds;
use dtrain_planner::Plan;
use dtrain_protocol::HostFacts;
use dtrain_recipes::{Devices, Recipe, TrainingEngine};
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
    let on_gpus = !host.gpus.is_empty() && recipe.cluster.devices != Devices::Cpu;
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
        match plan(&Recipe { engine: *engine, ..recipe.clone() }) {
            Ok(planned) => {
                context.out.say(&format!("engine {engine}: {} per step predicted", step_time(&planned)));
                if best.as_ref().is_none_or(|best| is_faster(&planned, best)) {
                    best = Some(planned);
                }
            }
            Err(failure) => {
                context.out.say(&format!("engine {engine}: {}", failure.in_one_line()));
                refusal = Some(failure);
            }
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
