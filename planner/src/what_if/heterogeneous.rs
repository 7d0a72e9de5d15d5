//! Plans a recipe on groups of different GPUs from data sheets.

mod explain;

#[cfg(test)]
mod tests;

pub use explain::explain_mixed_cluster;

use super::describe_layout::describe_layout;
use super::world_size::no_layout;
use super::{Asked, DatasheetPlanError, DatasheetPlanRequest, TIE, fitting, problem_on, rate, refuse_part};
use crate::analytic::MissingInputs;
use crate::analytic::heterogeneous::{
    GroupStages, GroupedLayout, GroupedProblem, GroupedSearchResult, PricedGroupedLayout, Pricer, search,
};
use crate::analytic::search as equal;
use crate::analytic::uncertainty::{memory_uncertainty, prediction_interval, step_time_uncertainty};
use crate::choice::tie_break::TieBreak;
use crate::hardware::{Assumption, HostGroup};
use crate::training::batch_size;
use crate::training::decision::Decision;
use dtrain_recipes::{Precision, Recipe};
use serde::Serialize;

/// Number of layouts that the search keeps.
const KEEP: usize = 200;

/// Number of ties that are shown.
const TIES: usize = 5;

/// Number of bytes in a GiB.
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// Plan of a recipe on a heterogeneous cluster.
#[derive(Clone, Debug, Serialize)]
pub struct MixedClusterPlan {
    /// Name of the recipe.
    pub recipe: String,
    /// Number of model parameters.
    pub parameters: u64,
    /// Number of tokens of a sample.
    pub sample_tokens: u64,
    /// Each group as if it trained alone, in the given order.
    pub groups: Vec<StandaloneGroup>,
    /// Precision of matrix products, and the reason for it.
    pub precision: Decision<Precision>,
    /// Facts about the groups that were assumed.
    pub assumptions: Vec<Assumption>,
    /// Name of the engine.
    pub engine: &'static str,
    /// Number of samples per step, and the reason for it.
    pub batch: Decision<u64>,
    /// Peak learning rate, and the reason for it.
    pub learning_rate: Decision<f64>,
    /// Layout that the plan recommends.
    pub choice: MixedLayoutEstimate,
    /// Some layouts within the tie margin of the choice, in order of preference.
    pub ties: Vec<MixedLayoutEstimate>,
    /// Number of optimizer steps; `None` unless the recipe determines it.
    pub steps: Option<u64>,
    /// Seconds of all steps; `None` if their number is unknown.
    pub total_seconds: Option<f64>,
    /// Device hours of all steps, idle devices included; `None` if the number of steps is unknown.
    pub device_hours: Option<f64>,
    /// Number of layouts that were priced.
    pub layouts: u64,
}

/// A group of equal hosts, with its step time as if it trained alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StandaloneGroup {
    /// Name of the group's GPU, and the source of its figures.
    pub gpu: (String, &'static str),
    /// Number of devices of the group.
    pub devices: u32,
    /// Number of devices per host.
    pub per_host: u32,
    /// Seconds of the group's fastest step; `None` if no layout fits.
    pub step_seconds: Option<f64>,
}

/// A layout of a heterogeneous cluster, with its estimate.
#[derive(Clone, Debug, Serialize)]
pub struct MixedLayoutEstimate {
    /// Layout that is estimated.
    pub layout: GroupedLayout,
    /// Estimates for the groups that have stages, in pipeline order.
    pub groups: Vec<GroupEstimate>,
    /// Number of devices in use; the others are idle.
    pub devices: u32,
    /// Estimated seconds per step.
    pub step_seconds: f64,
    /// Lower end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_low: f64,
    /// Upper end of the 80 % prediction interval of the seconds per step.
    pub step_seconds_high: f64,
    /// Seconds of the step by cause.
    pub causes: Vec<(&'static str, f64)>,
    /// Tokens per second of all devices together.
    pub tokens_per_second: f64,
    /// Model FLOPs utilization (MFU) of the devices in use.
    pub model_flops_utilization: f64,
}

/// Estimate for the pipeline stages on one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupEstimate {
    /// Index of the group in the cluster.
    pub group: usize,
    /// Number of layers on each of the group's stages.
    pub layers: Vec<u32>,
    /// Seconds of the group's slowest stage per micro-batch.
    pub seconds: f64,
    /// Peak bytes of the group's heaviest rank.
    pub peak_bytes: f64,
    /// Upper end of the 80 % prediction interval of the peak bytes.
    pub peak_bytes_high: f64,
    /// Bytes of memory of each device.
    pub memory_bytes: f64,
}

/// Plans a recipe on `groups` of equal hosts from data sheets.
pub fn plan_mixed_cluster(
    recipe: &Recipe,
    groups: &[HostGroup],
    engine: &'static dyn crate::engine::Engine,
) -> Result<MixedClusterPlan, DatasheetPlanError> {
    groups.iter().try_for_each(|group| refuse_part(engine, group))?;
    let request = DatasheetPlanRequest { recipe, cluster: groups[0], engine, next: 0 };
    let Asked { problem: asked, batch, precision } = problem_on(&request, groups)?;
    let within = |level: f64| {
        let margin = fitting::memory_margin(&asked, level);
        let safe: Vec<HostGroup> =
            groups.iter().map(|group| HostGroup { memory: group.memory / margin, ..*group }).collect();
        let grouped = GroupedProblem::of(&asked, &safe);
        let found = search(&grouped, 0, KEEP);
        (grouped, found)
    };
    let (mut grouped, mut found) = within(fitting::LEVELS[0]);
    for level in &fitting::LEVELS[1..] {
        if !found.best.is_empty() {
            break;
        }
        (grouped, found) = within(*level);
    }
    let pricer = Pricer::new(&grouped);
    let mut ties = preferred(&found).ok_or_else(|| refusal(&grouped, &pricer, &found))?;
    let estimate = |layout: &GroupedLayout| {
        let mut estimate = layout_estimate(&grouped, &pricer, layout);
        for on in &mut estimate.groups {
            on.memory_bytes = groups[on.group].memory;
        }
        estimate
    };
    let choice = estimate(&ties.remove(0).layout);
    let steps = batch_size::steps(&recipe.objective.stop, &recipe.model, batch.value, None);
    #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^52")]
    let total_seconds = steps.map(|steps| steps as f64 * choice.step_seconds);
    Ok(MixedClusterPlan {
        recipe: recipe.name.clone(),
        parameters: recipe.model.parameters(),
        sample_tokens: recipe.model.sample_tokens(),
        groups: grouped.problems().iter().map(alone).collect(),
        engine: engine.name(),
        learning_rate: rate(recipe, batch.value, choice.step_seconds),
        batch,
        precision,
        assumptions: Assumption::of(groups),
        ties: ties.iter().take(TIES).map(|tie| estimate(&tie.layout)).collect(),
        steps,
        total_seconds,
        device_hours: total_seconds.map(|seconds| seconds / 3600.0 * f64::from(grouped.devices())),
        layouts: found.layouts,
        choice,
    })
}

/// Returns a group as if it trained alone, with the best step time.
fn alone(problem: &equal::SearchProblem) -> StandaloneGroup {
    let HostGroup { gpu, devices, per_host, .. } = problem.cluster;
    StandaloneGroup {
        gpu: (problem.cluster.part(), gpu.source()),
        devices,
        per_host,
        step_seconds: equal::fastest(problem, f64::INFINITY).map(|choice| choice.seconds),
    }
}

/// Returns the layouts tied with the fastest, by preference: memory to spare, fewer groups and model-parallel
/// axes, fewer tensor ranks, the simpler schedule, less recompute, less time.
fn preferred(found: &GroupedSearchResult) -> Option<Vec<&PricedGroupedLayout>> {
    let within = (1.0 + TIE) * found.best.first()?.seconds;
    let mut ties: Vec<&PricedGroupedLayout> =
        found.best.iter().filter(|choice| choice.seconds <= within).collect();
    let order = |choice: &PricedGroupedLayout| {
        let simplicity = TieBreak::of(&choice.layout.config(1).arrangement, choice.full);
        (simplicity.is_tight, choice.layout.runs.len(), simplicity)
    };
    ties.sort_by(|a, b| order(a).cmp(&order(b)).then(a.seconds.total_cmp(&b.seconds)));
    Some(ties)
}

fn refusal(grouped: &GroupedProblem, pricer: &Pricer<'_>, found: &GroupedSearchResult) -> DatasheetPlanError {
    let problem = &grouped.problems()[0];
    let Some(nearest) = &found.nearest else {
        return no_layout(problem, grouped.devices());
    };
    let priced = layout_estimate(grouped, pricer, &nearest.layout);
    let full = |on: &&GroupEstimate| on.peak_bytes / on.memory_bytes;
    let fullest = priced.groups.iter().max_by(|a, b| full(a).total_cmp(&full(b)));
    let fullest = fullest.expect("a layout uses a group");
    DatasheetPlanError::NothingFits {
        needed: fullest.peak_bytes / GIB,
        available: fullest.memory_bytes / GIB,
        nearest: describe_layout(&nearest.layout.config(grouped.batch())),
        ways: Vec::new(),
    }
}

/// Returns the estimate for a layout of the heterogeneous cluster.
fn layout_estimate(
    grouped: &GroupedProblem,
    pricer: &Pricer<'_>,
    layout: &GroupedLayout,
) -> MixedLayoutEstimate {
    let stages = pricer.stages(layout);
    let seconds = stages.step.total();
    let slowest = (0..stages.seconds.len()).max_by(|a, b| stages.seconds[*a].total_cmp(&stages.seconds[*b]));
    let slowest = slowest.expect("a layout has stages");
    let (low, high) = prediction_interval(seconds, doubt(grouped, pricer, layout));
    let model = &grouped.problems()[0].model;
    let tokens = f64::from(grouped.batch()) * model.sequence;
    let peak = |run: &GroupStages| {
        f64::from(run.stages * layout.width()) * grouped.problems()[run.group].cluster.gpu.peak()
    };
    let peaks: f64 = layout.runs.iter().map(peak).sum();
    let on_group = |group: usize| {
        let own = || (0..stages.groups.len()).filter(|stage| stages.groups[*stage] == group);
        let peak_bytes = own().map(|stage| stages.peaks[stage].total()).fold(0.0, f64::max);
        let doubt = memory_uncertainty(&pricer.case(layout, group), MissingInputs::default());
        GroupEstimate {
            group,
            layers: own().map(|stage| stages.layers[stage]).collect(),
            seconds: own().map(|stage| stages.seconds[stage]).fold(0.0, f64::max),
            peak_bytes,
            peak_bytes_high: prediction_interval(peak_bytes, doubt).1,
            memory_bytes: grouped.problems()[group].cluster.memory,
        }
    };
    MixedLayoutEstimate {
        layout: layout.clone(),
        groups: layout.runs.iter().map(|run| on_group(run.group)).collect(),
        devices: layout.devices(),
        step_seconds: seconds,
        step_seconds_low: low,
        step_seconds_high: high,
        causes: stages.step.causes_of(stages.layers[slowest].into()).to_vec(),
        tokens_per_second: tokens / seconds,
        model_flops_utilization: model.flops_per_token() * tokens / (seconds * peaks),
    }
}

/// Returns the standard deviation of ln(measured / estimated step time) of a layout: that of the least
/// certain group, plus that of mixing groups, for which no run is published.
fn doubt(grouped: &GroupedProblem, pricer: &Pricer<'_>, layout: &GroupedLayout) -> f64 {
    let each = layout.runs.iter().map(|run| {
        let case = pricer.case(layout, run.group);
        let gpu = grouped.problems()[run.group].cluster.gpu;
        step_time_uncertainty(&case, gpu, MissingInputs::default()).deviation()
    });
    let own = each.fold(0.0, f64::max);
    let d = &grouped.problems()[0].constants.general.doubt;
    if layout.runs.len() > 1 { own.hypot(d.several) } else { own }
}
