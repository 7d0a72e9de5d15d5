//! Plans models that only dtrain's own worker trains, for hosts that are known from data sheets.
//!
//! These are perceptrons, residual networks and custom networks. [`planning::plan()`] prices them as on hosts
//! that are at hand before anything is measured, with the links and the network of the [`HostGroup`].

use super::{Advice, DatasheetPlanError};
use crate::engine::{DTRAIN, Engine};
use crate::hardware::{AcceleratorKind, Assumption, HostGroup};
use crate::planning;
use crate::planning::plan::{Plan, PlanRequest};
use crate::planning::step_profile::step_profile_elsewhere;
use crate::price::step_profile::StepProfile;
use dtrain_protocol::{DeviceKind, Gpu, HostFacts};
use dtrain_recipes::{Devices, Model, Recipe};
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// A recipe and hosts to plan for dtrain's own worker.
#[derive(Clone, Debug)]
pub struct WorkerPlanRequest<'a> {
    /// Recipe to plan.
    pub recipe: &'a Recipe,
    /// Groups of equal hosts to train on; more than one are refused.
    pub groups: &'a [HostGroup],
    /// Engine that was asked for; another than dtrain's own worker is refused.
    pub engine: &'static dyn Engine,
    /// Numbers of training and validation samples; `None` where they were not counted.
    pub samples: Option<(u64, u64)>,
    /// Folder against which relative data paths in the recipe are resolved.
    pub data_root: PathBuf,
    /// Version of the program that makes the plan.
    pub program: &'a str,
}

/// Plan for dtrain's own worker on hosts that are known from data sheets.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerPlan {
    /// The plan; its hosts have no number of cores and no memory, which are unknown.
    pub plan: Plan,
    /// Hosts that the plan was made for.
    #[serde(skip)]
    pub group: HostGroup,
    /// Facts about the hosts that were assumed.
    pub assumptions: Vec<Assumption>,
    /// Seconds of a step in which ranks exchange gradients and weights and compute nothing.
    pub exchange_seconds: f64,
    /// Effects of single changes to the hosts that help, most helpful first.
    pub advice: Vec<Advice>,
    /// Profile of one step of the choice; `None` if its stages deadlock.
    #[serde(skip)]
    pub profile: Option<StepProfile>,
}

/// Returns the kind of `model` if dtrain's own worker alone trains it, as recipes name it.
pub fn worker_only_kind(model: &Model) -> Option<&'static str> {
    match model {
        Model::Mlp(_) => Some("mlp"),
        Model::Cnn(_) => Some("cnn"),
        Model::Custom(_) => Some("custom"),
        Model::Decoder(_) | Model::Command(_) => None,
    }
}

/// Plans the recipe of `request` for dtrain's own worker. `Err` for a model that other engines train too, for
/// another engine, for different hosts, and where nothing fits.
pub fn plan_for_worker(request: &WorkerPlanRequest<'_>) -> Result<WorkerPlan, DatasheetPlanError> {
    let recipe = request.recipe;
    let kind = worker_only_kind(&recipe.model).ok_or(DatasheetPlanError::NotWorkerOnly)?;
    if request.engine.name() != DTRAIN.name() {
        return Err(DatasheetPlanError::OtherEngine { kind, engine: request.engine.title() });
    }
    let [group] = *request.groups else { return Err(DatasheetPlanError::DifferentHosts { kind }) };
    if group.gpu.kind() != AcceleratorKind::Nvidia {
        let (engine, part) = (DTRAIN.title(), group.part());
        return Err(DatasheetPlanError::Part { engine, part, instead: String::new() });
    }
    if recipe.cluster.devices == Devices::Cpu {
        return Err(DatasheetPlanError::Devices);
    }
    let plan = plan_on(request, group)?;
    let profile = step_profile_elsewhere(&plan, group);
    let exchange = profile.as_ref().map(|profile| profile.causes.gradients + profile.causes.weights);
    Ok(WorkerPlan {
        assumptions: assumptions(&group),
        exchange_seconds: exchange.unwrap_or_default(),
        advice: advice(request, group, &plan),
        profile,
        plan,
        group,
    })
}

fn plan_on(request: &WorkerPlanRequest<'_>, group: HostGroup) -> Result<Plan, DatasheetPlanError> {
    let (host, recipe) = (host_facts(&group), request.recipe);
    let request = PlanRequest {
        group: Some(group),
        data_root: request.data_root.clone(),
        train_samples: request.samples.map(|(train, _)| train),
        valid_samples: request.samples.map(|(_, valid)| valid),
        seed: recipe.train.seed,
        program: request.program,
        ..PlanRequest::new(recipe, &host)
    };
    planning::plan(&request).map_err(DatasheetPlanError::Worker)
}

/// Returns the facts of the hosts of `group`; unknown properties are zero.
pub(super) fn host_facts(group: &HostGroup) -> HostFacts {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
    let memory_bytes = group.memory as u64;
    let hosts = NonZeroU32::new(group.devices / group.per_host).unwrap_or(NonZeroU32::MIN);
    let gpu = Gpu { device: DeviceKind::Cuda, name: group.part(), memory_bytes };
    HostFacts {
        name: format!("{hosts}x{} {}", group.per_host, gpu.name),
        hosts,
        processor: String::new(),
        cores: 0,
        memory_bytes: 0,
        gpus: vec![gpu; group.per_host as usize],
        links: None,
    }
}

fn assumptions(group: &HostGroup) -> Vec<Assumption> {
    let mut all = Assumption::of(&[*group]);
    all.push(Assumption {
        what: "hosts with cores and memory enough to feed their GPUs".into(),
        correct: "dtrain probe".into(),
    });
    all
}

/// Returns the changes to the hosts of `group` that make a training faster than `plan`, most helpful first.
fn advice(request: &WorkerPlanRequest<'_>, group: HostGroup, plan: &Plan) -> Vec<Advice> {
    let HostGroup { devices, per_host, network, .. } = group;
    let hosts = devices / per_host;
    let of_hosts = |hosts: u32| HostGroup { devices: hosts.saturating_mul(per_host), ..group };
    let mut changes = vec![("twice the hosts".to_owned(), of_hosts(hosts.saturating_mul(2)))];
    if hosts > 1 {
        changes.push(("a network twice as fast".into(), group.with_network(2.0 * network.bandwidth)));
    }
    let fewer =
        std::iter::successors(Some(hosts / 2), |hosts| Some(hosts / 2)).take_while(|fewer| *fewer > 0);
    changes.extend(fewer.map(|fewer| {
        let s = if fewer == 1 { "" } else { "s" };
        (format!("{fewer} host{s} instead of {hosts}"), of_hosts(fewer))
    }));
    let speed = |plan: &Plan| plan.best().price().tokens_per_second;
    let now = speed(plan);
    let effect = |(change, group): (String, HostGroup)| {
        let changed = plan_on(request, group).ok()?;
        let step_seconds = changed.best().price().step.0;
        let gain = speed(&changed) / now - 1.0;
        (gain > 0.0).then_some(Advice { change, speed: gain, step_seconds })
    };
    let mut advice: Vec<Advice> = changes.into_iter().filter_map(effect).collect();
    advice.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    advice
}
