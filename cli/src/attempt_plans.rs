//! Plans of a trial's attempts: that of the trial, or one for another number of hosts.

use crate::render::number::counted;
use crate::run_mode::TrialRun;
use dtrain_planner::{AttemptSpec, Plan, PlanError, PlanRequest, lower_for_engine};
use dtrain_protocol::{Assignment, HostFacts, Rates};
use dtrain_recipes::{Model, Samples, Tunable};
use dtrain_runner::LaunchContext;
use dtrain_runner::driver::HostsPrediction;
use std::borrow::Cow;
use std::num::NonZeroU32;

/// Returns the assignments of all ranks of an attempt: those of the plan, or of a new plan for another number of
/// hosts.
pub(crate) fn assignments(
    task: &TrialRun<'_>,
    rates: Option<&Rates>,
    launching: &LaunchContext,
) -> Result<Vec<Assignment>, String> {
    let launch = AttemptSpec {
        trial: task.trial.clone(),
        attempt: launching.attempt,
        checkpoints: launching.checkpoints.clone(),
        resume: launching.from.clone(),
        spent_seconds: launching.spent_seconds,
    };
    let plan = plan_for_hosts(task.plan, launching.hosts, rates).ok_or_else(|| {
        let found = counted(launching.hosts.into(), "host");
        format!("{found} of {} responded, and no layout fits on so few", task.plan.host.hosts)
    })?;
    lower_for_engine(&plan, plan.best(), &launch).map_err(|error| error.to_string())
}

/// Predicts the steps of the training in `plan` on `hosts` hosts; `None` if no layout fits, or the work of a command is
/// unknown. All numbers of hosts are planned in the same way, so that their predictions can be compared: the plan itself
/// may know more, such as measured steps.
pub(crate) fn predict(plan: &Plan, hosts: u32, rates: Option<&Rates>) -> Option<HostsPrediction> {
    let plan = most_hosts(hosts, |hosts| replan_on_hosts(plan, hosts, rates).ok())?;
    let estimate = plan.best().estimate.as_ref()?;
    let interval = (estimate.step_low.0, estimate.step_high.0);
    Some(HostsPrediction { hosts: plan.host.hosts.get(), step_seconds: estimate.step.0, interval })
}

/// Returns the plan for `hosts` hosts, or for as many of them as a layout fits on; `None` if there is none.
fn plan_for_hosts<'a>(plan: &'a Plan, hosts: u32, rates: Option<&Rates>) -> Option<Cow<'a, Plan>> {
    most_hosts(hosts, |hosts| {
        if hosts == plan.host.hosts {
            Some(Cow::Borrowed(plan))
        } else {
            replan_on_hosts(plan, hosts, rates).ok().map(Cow::Owned)
        }
    })
}

/// Returns what `of` finds for `hosts` hosts, or else for the largest number below; `None` if it finds nothing.
fn most_hosts<T>(hosts: u32, of: impl FnMut(NonZeroU32) -> Option<T>) -> Option<T> {
    (1..=hosts).rev().filter_map(NonZeroU32::new).find_map(of)
}

/// Plans the same training for another number of hosts: model and batch stay, the layout changes.
fn replan_on_hosts(plan: &Plan, hosts: NonZeroU32, rates: Option<&Rates>) -> Result<Plan, PlanError> {
    let best = &plan.best().candidate;
    let mut recipe = plan.recipe.clone();
    let is_foreign = matches!(recipe.model, Model::Command(_));
    if !is_foreign {
        recipe.train.batch = Tunable::Pinned(Samples(best.split.global()));
        recipe.train.learning_rate = Tunable::Pinned(best.learning_rate);
        // Validation keeps its number of samples, so that figures before and after are comparable.
        recipe.validation.samples = Some(Samples(plan.best().run_length.validate_samples));
    }
    // A foreign command keeps its ranks per host; for built-in models the planner chooses the number.
    let each = best.arrangement.layout.world() / plan.host.hosts.get();
    recipe.cluster.ranks = is_foreign.then(|| each * hosts.get());
    dtrain_planner::plan(&PlanRequest {
        recipe: &recipe,
        host: &HostFacts { hosts, ..plan.host.clone() },
        group: None,
        engine: None,
        rates,
        observations: &[],
        corrections: &[],
        data_root: plan.data_root.clone(),
        train_samples: plan.train_samples,
        valid_samples: plan.valid_samples,
        seed: plan.seed,
        program: &plan.program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_recipes::{CheckContext, ConfigLayer, Document, Source, check};

    #[test]
    fn a_command_on_fewer_hosts_keeps_the_values_of_its_recipe() {
        let text = "[model]\nkind = \"command\"\nargv = [\"run\", \"{train.batch}\", \"{cluster.ranks}\"]\n\
            [train]\nbatch = 64\n[cluster]\nranks = 4\n";
        let document = Document::parse(&Source::new("r.toml", ConfigLayer::Recipe, text)).expect("TOML");
        let context = CheckContext { folder: "/".into(), name: "r".into() };
        let recipe = check(&document, &context).expect("a recipe").recipe;
        let host = HostFacts { hosts: NonZeroU32::MIN.saturating_add(1), ..crate::this_host::facts() };
        let plan = dtrain_planner::plan(&PlanRequest {
            data_root: "/".into(),
            seed: 1,
            program: "test",
            ..PlanRequest::new(&recipe, &host)
        });
        let fewer =
            replan_on_hosts(&plan.expect("a plan"), NonZeroU32::MIN, None).expect("two ranks on one host");
        let Model::Command(command) = &fewer.recipe.model else { panic!("it is a command") };
        let argv = dtrain_planner::planning::foreign::command_with_values(&fewer, fewer.best(), command).argv;
        assert_eq!(argv, ["run", "64", "2"]);
    }
}
