//! The choice of an outlook as a plan, so that it can be written for another engine.

use super::{Outlook, OutlookRequest};
use crate::calibrate::Factors;
use crate::plan::{FORMAT, Plan, Ranked};
use crate::{BatchSplit, Candidate, Rejection, pace};
use dtrain_protocol::{Gpu, HostFacts};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

/// The choice of `found`, the outlook of `request`, as a plan of one choice. Its times and its memory are not in it: they are
/// those of another engine. `Err` when the batch cannot be split so.
pub fn as_plan(
    request: &OutlookRequest<'_>,
    found: &Outlook,
    (data_root, program): (PathBuf, &str),
) -> Result<Plan, Rejection> {
    let (recipe, config) = (request.recipe, &found.choice.config);
    let arrangement = config.arrangement;
    let batch = NonZeroU64::new(found.batch.value).unwrap_or(NonZeroU64::MIN);
    let readers = NonZeroU32::new(arrangement.layout.readers()).unwrap_or(NonZeroU32::MIN);
    let split =
        BatchSplit::of(batch, NonZeroU32::new(config.micro_batch).unwrap_or(NonZeroU32::MIN), readers)?;
    let learning_rate = found.learning_rate.value;
    // Cores of the hosts are not known; torchrun gives each rank one thread unless told otherwise.
    let candidate = Candidate { arrangement, split, threads: 1, learning_rate };
    let pace = pace::pace(recipe, batch.get(), None, None, found.choice.step_seconds);
    let hosts = NonZeroU32::new(found.devices / found.per_host).unwrap_or(NonZeroU32::MIN);
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        settings: BTreeMap::new(),
        data_root,
        host: host(found, hosts),
        rates: None,
        factors: Factors::default(),
        seed: recipe.train.seed,
        program: program.into(),
        train_samples: None,
        valid_samples: None,
        batch: found.batch.clone(),
        learning_rate: found.learning_rate.clone(),
        choices: vec![Ranked { candidate, estimate: None, pace, tie: false }],
        priced: found.layouts,
        weighed: None,
        alternatives: Vec::new(),
        rejected: Vec::new(),
    })
}

/// The hosts that the outlook is for. What is not known of them is zero.
fn host(found: &Outlook, hosts: NonZeroU32) -> HostFacts {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a number of bytes")]
    let memory_bytes = found.memory_bytes as u64;
    let gpu = Gpu { name: found.gpu.0.clone(), memory_bytes };
    HostFacts {
        name: format!("{hosts}x{} {}", found.per_host, found.gpu.0),
        hosts,
        processor: String::new(),
        cores: 0,
        memory_bytes: 0,
        gpus: vec![gpu; found.per_host as usize],
    }
}
