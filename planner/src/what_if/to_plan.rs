//! Converts a plan from data sheets into a plan that can be saved, and emitted for other engines.

use super::worker_plan::host_facts;
use super::{DatasheetPlan, DatasheetPlanRequest, LayoutEstimate};
use crate::engine::{DTRAIN, Engine as _};
use crate::hardware::HostGroup;
use crate::layout::batch_split::BatchSplit;
use crate::layout::candidate::Candidate;
use crate::layout::rejection::Rejection;
use crate::planning::plan::{FORMAT, Plan, RankedCandidate};
use crate::rates::calibrate::Factors;
use crate::training::training_schedule::{self, StepAndValidationTime};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

/// Converts `found`, the plan of `request`: its choice, then the ties, then the next layouts. These
/// candidates have no [`RankedCandidate::estimate`], which splits time and memory as measured rates do. `Err`
/// if the batch cannot be split among the ranks.
pub fn to_plan(
    request: &DatasheetPlanRequest<'_>,
    found: &DatasheetPlan,
    (data_root, program): (PathBuf, &str),
) -> Result<Plan, Rejection> {
    let recipe = request.recipe;
    let near = std::iter::once(&found.choice).chain(&found.ties).map(|priced| (priced, true));
    let all = near.chain(found.next.iter().map(|priced| (priced, false)));
    let choices =
        all.map(|(priced, is_tied)| ranked(request, found, priced, is_tied)).collect::<Result<_, _>>()?;
    let used = HostGroup { devices: found.devices - found.idle, ..request.cluster };
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        settings: BTreeMap::new(),
        data_root,
        host: host_facts(&used),
        engine: (found.engine != DTRAIN.name()).then(|| found.engine.into()),
        rates: None,
        factors: Factors::default(),
        seed: recipe.train.seed,
        program: program.into(),
        train_samples: None,
        valid_samples: None,
        batch: found.batch.clone(),
        learning_rate: found.learning_rate.clone(),
        choices,
        priced: found.layouts,
        tradeoffs: None,
        alternatives: Vec::new(),
        rejected: Vec::new(),
    })
}

fn ranked(
    request: &DatasheetPlanRequest<'_>,
    found: &DatasheetPlan,
    priced: &LayoutEstimate,
    is_tied: bool,
) -> Result<RankedCandidate, Rejection> {
    let arrangement = priced.config.arrangement;
    let batch = NonZeroU64::new(found.batch.value).unwrap_or(NonZeroU64::MIN);
    let readers = NonZeroU32::new(arrangement.layout.readers()).unwrap_or(NonZeroU32::MIN);
    let micro_batch = NonZeroU32::new(priced.config.micro_batch).unwrap_or(NonZeroU32::MIN);
    let split = BatchSplit::of(batch, micro_batch, readers)?;
    // The number of host cores is unknown; torchrun's default is one thread per rank.
    let candidate = Candidate { arrangement, split, threads: 1, learning_rate: found.learning_rate.value };
    let cost = StepAndValidationTime { step: priced.step_seconds, validation_sample: None };
    let run_length = training_schedule::training_schedule(request.recipe, batch.get(), None, None, cost);
    Ok(RankedCandidate { candidate, estimate: None, run_length, is_tied })
}
