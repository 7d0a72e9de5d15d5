//! Builds the estimate of a candidate, with its interval, its training schedule and the source of the speeds.

use crate::choice::tradeoffs::{CostBasis, Tradeoff, Tradeoffs};
use crate::layout::candidate::Candidate;
use crate::layout::space::CandidateId;
use crate::planning::plan::{PlanRequest, RankedCandidate};
use crate::planning::search::Ranking;
use crate::price::candidate_cost::CandidateCost;
use crate::price::cost_model::CostModel;
use crate::price::estimate::{Estimate, TimeBreakdown};
use crate::rates::speeds::SpeedSource;
use crate::training::batch_size;
use crate::training::calendar;
use crate::training::training_schedule::{self, TrainingSchedule};
use dtrain_protocol::HostNetwork;
use dtrain_recipes::Seconds;

/// Shortest plausible duration of a step, in seconds; shorter ones are raised to it.
pub(crate) const STEP_LEAST: f64 = 1e-9;

/// Inputs for the estimates of all candidates of a plan.
pub(crate) struct Estimator<'a> {
    pub(crate) request: &'a PlanRequest<'a>,
    pub(crate) cost_model: &'a CostModel<'a>,
    pub(crate) batch: u64,
    pub(crate) learning_rate: f64,
}

impl Estimator<'_> {
    /// Returns candidate `id` with its estimate and its training schedule.
    pub(crate) fn ranked_candidate(&self, id: CandidateId, is_tied: bool) -> RankedCandidate {
        let (request, cost_model) = (self.request, self.cost_model);
        let candidate = cost_model.space().candidate(id, self.learning_rate);
        let breakdown = cost_model.time(id);
        let cost = step_costs(&breakdown, self.batch);
        let step = cost.step;
        let pace = self.training_schedule(cost);
        let (doubt, resolution) = cost_model.uncertainty(id);
        let memory = cost_model.memory(id);
        #[expect(clippy::cast_precision_loss, reason = "tokens are far below 2^52")]
        let tokens = (self.batch * request.recipe.model.sample_tokens()) as f64;
        let total = total_seconds(&pace, step);
        let (low, high) = (1.0 / (1.0 + doubt), 1.0 + doubt);
        let first_step = cost_model.first_step(id);
        let first = first_step.unwrap_or(0.0);
        let ends = |factor: f64, first: f64| match (pace.steps, request.recipe.objective.stop.time) {
            (Some(_), Some(time)) => Seconds((total * factor + first).min(time.0)),
            (None, Some(time)) => time,
            (Some(_) | None, None) => Seconds(total * factor + first),
        };
        let estimate = Estimate {
            step: Seconds(step),
            step_low: Seconds(step * low),
            step_high: Seconds(step * high),
            breakdown,
            memory,
            memory_peak: memory.total(),
            memory_available: cost_model.available(&cost_model.space().options[id.option as usize]),
            traffic: cost_model.traffic(id),
            tokens_per_second: tokens / step,
            steps: pace.steps,
            first_step: first_step.map(Seconds),
            total: ends(1.0, first),
            // Kernels may be cached by an earlier process.
            total_low: ends(low, 0.0),
            total_high: ends(high, first),
            resolution,
            source: self.source(id),
        };
        RankedCandidate { candidate, estimate: Some(estimate), run_length: pace, is_tied }
    }

    /// Returns the trade-offs of candidate `chosen`: its cost, beside the Pareto front of time, memory and
    /// cost.
    pub(crate) fn tradeoffs(&self, chosen: CandidateId, ranking: &Ranking) -> Tradeoffs<Candidate> {
        let front = ranking.front.clone().into_points();
        let front = front.into_iter().map(|point| self.tradeoff(point.what, point.cost)).collect();
        let choice = self.tradeoff(chosen, self.cost_model.cost(chosen));
        Tradeoffs::of(choice, front, self.cost_model.uncertainty(chosen).1)
    }

    fn training_schedule(&self, cost: training_schedule::StepAndValidationTime) -> TrainingSchedule {
        let request = self.request;
        training_schedule::training_schedule(
            request.recipe,
            self.batch,
            request.train_samples,
            request.valid_samples,
            cost,
        )
    }

    fn tradeoff(&self, id: CandidateId, cost: CandidateCost) -> Tradeoff<Candidate> {
        let (request, cost_model) = (self.request, self.cost_model);
        let recipe = request.recipe;
        let steps =
            batch_size::steps(&recipe.objective.stop, &recipe.model, self.batch, request.train_samples);
        let cost_basis = CostBasis { steps, price: recipe.cluster.price };
        let devices = cost_model.devices(&cost_model.space().options[id.option as usize]);
        let candidate = cost_model.space().candidate(id, self.learning_rate);
        cost_basis.tradeoff(candidate, cost, cost_model.memory(id).total(), devices)
    }

    /// Returns the source of the speeds for candidate `id`, in words.
    fn source(&self, id: CandidateId) -> String {
        let measured = self.request.rates.map_or(0, |rates| rates.measured_at_ms);
        let day = calendar::format_day(measured);
        let here = match &self.request.host.links {
            None => "this host".to_owned(),
            Some(HostNetwork { hosts, network: None }) => format!("these {} hosts", hosts.len()),
            Some(HostNetwork { hosts, network: Some(network) }) => {
                format!("these {} hosts over {network}", hosts.len())
            }
        };
        let base = match self.cost_model.source(id) {
            SpeedSource::Measured => format!("measured on {here} on {day}"),
            SpeedSource::Nearby(1) => format!("measured on {here} on {day} with one rank, carried over"),
            SpeedSource::Nearby(ranks) => {
                format!("measured on {here} on {day} with {ranks} ranks, carried over")
            }
            SpeedSource::Datasheet if self.request.group.is_some() => "data sheets, not measured".into(),
            SpeedSource::Datasheet => "data sheet, not measured; `dtrain probe` measures this machine".into(),
        };
        let factors = self.cost_model.factors();
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

/// Returns the time of a step of `batch` samples, and that of a validation sample, which is a forward pass.
pub(crate) fn step_costs(step: &TimeBreakdown, batch: u64) -> training_schedule::StepAndValidationTime {
    #[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52")]
    let sample = step.forward / batch as f64;
    // A measured profile may round to zero; a step always takes some time.
    training_schedule::StepAndValidationTime {
        step: step.total().max(STEP_LEAST),
        validation_sample: Some(sample),
    }
}

/// Returns the seconds of all steps and validations of a training.
fn total_seconds(pace: &TrainingSchedule, step: f64) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let steps = pace.steps.unwrap_or(pace.schedule_steps);
    let validations = steps.div_ceil(pace.validate_every).max(1) as f64;
    steps as f64 * step + pace.validation.map_or(0.0, |validation| validations * validation.seconds)
}
