//! The planner: decides the batch, searches and prices the candidates, and ranks them.

pub mod alternatives;
pub mod drift;
pub mod error;
mod estimator;
pub mod explain;
pub mod foreign;
pub mod learning_rate_change;
pub mod lower;
pub mod micro_batches_to_measure;
pub mod plan;
pub mod precheck;
pub mod search;
pub mod step_profile;
pub mod written;

use self::search::Ranking;
use crate::choice::tie_break::TieBreak;
use crate::engine::engine_of_recipe;
use crate::layout::rejection::{RejectedGroup, Rejection};
use crate::layout::space::{self, CandidateId, CandidateSpace, Capabilities};
use crate::planning::alternatives::alternatives;
use crate::planning::error::PlanError;
use crate::planning::estimator::{Estimator, step_costs};
use crate::planning::plan::{FORMAT, Plan, PlanRequest, RankedCandidate, RatesStamp, rates_digest};
use crate::planning::precheck::{engine_can_train, precheck, require_full_batch};
use crate::price::cost_model::CostModel;
use crate::price::estimate::TimeBreakdown;
use crate::rates::calibrate::{self, Factors, Residual, StepObservation};
use crate::rates::cost_inputs::CostInputs;
use crate::training::batch_size::{self, TrainingBudget};
use crate::training::decision::Decision;
use crate::training::learning_rate;
use crate::training::learning_rate_correction;
use crate::training::training_schedule::training_schedule;
use dtrain_recipes::{Model, StopConditions};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// Largest number of candidates kept in a plan.
pub const CHOICES: usize = 20;

/// Makes the plan of a request: searches and prices all that the recipe leaves open, and ranks the
/// candidates.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
    if request.engine.is_none() {
        engine_can_train(request.recipe)?;
    }
    let engine = request.engine.or_else(|| engine_of_recipe(request.recipe.engine));
    let request = &PlanRequest { engine, ..request.clone() };
    let (recipe, host) = (request.recipe, request.host);
    precheck(recipe, Some(host), request.train_samples)?;
    if let Model::Command(_) = recipe.model {
        return foreign::plan(request);
    }
    if !has_end(&recipe.objective.stop) {
        return Err(PlanError::NoEnd);
    }
    let batch = batch(request)?;
    let global = NonZeroU64::new(batch.value).ok_or(PlanError::EmptyBatch)?;
    require_full_batch(batch.value, request.train_samples)?;
    let space =
        CandidateSpace::of(recipe, host, request.rates, global, &Capabilities::of(recipe, request.engine));
    let case = CostInputs {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        group: request.group,
        engine: request.engine,
        rates: request.rates,
        factors: Factors::default(),
    };
    let factors = factors(case, request.observations);
    let cost_model = CostModel::new(CostInputs { factors, ..case }, &space);
    let mut ranking = search::rank(&cost_model, request.seed, CHOICES);
    ranking.refine(&cost_model);
    let rejected = rejected_groups(&space, &cost_model, &ranking);
    let order = by_preference(&cost_model, &ranking);
    let Some((first, _)) = order.first().copied() else {
        return Err(PlanError::NothingFits { rejected });
    };
    let tokens = tokens(request, batch.value, &cost_model.time(first));
    let recommended = learning_rate::recommended_peak(&recipe.model, &recipe.train, batch.value, tokens);
    let recommended =
        learning_rate_correction::apply_corrections(recommended, batch.value, request.corrections);
    let sync = space.options[first.option as usize].arrangement.sync;
    let recommended = learning_rate::for_stale_gradients(recommended, sync.staleness);
    let learning_rate = learning_rate::clamp_to_choice(&recipe.train.learning_rate, recommended);
    let estimator = Estimator {
        request,
        cost_model: &cost_model,
        batch: batch.value,
        learning_rate: learning_rate.value,
    };
    let choices: Vec<RankedCandidate> =
        order.iter().map(|(id, is_tied)| estimator.ranked_candidate(*id, *is_tied)).collect();
    let tradeoffs = estimator.tradeoffs(order[0].0, &ranking);
    let alternatives = alternatives(&estimator, &ranking, &choices[0]);
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        settings: BTreeMap::new(),
        data_root: request.data_root.clone(),
        host: host.clone(),
        engine: None,
        rates: request
            .rates
            .map(|rates| RatesStamp { digest: rates_digest(rates), measured_at_ms: rates.measured_at_ms }),
        factors,
        seed: request.seed,
        program: request.program.into(),
        train_samples: request.train_samples,
        valid_samples: request.valid_samples,
        batch,
        learning_rate,
        choices,
        priced: ranking.priced,
        tradeoffs: Some(tradeoffs),
        alternatives,
        rejected,
    })
}

/// Returns `true` if a stop condition other than a target ends the training.
fn has_end(stop: &StopConditions) -> bool {
    stop.steps.is_some()
        || stop.samples.is_some()
        || stop.tokens.is_some()
        || stop.epochs.is_some()
        || stop.time.is_some()
}

/// Decides the global batch: pinned, among the recipe's choices, or recommended for the length of the
/// training.
pub(crate) fn batch(request: &PlanRequest<'_>) -> Result<Decision<u64>, PlanError> {
    let recipe = request.recipe;
    if recipe.objective.stop.epochs.is_some() && request.train_samples.is_none() {
        return Err(PlanError::SamplesUnknown);
    }
    let device = space::device(recipe, request.host);
    let most = recipe.cluster.ranks.unwrap_or_else(|| space::max_ranks(request.host, device));
    let unit = match &recipe.layout.shares {
        Some(shares) => shares.iter().map(|share| u64::from(*share)).sum(),
        None => u64::from(recipe.layout.data.unwrap_or(most).max(1)),
    };
    let unit = recipe.layout.micro_batch.map_or(unit, |micro| unit * u64::from(micro));
    let budget = budget(request);
    let recommended = batch_size::recommended(&recipe.model, budget, request.train_samples, unit);
    Ok(batch_size::clamp_to_choice(&recipe.train.batch, recommended))
}

/// Returns the expected length of the training; a time limit becomes samples by a rough speed.
fn budget(request: &PlanRequest<'_>) -> TrainingBudget {
    let recipe = request.recipe;
    let speed = rough_speed(request);
    batch_size::budget(&recipe.objective.stop, &recipe.model, request.train_samples, speed)
}

/// Returns a rough speed of the training in samples per second, before the batch is known: that of the best
/// number of ranks at eight samples per replica.
fn rough_speed(request: &PlanRequest<'_>) -> f64 {
    let recipe = request.recipe;
    let case = CostInputs {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host: request.host,
        group: request.group,
        engine: request.engine,
        rates: request.rates,
        factors: Factors::default(),
    };
    let replicas = match &recipe.layout.shares {
        Some(shares) => shares.iter().sum(),
        None => recipe.layout.data.unwrap_or(1),
    };
    let probe = NonZeroU64::new(8 * u64::from(replicas.max(1)));
    let abilities = Capabilities::of(recipe, request.engine);
    let batch = probe.unwrap_or(NonZeroU64::MIN);
    let space = CandidateSpace::of(recipe, request.host, request.rates, batch, &abilities);
    let cost_model = CostModel::new(case, &space);
    let ranking = search::rank(&cost_model, request.seed, 1);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    ranking.best.first().map_or(1.0, |(seconds, _)| space.batch.get() as f64 / seconds.max(1e-9))
}

/// Returns the number of tokens in the training, by its stop condition or by its time limit.
fn tokens(request: &PlanRequest<'_>, batch: u64, step: &TimeBreakdown) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
    let cost = step_costs(step, batch);
    let pace = training_schedule(request.recipe, batch, request.train_samples, request.valid_samples, cost);
    pace.schedule_steps as f64 * (batch * request.recipe.model.sample_tokens()) as f64
}

/// Fits the correction factors to the newest trials, each priced by the current cost model.
fn factors(case: CostInputs<'_>, observations: &[StepObservation]) -> Factors {
    let newest = calibrate::newest_observations(observations);
    let mut residuals: Vec<Residual> = newest.iter().filter_map(|o| residual(case, o)).collect();
    // The order of observations must not change the plan.
    residuals.sort_by(|a, b| {
        a.measured
            .total_cmp(&b.measured)
            .then(a.compute.total_cmp(&b.compute))
            .then(a.communication.total_cmp(&b.communication))
    });
    calibrate::fit(&residuals)
}

fn residual(case: CostInputs<'_>, observation: &StepObservation) -> Option<Residual> {
    let candidate = &observation.candidate;
    let space = CandidateSpace::single(candidate)?;
    let cost_model = CostModel::new(case, &space);
    let time = cost_model.time(CandidateId { option: 0, micro: 0 });
    Some(Residual {
        compute: time.total() - time.communication,
        communication: time.communication,
        measured: observation.measured.0,
    })
}

/// Returns the kept candidates, the recommended one first, each with `true` if it ties with the fastest. Ties
/// come before the others, the simplest first ([`TieBreak`]), and of equals the one whose slow end is fastest
/// (so a measured micro-batch precedes an interpolated one).
fn by_preference(cost_model: &CostModel<'_>, ranking: &Ranking) -> Vec<(CandidateId, bool)> {
    let Some((fastest, first)) = ranking.best.first().copied() else { return Vec::new() };
    let limit = fastest * (1.0 + cost_model.uncertainty(first).1);
    let slow_end = |(seconds, id): (f64, CandidateId)| seconds * (1.0 + cost_model.uncertainty(id).0);
    let simplicity = |id: CandidateId| {
        let option = cost_model.space().options[id.option as usize];
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory are far below 2^52")]
        let full = cost_model.memory(id).total().0 as f64 / cost_model.available(&option).0 as f64;
        TieBreak::of(&option.arrangement, full)
    };
    let (mut ties, rest): (Vec<_>, Vec<_>) = ranking.best.iter().copied().partition(|(s, _)| *s <= limit);
    ties.sort_by(|a, b| {
        simplicity(a.1).cmp(&simplicity(b.1)).then(slow_end(*a).total_cmp(&slow_end(*b))).then(a.1.cmp(&b.1))
    });
    let ties = ties.into_iter().map(|(_, id)| (id, true));
    ties.chain(rest.into_iter().map(|(_, id)| (id, false))).collect()
}

/// Returns the candidates that were rejected before and during pricing, grouped by reason.
fn rejected_groups(
    space: &CandidateSpace,
    cost_model: &CostModel<'_>,
    ranking: &Ranking,
) -> Vec<RejectedGroup> {
    let mut left_out = space.left_out.clone();
    if let Some((_, id)) = ranking.nearest {
        let option = &space.options[id.option as usize];
        let (needed, available) = (cost_model.memory(id).total(), cost_model.available(option));
        let rejection = match cost_model.oversized_tensor(id) {
            Some((tensor, limit)) if needed <= available => {
                Rejection::TooLargeTensor { tensor: tensor.what.to_owned(), needed: tensor.bytes, limit }
            }
            _ => Rejection::TooMuchMemory { needed, available },
        };
        left_out.add(ranking.too_large, &rejection, || space.candidate(id, 0.0).to_string(), 0);
    }
    left_out.groups()
}

#[cfg(test)]
mod tests;
