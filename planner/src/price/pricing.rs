//! Spells the price of a place out: the estimate with its interval, the pace, and where the constants come from.

use crate::Candidate;
use crate::choice::front::Cost;
use crate::choice::weighed::{Bill, Compromise, Weighed};
use crate::layout::space::Place;
use crate::planning::plan::{PlanRequest, Ranked};
use crate::planning::search::Ranking;
use crate::price::estimate::{Breakdown, Estimate};
use crate::price::judge::Judge;
use crate::rates::speeds::Source;
use crate::training::batch_size;
use crate::training::pace::{self, Pace, pace};
use crate::training::when;
use dtrain_protocol::Links;
use dtrain_recipes::Seconds;

/// Shortest step in seconds that is believed.
pub(crate) const STEP_LEAST: f64 = 1e-9;

/// What it takes to spell a place out.
pub(crate) struct Pricing<'a> {
    pub(crate) request: &'a PlanRequest<'a>,
    pub(crate) judge: &'a Judge<'a>,
    pub(crate) batch: u64,
    pub(crate) learning_rate: f64,
}

impl Pricing<'_> {
    /// The place with its price and its pace.
    pub(crate) fn ranked(&self, place: Place, tie: bool) -> Ranked {
        let (request, judge) = (self.request, self.judge);
        let candidate = judge.space().candidate(place, self.learning_rate);
        let breakdown = judge.time(place);
        let cost = cost(&breakdown, self.batch);
        let step = cost.step;
        let pace = self.pace(cost);
        let (doubt, resolution) = judge.doubt(place);
        let memory = judge.memory(place);
        #[expect(clippy::cast_precision_loss, reason = "tokens are far below 2^52")]
        let tokens = (self.batch * request.recipe.model.sample_tokens()) as f64;
        let total = total(&pace, step);
        let (low, high) = (1.0 / (1.0 + doubt), 1.0 + doubt);
        let first_step = judge.first_step(place);
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
            memory_available: judge.available(&judge.space().ways[place.way as usize]),
            traffic: judge.traffic(place),
            tokens_per_second: tokens / step,
            steps: pace.steps,
            first_step: first_step.map(Seconds),
            total: ends(1.0, first),
            // Kernels may be kept from an earlier process.
            total_low: ends(low, 0.0),
            total_high: ends(high, first),
            resolution,
            source: self.source(place),
        };
        Ranked { candidate, estimate: Some(estimate), pace, tie }
    }

    /// `chosen` beside what nothing betters in time, memory and money.
    pub(crate) fn weighed(&self, chosen: Place, ranking: &Ranking) -> Weighed<Candidate> {
        let front = ranking.front.clone().into_points();
        let front = front.into_iter().map(|point| self.compromise(point.what, point.cost)).collect();
        let choice = self.compromise(chosen, self.judge.cost(chosen));
        Weighed::of(choice, front, self.judge.doubt(chosen).1)
    }

    fn pace(&self, cost: pace::Cost) -> Pace {
        let request = self.request;
        pace(request.recipe, self.batch, request.train_samples, request.valid_samples, cost)
    }

    fn compromise(&self, place: Place, cost: Cost) -> Compromise<Candidate> {
        let (request, judge) = (self.request, self.judge);
        let recipe = request.recipe;
        let steps =
            batch_size::steps(&recipe.objective.stop, &recipe.model, self.batch, request.train_samples);
        let bill = Bill { steps, price: recipe.cluster.price };
        let devices = judge.devices(&judge.space().ways[place.way as usize]);
        let candidate = judge.space().candidate(place, self.learning_rate);
        bill.compromise(candidate, cost, judge.memory(place).total(), devices)
    }

    /// Where the constants come from, in words.
    fn source(&self, place: Place) -> String {
        let measured = self.request.rates.map_or(0, |rates| rates.measured_at_ms);
        let day = when::day(measured);
        let here = match &self.request.host.links {
            None => "this host".to_owned(),
            Some(Links { hosts, network: None }) => format!("these {} hosts", hosts.len()),
            Some(Links { hosts, network: Some(network) }) => {
                format!("these {} hosts over {network}", hosts.len())
            }
        };
        let base = match self.judge.source(place) {
            Source::Measured => format!("measured on {here} on {day}"),
            Source::Nearby(1) => format!("measured on {here} on {day} with one rank, carried over"),
            Source::Nearby(ranks) => {
                format!("measured on {here} on {day} with {ranks} ranks, carried over")
            }
            Source::Datasheet => "data sheet, not measured; `dtrain probe` measures this machine".into(),
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

/// What a step of `batch` samples costs, and a validation sample: a forward pass.
pub(crate) fn cost(step: &Breakdown, batch: u64) -> pace::Cost {
    #[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52")]
    let sample = step.forward / batch as f64;
    // A measured profile may round to nothing; a step never takes no time at all.
    pace::Cost { step: step.total().max(STEP_LEAST), validation_sample: Some(sample) }
}

/// Seconds of all steps and validations.
fn total(pace: &Pace, step: f64) -> f64 {
    #![expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let steps = pace.steps.unwrap_or(pace.schedule_steps);
    let validations = steps.div_ceil(pace.validate_every).max(1) as f64;
    steps as f64 * step + pace.validation.map_or(0.0, |validation| validations * validation.seconds)
}
