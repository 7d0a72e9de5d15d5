//! From a request to a plan: decides the batch, searches, prices, puts in order.

pub mod error;
pub mod foreign;
pub mod plan;
pub mod precheck;
pub(crate) mod random;
pub mod saving;
pub mod search;

use self::search::Ranking;
use crate::choice::compare::alternatives;
use crate::choice::tie::Simplicity;
use crate::layout::candidate::{Rejected, Rejection};
use crate::layout::space::{self, Abilities, Place, Space};
use crate::planning::error::PlanError;
use crate::planning::plan::{FORMAT, Plan, PlanRequest, Ranked, RatesStamp, rates_digest};
use crate::planning::precheck::{fills, precheck};
use crate::price::estimate::Breakdown;
use crate::price::judge::{Case, Judge};
use crate::price::pricing::{Pricing, cost};
use crate::rates::calibrate::{self, Factors, Observation, Residual};
use crate::training::batch_size::{self, Budget};
use crate::training::correction;
use crate::training::learning_rate::{self, Decision};
use crate::training::pace::pace;
use dtrain_recipes::{Model, Stop};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

/// Candidates kept in a plan.
pub const CHOICES: usize = 20;

/// Searches and prices everything the recipe leaves open, and puts it in order.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
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
    fills(batch.value, request.train_samples)?;
    let space = Space::of(recipe, host, request.rates, global, &Abilities::of(recipe, request.engine));
    let case = Case {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        engine: request.engine,
        rates: request.rates,
        factors: Factors::default(),
    };
    let factors = factors(case, request.observations);
    let judge = Judge::new(Case { factors, ..case }, &space);
    let mut ranking = search::rank(&judge, request.seed, CHOICES);
    ranking.refine(&judge);
    let rejected = rejected(&space, &judge, &ranking);
    let order = in_order(&judge, &ranking);
    let Some((first, _)) = order.first().copied() else {
        return Err(PlanError::NothingFits { rejected });
    };
    let tokens = tokens(request, batch.value, &judge.time(first));
    let recommended = learning_rate::peak(&recipe.model, &recipe.train.optimizer, batch.value, tokens);
    let recommended = correction::corrected(recommended, batch.value, request.corrections);
    let sync = space.ways[first.way as usize].arrangement.sync;
    let recommended = learning_rate::late(recommended, sync.staleness);
    let learning_rate = learning_rate::within(&recipe.train.learning_rate, recommended);
    let pricing = Pricing { request, judge: &judge, batch: batch.value, learning_rate: learning_rate.value };
    let choices: Vec<Ranked> = order.iter().map(|(place, tie)| pricing.ranked(*place, *tie)).collect();
    let weighed = pricing.weighed(order[0].0, &ranking);
    let alternatives = alternatives(&pricing, &ranking, &choices[0]);
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
        weighed: Some(weighed),
        alternatives,
        rejected,
    })
}

/// Whether anything but a target ends the training.
fn has_end(stop: &Stop) -> bool {
    stop.steps.is_some()
        || stop.samples.is_some()
        || stop.tokens.is_some()
        || stop.epochs.is_some()
        || stop.time.is_some()
}

/// The global batch: pinned, among the recipe's choices, or recommended for the length of the run.
pub(crate) fn batch(request: &PlanRequest<'_>) -> Result<Decision<u64>, PlanError> {
    let recipe = request.recipe;
    if recipe.objective.stop.epochs.is_some() && request.train_samples.is_none() {
        return Err(PlanError::SamplesUnknown);
    }
    let device = space::device(recipe, request.host);
    let most = recipe.cluster.ranks.unwrap_or_else(|| space::ranks_most(request.host, device));
    let unit = match &recipe.layout.shares {
        Some(shares) => shares.iter().map(|share| u64::from(*share)).sum(),
        None => u64::from(recipe.layout.data.unwrap_or(most).max(1)),
    };
    let unit = recipe.layout.micro_batch.map_or(unit, |micro| unit * u64::from(micro));
    let budget = budget(request);
    let recommended = batch_size::recommended(&recipe.model, budget, request.train_samples, unit);
    Ok(batch_size::within(&recipe.train.batch, recommended))
}

/// The length of the run; a time is turned into samples by the speed of one rank at a middling micro-batch.
fn budget(request: &PlanRequest<'_>) -> Budget {
    let recipe = request.recipe;
    let speed = rough_speed(request);
    batch_size::budget(&recipe.objective.stop, &recipe.model, request.train_samples, speed)
}

/// Samples a second with the best number of ranks at a micro-batch of 8, before the batch is known.
fn rough_speed(request: &PlanRequest<'_>) -> f64 {
    let recipe = request.recipe;
    let case = Case {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host: request.host,
        engine: request.engine,
        rates: request.rates,
        factors: Factors::default(),
    };
    let replicas = match &recipe.layout.shares {
        Some(shares) => shares.iter().sum(),
        None => recipe.layout.data.unwrap_or(1),
    };
    let probe = NonZeroU64::new(8 * u64::from(replicas.max(1)));
    let abilities = Abilities::of(recipe, request.engine);
    let batch = probe.unwrap_or(NonZeroU64::MIN);
    let space = Space::of(recipe, request.host, request.rates, batch, &abilities);
    let judge = Judge::new(case, &space);
    let ranking = search::rank(&judge, request.seed, 1);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    ranking.best.first().map_or(1.0, |(seconds, _)| space.batch.get() as f64 / seconds.max(1e-9))
}

/// Tokens the run will see, by its stop condition or by its time.
fn tokens(request: &PlanRequest<'_>, batch: u64, step: &Breakdown) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "an estimate needs no more than 52 bits")]
    let cost = cost(step, batch);
    let pace = pace(request.recipe, batch, request.train_samples, request.valid_samples, cost);
    pace.schedule_steps as f64 * (batch * request.recipe.model.sample_tokens()) as f64
}

/// The correction that the newest trials suggest. Every trial is priced by the model as it is now.
fn factors(case: Case<'_>, observations: &[Observation]) -> Factors {
    let newest = calibrate::newest(observations);
    let mut residuals: Vec<Residual> = newest.iter().filter_map(|o| residual(case, o)).collect();
    // The order of the newest must not change the plan.
    residuals.sort_by(|a, b| {
        a.measured
            .total_cmp(&b.measured)
            .then(a.compute.total_cmp(&b.compute))
            .then(a.communication.total_cmp(&b.communication))
    });
    calibrate::fit(&residuals)
}

fn residual(case: Case<'_>, observation: &Observation) -> Option<Residual> {
    let candidate = &observation.candidate;
    let space = Space::single(candidate)?;
    let judge = Judge::new(case, &space);
    let time = judge.time(Place { way: 0, micro: 0 });
    Some(Residual {
        compute: time.total() - time.communication,
        communication: time.communication,
        measured: observation.measured.0,
    })
}

/// The kept places, the one to train first. Candidates that cannot be told apart from the fastest come before
/// the others, the simplest first ([`Simplicity`]), and of equals the one whose slow end is fastest (so a measured micro-batch goes before a guessed one).
fn in_order(judge: &Judge<'_>, ranking: &Ranking) -> Vec<(Place, bool)> {
    let Some((fastest, first)) = ranking.best.first().copied() else { return Vec::new() };
    let limit = fastest * (1.0 + judge.doubt(first).1);
    let slow_end = |(seconds, place): (f64, Place)| seconds * (1.0 + judge.doubt(place).0);
    let simplicity = |place: Place| {
        let way = judge.space().ways[place.way as usize];
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory are far below 2^52")]
        let full = judge.memory(place).total().0 as f64 / judge.available(&way).0 as f64;
        Simplicity::of(&way.arrangement, full)
    };
    let (mut ties, rest): (Vec<_>, Vec<_>) = ranking.best.iter().copied().partition(|(s, _)| *s <= limit);
    ties.sort_by(|a, b| {
        simplicity(a.1).cmp(&simplicity(b.1)).then(slow_end(*a).total_cmp(&slow_end(*b))).then(a.1.cmp(&b.1))
    });
    let ties = ties.into_iter().map(|(_, place)| (place, true));
    ties.chain(rest.into_iter().map(|(_, place)| (place, false))).collect()
}

/// What was left out before and during pricing.
fn rejected(space: &Space, judge: &Judge<'_>, ranking: &Ranking) -> Vec<Rejected> {
    let mut left_out = space.left_out.clone();
    if let Some((_, place)) = ranking.nearest {
        let way = &space.ways[place.way as usize];
        let (needed, available) = (judge.memory(place).total(), judge.available(way));
        let rejection = match judge.too_large(place) {
            Some((tensor, most)) if needed <= available => {
                Rejection::TooLargeTensor { what: tensor.what.to_owned(), needed: tensor.bytes, most }
            }
            _ => Rejection::TooMuchMemory { needed, available },
        };
        left_out.add(ranking.too_large, &rejection, || space.candidate(place, 0.0).to_string(), 0);
    }
    left_out.groups()
}

#[cfg(test)]
mod tests;
