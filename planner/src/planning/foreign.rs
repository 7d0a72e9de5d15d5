//! Plans for foreign commands: the placement of the ranks and the values they get. There is no estimate,
//! since dtrain does not know the work of such a command.

use crate::layout::batch_split::BatchSplit;
use crate::layout::candidate::Candidate;
use crate::layout::space;
use crate::planning::error::PlanError;
use crate::planning::plan::{FORMAT, Plan, PlanRequest, RankedCandidate};
use crate::rates::calibrate::Factors;
use crate::training::decision::Decision;
use crate::training::training_schedule::TrainingSchedule;
use dtrain_protocol::{Arrangement, DeviceKind, HostFacts, Layout};
use dtrain_recipes::placeholder::{self, Ranks};
use dtrain_recipes::{ForeignCommand, Recipe, Tunable};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

/// Returns the plan of a foreign command, with one candidate: as many ranks as the recipe sets, or else one
/// per GPU, or one per host.
pub(crate) fn plan(request: &PlanRequest<'_>) -> Result<Plan, PlanError> {
    let (recipe, host) = (request.recipe, request.host);
    let device = space::device(recipe, host);
    let world = recipe.cluster.ranks.unwrap_or_else(|| ranks(host, device));
    let world = NonZeroU32::new(world).unwrap_or(NonZeroU32::MIN);
    let split = BatchSplit::of(NonZeroU64::from(world), NonZeroU32::MIN, world)
        .expect("one sample for each rank divides evenly");
    let candidate = Candidate {
        arrangement: Arrangement { layout: layout(recipe, world)?, device, ..Arrangement::SINGLE },
        split,
        threads: (host.cores / (world.get() / host.hosts.get()).max(1)).max(1),
        learning_rate: recipe.train.learning_rate.pinned().copied().unwrap_or(0.0),
    };
    let steps = recipe.objective.stop.steps;
    let run_length = TrainingSchedule {
        steps,
        schedule_steps: steps.unwrap_or(0),
        warmup: undecided(0),
        save_every: 0,
        checkpointing: None,
        validate_every: 0,
        validate_samples: 0,
        validation: None,
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
        batch: from_recipe(&recipe.train.batch, |batch| batch.0),
        learning_rate: from_recipe(&recipe.train.learning_rate, |rate| *rate),
        choices: vec![RankedCandidate { candidate, estimate: None, run_length, is_tied: false }],
        priced: 0,
        alternatives: Vec::new(),
        tradeoffs: None,
        rejected: Vec::new(),
    })
}

/// Returns the layout with the degrees in the recipe, and replicas for the remaining ranks; its use is up to
/// the program.
fn layout(recipe: &Recipe, world: NonZeroU32) -> Result<Layout, PlanError> {
    let pins = &recipe.layout;
    let axis = |pin: Option<u32>| pin.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    let (tensor, pipeline) = (axis(pins.tensor), axis(pins.pipeline));
    let (context, expert) = (axis(pins.context), axis(pins.expert));
    let product = [tensor, pipeline, context, expert].iter().map(|degree| u64::from(degree.get())).product();
    let ranks = u64::from(world.get());
    let data = u32::try_from(ranks / product).ok().and_then(NonZeroU32::new);
    let is_pinned = |data: &NonZeroU32| pins.data.is_none_or(|pin| pin == data.get());
    data.filter(|data| ranks.is_multiple_of(product) && is_pinned(data))
        .map(|data| Layout { tensor, context, expert, data, pipeline })
        .ok_or(PlanError::UnevenLayout {
            ranks: world.get(),
            product: product * u64::from(pins.data.unwrap_or(1)),
        })
}

/// Returns the command of a plan with its placeholders replaced by values, and all values in `DTRAIN_PARAMS`.
///
/// An argument or a variable that names an inactive param is left out; so is an argument of placeholders
/// alone that are all empty.
pub fn command_with_values(
    plan: &Plan,
    choice: &RankedCandidate,
    command: &ForeignCommand,
) -> ForeignCommand {
    let layout = &choice.candidate.arrangement.layout;
    let ranks = Ranks {
        ranks: layout.world(),
        data: layout.data.get(),
        tensor: layout.tensor.get(),
        pipeline: layout.pipeline.get(),
        context: layout.context.get(),
        expert: layout.expert.get(),
    };
    let values = placeholder::values(&plan.recipe, ranks);
    let fill = |text: &String| placeholder::fill(text, &values);
    let mut env: BTreeMap<String, String> =
        command.env.iter().filter_map(|(name, text)| Some((name.clone(), fill(text)?))).collect();
    env.insert("DTRAIN_PARAMS".into(), placeholder::escaped(&values.to_string()));
    let argv = command.argv.iter().filter_map(|text| placeholder::argument(text, &values)).collect();
    ForeignCommand { argv, env, ..command.clone() }
}

fn ranks(host: &HostFacts, device: DeviceKind) -> u32 {
    let gpus = u32::try_from(host.gpus.len()).unwrap_or(u32::MAX);
    let each = if device.is_gpu() { gpus.max(1) } else { 1 };
    host.hosts.get() * each
}

/// Returns the decision for a value set in the recipe, or else one that is left to the command.
fn from_recipe<T, U: Copy + Default>(choice: &Tunable<T>, of: impl Fn(&T) -> U) -> Decision<U> {
    match choice.pinned() {
        Some(value) => Decision { reason: "set in the recipe".into(), ..undecided(of(value)) },
        None => undecided(U::default()),
    }
}

/// Returns the decision that stands for a value chosen by the command.
fn undecided<T: Copy>(value: T) -> Decision<T> {
    Decision { value, low: value, high: value, reason: "the command's own".into() }
}
