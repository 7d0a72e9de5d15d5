//! Selects the micro-batch sizes that a probe measures.

use crate::layout::space::{CandidateSpace, Capabilities};
use crate::planning::batch;
use crate::planning::plan::PlanRequest;
use crate::price::cost_model::CostModel;
use crate::rates::calibrate::Factors;
use crate::rates::cost_inputs::CostInputs;
use dtrain_protocol::HostFacts;
use dtrain_recipes::Recipe;
use std::num::NonZeroU64;

/// Largest number of micro-batch sizes to measure.
const PROBES: usize = 5;

/// Returns the micro-batch sizes to measure before `recipe` is planned, in ascending order: the pinned one,
/// or divisors of the batch up to the largest that fits on one rank, evenly spaced in logarithms.
pub fn micro_batches_to_measure(recipe: &Recipe, host: &HostFacts, train_samples: Option<u64>) -> Vec<u32> {
    let request = PlanRequest { train_samples, ..PlanRequest::new(recipe, host) };
    if let Some(micro) = recipe.layout.micro_batch {
        return vec![micro];
    }
    let global = batch(&request).ok().and_then(|batch| NonZeroU64::new(batch.value));
    let abilities = Capabilities::of(recipe, None);
    let space = CandidateSpace::of(recipe, host, None, global.unwrap_or(NonZeroU64::MIN), &abilities);
    let case = CostInputs {
        model: &recipe.model,
        optimizer: &recipe.train.optimizer,
        host,
        group: None,
        engine: None,
        rates: None,
        factors: Factors::default(),
    };
    let cost_model = CostModel::new(case, &space);
    let mut fitting: Vec<u32> =
        space.candidate_ids().filter(|p| cost_model.fits(*p)).map(|p| space.micro(p).get()).collect();
    fitting.sort_unstable();
    fitting.dedup();
    evenly(&fitting, PROBES)
}

/// Selects at most `count` of the ascending `values`, ends included, evenly spaced in logarithms.
fn evenly(values: &[u32], count: usize) -> Vec<u32> {
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return vec![1] };
    let mut chosen: Vec<u32> = (0..u32::try_from(count).unwrap_or(1))
        .filter_map(|step| {
            let along = f64::from(step) / f64::from(u32::try_from(count - 1).unwrap_or(1).max(1));
            let wanted = f64::from(*first) * (f64::from(*last) / f64::from(*first)).powf(along);
            let far = |v: &u32| (f64::from(*v) / wanted).ln().abs();
            values.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b)))
        })
        .collect();
    chosen.dedup();
    chosen
}
