//! The plan of a foreign command: where its ranks run. What they do is the command's own, and so nothing is priced.

use crate::layout::space;
use crate::planning::error::PlanError;
use crate::planning::plan::{FORMAT, Plan, PlanRequest, Ranked};
use crate::rates::calibrate::Factors;
use crate::training::learning_rate::Decision;
use crate::{BatchSplit, Candidate, Pace};
use dtrain_protocol::{Arrangement, DeviceKind, HostFacts, Layout};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

/// The only choice: as many ranks as the recipe says, otherwise one for each GPU of the hosts, or for each host.
pub(crate) fn plan(request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
    let (recipe, host) = (request.recipe, request.host);
    let device = space::device(recipe, host);
    let world = recipe.cluster.ranks.unwrap_or_else(|| ranks(host, device));
    let world = NonZeroU32::new(world).unwrap_or(NonZeroU32::MIN);
    let split = BatchSplit::of(NonZeroU64::from(world), NonZeroU32::MIN, world)
        .expect("one sample for each rank divides evenly");
    let candidate = Candidate {
        arrangement: Arrangement { layout: Layout::replicas(world), device, ..Arrangement::SINGLE },
        split,
        threads: (host.cores / (world.get() / host.hosts.get()).max(1)).max(1),
        learning_rate: 0.0,
    };
    let steps = recipe.objective.stop.steps;
    let pace = Pace {
        steps,
        schedule_steps: steps.unwrap_or(0),
        warmup: own(0),
        save_every: 0,
        saving: None,
        validate_every: 0,
        validate_samples: 0,
    };
    Ok(Plan {
        format: FORMAT,
        recipe: recipe.clone(),
        settings: BTreeMap::new(),
        data_root: request.data_root.clone(),
        host: host.clone(),
        engine: None,
        rates: None,
        factors: Factors::default(),
        seed: request.seed,
        program: request.program.into(),
        train_samples: None,
        valid_samples: None,
        batch: own(0),
        learning_rate: own(0.0),
        choices: vec![Ranked { candidate, estimate: None, pace, tie: false }],
        priced: 0,
        alternatives: Vec::new(),
        weighed: None,
        rejected: Vec::new(),
    })
}

fn ranks(host: &HostFacts, device: DeviceKind) -> u32 {
    let gpus = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
    let each = if device == DeviceKind::Cuda { gpus.max(1) } else { 1 };
    host.hosts.get() * each
}

/// What nobody here decides.
fn own<T: Copy>(value: T) -> Decision<T> {
    Decision { value, low: value, high: value, reason: "the command's own".into() }
}
