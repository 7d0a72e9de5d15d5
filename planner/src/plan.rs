//! The plan: candidates in order, what each will cost, and where the numbers come from. Immutable, with a digest.

use crate::batch_size::{self, Budget};
use crate::calibrate::{self, Factors, Observation, Residual};
use crate::candidate::{Candidate, Rejected, Rejection};
use crate::compare::{Alternative, alternatives};
use crate::error::PlanError;
use crate::estimate::Estimate;
use crate::judge::{Case, Judge, Source};
use crate::learning_rate::{self, Decision};
use crate::pace::{Pace, pace};
use crate::search::{self, Ranking};
use crate::space::{self, Place, Space};
use crate::when;
use dtrain_protocol::ability::cannot_run;
use dtrain_protocol::{DeviceKind, HostFacts, Rates};
use dtrain_recipes::{Launcher, Model, Recipe, Seconds};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::path::PathBuf;

/// Version of the format of a stored plan; a newer one is refused.
pub const FORMAT: u32 = 1;

/// Candidates kept in a plan.
pub const CHOICES: usize = 20;

/// Everything a plan is made from. The same request gives the same plan.
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// What to train.
    pub recipe: &'a Recipe,
    /// The host that trains.
    pub host: &'a HostFacts,
    /// Its measured speeds for this model; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Earlier trials on the same host with the same model.
    pub observations: &'a [Observation],
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Samples in the training data, when somebody counted them.
    pub train_samples: Option<u64>,
    /// Samples in the validation data, when somebody counted them.
    pub valid_samples: Option<u64>,
    /// Seed of the search.
    pub seed: u64,
    /// Version of the program that plans.
    pub program: &'a str,
}

/// Candidates in order, what each will cost, and where the numbers come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: u32,
    /// What is trained.
    pub recipe: Recipe,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// The host it was made for.
    pub host: HostFacts,
    /// The rates it was made from; `None`: the data sheet.
    pub rates: Option<RatesStamp>,
    /// Correction from earlier trials.
    pub factors: Factors,
    /// Seed of the search.
    pub seed: u64,
    /// Version of the program that planned.
    pub program: String,
    /// Samples in the training data, when they were counted.
    pub train_samples: Option<u64>,
    /// Samples in the validation data, when they were counted.
    pub valid_samples: Option<u64>,
    /// Samples of one optimizer step.
    pub batch: Decision<u64>,
    /// Peak learning rate.
    pub learning_rate: Decision<f64>,
    /// Candidates that fit, the one to train first. Never empty.
    pub choices: Vec<Ranked>,
    /// Number of candidates that were priced.
    pub priced: u64,
    /// The best of every axis value that was not chosen.
    pub alternatives: Vec<Alternative>,
    /// What was left out, by reason, the most frequent first.
    pub rejected: Vec<Rejected>,
}

/// Which rates a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RatesStamp {
    /// [`rates_digest`].
    pub digest: String,
    /// Milliseconds since the Unix epoch.
    pub measured_at_ms: u64,
}

/// A candidate with its price and its pace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// The candidate.
    pub candidate: Candidate,
    /// What it will cost.
    pub estimate: Estimate,
    /// Steps, warm-up, checkpoints, validations.
    pub pace: Pace,
    /// Whether it cannot be told apart from the fastest.
    pub tie: bool,
}

impl Plan {
    /// The candidate to train.
    pub fn best(&self) -> &Ranked {
        self.choices.first().expect("a plan has at least one choice")
    }

    /// blake3 of the plan in canonical JSON, in hex.
    pub fn digest(&self) -> String {
        digest(self)
    }
}

/// blake3 of the canonical JSON of a model, in hex: rates are measured for one model.
pub fn model_digest(model: &Model) -> String {
    digest(model)
}

/// blake3 of the canonical JSON of measured rates, in hex.
pub fn rates_digest(rates: &Rates) -> String {
    digest(rates)
}

// Fields are written in the order of their declaration and maps are ordered, so the text is canonical.
fn digest<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_vec(value).expect("plans, models and rates have string keys only");
    blake3::hash(&text).to_hex().to_string()
}

/// Searches and prices everything the recipe leaves open, and puts it in order.
pub fn plan(request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
    let (recipe, host) = (request.recipe, request.host);
    refuse_what_cannot_be_planned(recipe, host)?;
    let batch = batch(request)?;
    let global = NonZeroU64::new(batch.value).ok_or(PlanError::EmptyBatch)?;
    let space = Space::of(recipe, host, request.rates, global, cannot_run);
    let case = Case {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
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
    let tokens = tokens(request, batch.value, judge.time(first).total());
    let recommended = learning_rate::peak(&recipe.model, &recipe.train.optimizer, batch.value, tokens);
    let learning_rate = learning_rate::within(&recipe.train.learning_rate, recommended);
    let pricing = Pricing { request, judge: &judge, batch: batch.value, learning_rate: learning_rate.value };
    let choices: Vec<Ranked> = order.iter().map(|(place, tie)| pricing.ranked(*place, *tie)).collect();
    let alternatives = alternatives(&pricing, &ranking, &choices[0]);
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        data_root: request.data_root.clone(),
        host: host.clone(),
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
        alternatives,
        rejected,
    })
}

fn refuse_what_cannot_be_planned(recipe: &Recipe, host: &HostFacts) -> Result<(), PlanError> {
    match recipe.cluster.launcher {
        Launcher::Local => {}
        Launcher::Ssh => return Err(PlanError::OtherMachines { launcher: "ssh" }),
        Launcher::Slurm => return Err(PlanError::OtherMachines { launcher: "slurm" }),
        Launcher::Kubernetes => return Err(PlanError::OtherMachines { launcher: "kubernetes" }),
    }
    if let Model::Command(_) = recipe.model {
        return Err(PlanError::ForeignCommand);
    }
    if space::device(recipe, host) == DeviceKind::Cuda && host.gpus.is_empty() {
        return Err(PlanError::NoGpu { host: host.name.clone() });
    }
    let stop = &recipe.objective.stop;
    if stop.steps.is_none()
        && stop.samples.is_none()
        && stop.tokens.is_none()
        && stop.epochs.is_none()
        && stop.time.is_none()
    {
        return Err(PlanError::NoEnd);
    }
    Ok(())
}

/// The global batch: pinned, among the recipe's choices, or recommended for the length of the run.
fn batch(request: &PlanRequest<'_>) -> Result<Decision<u64>, PlanError> {
    let recipe = request.recipe;
    let stop = &recipe.objective.stop;
    let only_epochs =
        stop.steps.is_none() && stop.samples.is_none() && stop.tokens.is_none() && stop.time.is_none();
    if only_epochs && request.train_samples.is_none() {
        return Err(PlanError::SamplesUnknown);
    }
    let device = space::device(recipe, request.host);
    let most = recipe.cluster.ranks.unwrap_or_else(|| space::ranks_most(request.host, device));
    let unit = u64::from(recipe.layout.data.unwrap_or(most).max(1));
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
        rates: request.rates,
        factors: Factors::default(),
    };
    let probe = NonZeroU64::new(8 * u64::from(recipe.layout.data.unwrap_or(1).max(1)));
    let space = Space::of(recipe, request.host, request.rates, probe.unwrap_or(NonZeroU64::MIN), cannot_run);
    let judge = Judge::new(case, &space);
    let ranking = search::rank(&judge, request.seed, 1);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    ranking.best.first().map_or(1.0, |(seconds, _)| space.batch.get() as f64 / seconds.max(1e-9))
}

/// Tokens the run will see, by its stop condition or by its time.
fn tokens(request: &PlanRequest<'_>, batch: u64, step_seconds: f64) -> f64 {
    let pace = pace(request.recipe, batch, request.train_samples, request.valid_samples, step_seconds);
    #[expect(clippy::cast_precision_loss, reason = "tokens are far below 2^52")]
    let tokens = (pace.schedule_steps * batch * request.recipe.model.sample_tokens()) as f64;
    tokens
}

/// The correction that earlier trials suggest. Every trial is priced by the model as it is now.
fn factors(case: Case<'_>, observations: &[Observation]) -> Factors {
    let mut residuals: Vec<Residual> = observations.iter().filter_map(|o| residual(case, o)).collect();
    // The order of the ledger must not change the plan.
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
/// the others, the simplest of them first: fewer ranks, then nothing recomputed, then the least memory.
fn in_order(judge: &Judge<'_>, ranking: &Ranking) -> Vec<(Place, bool)> {
    let Some((fastest, first)) = ranking.best.first().copied() else { return Vec::new() };
    let limit = fastest * (1.0 + judge.doubt(first).1);
    let simplicity = |place: Place| {
        let way = judge.space().ways[place.way as usize];
        (way.layout.world(), way.recompute, way.zero, judge.memory(place).total(), place)
    };
    let mut ties: Vec<Place> = ranking.best.iter().filter(|(s, _)| *s <= limit).map(|(_, p)| *p).collect();
    ties.sort_by_key(|place| simplicity(*place));
    let rest = ranking.best.iter().filter(|(s, _)| *s > limit).map(|(_, p)| (*p, false));
    ties.into_iter().map(|place| (place, true)).chain(rest).collect()
}

/// What was left out before and during pricing.
fn rejected(space: &Space, judge: &Judge<'_>, ranking: &Ranking) -> Vec<Rejected> {
    let mut left_out = space.left_out.clone();
    if let Some((_, place)) = ranking.nearest {
        let way = &space.ways[place.way as usize];
        let (needed, available) = (judge.memory(place).total(), judge.available(way));
        let rejection = Rejection::TooMuchMemory { needed, available };
        left_out.add(ranking.too_large, &rejection, || space.candidate(place, 0.0).to_string(), 0);
    }
    left_out.groups()
}

/// What it takes to spell a place out.
pub(crate) struct Pricing<'a> {
    request: &'a PlanRequest<'a>,
    judge: &'a Judge<'a>,
    batch: u64,
    learning_rate: f64,
}

impl Pricing<'_> {
    /// The place with its price and its pace.
    pub(crate) fn ranked(&self, place: Place, tie: bool) -> Ranked {
        let (request, judge) = (self.request, self.judge);
        let candidate = judge.space().candidate(place, self.learning_rate);
        let breakdown = judge.time(place);
        let step = breakdown.total();
        let pace = pace(request.recipe, self.batch, request.train_samples, request.valid_samples, step);
        let (doubt, resolution) = judge.doubt(place);
        let memory = judge.memory(place);
        #[expect(clippy::cast_precision_loss, reason = "tokens are far below 2^52")]
        let tokens = (self.batch * request.recipe.model.sample_tokens()) as f64;
        let total = total(request.recipe, &pace, &candidate, step, breakdown.forward);
        let (low, high) = (1.0 / (1.0 + doubt), 1.0 + doubt);
        let ends = |factor: f64| match (pace.steps, request.recipe.objective.stop.time) {
            (Some(_), Some(time)) => Seconds((total * factor).min(time.0)),
            (None, Some(time)) => time,
            (Some(_) | None, None) => Seconds(total * factor),
        };
        let estimate = Estimate {
            step: Seconds(step),
            step_low: Seconds(step * low),
            step_high: Seconds(step * high),
            breakdown,
            memory,
            memory_peak: memory.total(),
            memory_available: judge.available(&judge.space().ways[place.way as usize]),
            tokens_per_second: tokens / step,
            steps: pace.steps,
            total: ends(1.0),
            total_low: ends(low),
            total_high: ends(high),
            resolution,
            source: self.source(place),
        };
        Ranked { candidate, estimate, pace, tie }
    }

    pub(crate) fn judge(&self) -> &Judge<'_> {
        self.judge
    }

    /// Where the constants come from, in words.
    fn source(&self, place: Place) -> String {
        let measured = self.request.rates.map_or(0, |rates| rates.measured_at_ms);
        let day = when::day(measured);
        let base = match self.judge.source(place) {
            Source::Measured => format!("measured on this host on {day}"),
            Source::Nearby(1) => format!("measured on this host on {day} with one rank, carried over"),
            Source::Nearby(ranks) => {
                format!("measured on this host on {day} with {ranks} ranks, carried over")
            }
            Source::Datasheet => "data sheet, not measured: `dtrain probe` would narrow it".into(),
        };
        let factors = self.judge.factors();
        if factors.observations == 0 {
            return base;
        }
        let trials = if factors.observations == 1 { "trial" } else { "trials" };
        format!(
            "{base}; corrected by {} earlier {trials}: compute × {:.2}, communication × {:.2}",
            factors.observations, factors.compute, factors.communication
        )
    }
}

/// Seconds of all steps and validations.
fn total(recipe: &Recipe, pace: &Pace, candidate: &Candidate, step: f64, forward: f64) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let steps = pace.steps.unwrap_or(pace.schedule_steps) as f64;
    let forward_per_sample = forward / candidate.split.global() as f64;
    let validations = (steps / pace.validate_every as f64).ceil();
    let passes = if recipe.data.is_some() { validations * pace.validate_samples as f64 } else { 0.0 };
    steps * step + passes * forward_per_sample
}

#[cfg(test)]
mod tests;
