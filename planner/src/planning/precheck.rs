//! Checks that refuse a recipe before anything is searched, measured or started.
//!
//! `check` runs them with the known inputs, `plan` and `run` with all; so `check` never accepts a recipe with
//! known inputs that the others refuse here.

use crate::engine::{DTRAIN, Engine as _, TrainingSpec, UnsupportedLayout, engine_of_recipe};
use crate::layout::space::{self, MICRO_BATCHES};
use crate::planning::error::PlanError;
use dtrain_protocol::{DeviceKind, HostFacts, cannot_train};
use dtrain_recipes::{
    Devices, LayoutPins, Model, Precision, Recipe, Recompute, Samples, TrainingEngine, Tunable, ZeroStage,
};

/// Refuses a recipe that no plan can satisfy. `host` is `None` where the training hosts cannot be reached,
/// `samples` (of the training data) where they were not counted.
pub fn precheck(recipe: &Recipe, host: Option<&HostFacts>, samples: Option<u64>) -> Result<(), PlanError> {
    if let Some(missing) = cannot_train(&recipe.model, supported_precision(&recipe.train.precision)) {
        return Err(PlanError::Untrainable(missing));
    }
    worker_holds_state(recipe)?;
    let hosts = host.map_or_else(|| recipe.cluster.host_count().max(1), |host| host.hosts.get());
    if let Some(ranks) = recipe.cluster.ranks.filter(|ranks| !ranks.is_multiple_of(hosts)) {
        return Err(PlanError::UnevenHosts { ranks, hosts });
    }
    if let Some(host) = host {
        has_gpu(recipe.cluster.devices, host)?;
    }
    if let Model::Command(_) = recipe.model {
        return Ok(());
    }
    if gathers_without_recompute(&recipe.layout) {
        return Err(PlanError::GathersWithoutRecompute);
    }
    let Some(batch) = smallest_batch(&recipe.train.batch) else { return Ok(()) };
    require_full_batch(batch, samples)?;
    match (recipe.layout.micro_batch, host) {
        (Some(micro), Some(host)) => limit_micro_batches(recipe, host, batch, micro),
        _ => Ok(()),
    }
}

/// Refuses state that dtrain's own worker cannot hold, if it trains the recipe.
fn worker_holds_state(recipe: &Recipe) -> Result<(), PlanError> {
    let Model::Decoder(model) = &recipe.model else { return Ok(()) };
    if recipe.engine.is_foreign() {
        return Ok(());
    }
    match DTRAIN.unsupported_state(&TrainingSpec::of(model, &recipe.train)) {
        Some(UnsupportedLayout { what, instead }) => {
            let instead = if instead.is_empty() { "remove it" } else { instead };
            Err(PlanError::EngineLacks { engine: DTRAIN.title(), what: what.into(), instead })
        }
        None => Ok(()),
    }
}

/// Refuses what the training engine of the recipe lacks with every layout.
pub fn engine_can_train(recipe: &Recipe) -> Result<(), PlanError> {
    let Some((engine, Model::Decoder(model))) = engine_of_recipe(recipe.engine).zip(Some(&recipe.model))
    else {
        return Ok(());
    };
    let lacks = |what: &str, instead| {
        Err(PlanError::EngineLacks { engine: engine.title(), what: what.into(), instead })
    };
    if model.lora.is_some() {
        return lacks("model.lora", "dtrain's own worker trains adapters; remove `engine`");
    }
    if model.experts.is_some() && recipe.engine == TrainingEngine::Torchtitan {
        return lacks(
            "model.experts",
            "`dtrain run` trains dense models with it; set engine = \"fsdp\", or remove `engine`, and \
             `dtrain plan --emit` writes files",
        );
    }
    if recipe.objective.stop.time.is_some() {
        return lacks("objective.stop.time", "set objective.stop.steps, samples, tokens or epochs");
    }
    if recipe.objective.stop.target.is_some() {
        return lacks("objective.stop.target", "it trains all steps; remove the target");
    }
    if recipe.layout.shares.is_some() {
        return lacks("layout.shares", "remove it: replicas do equal work");
    }
    let training = TrainingSpec::of(model, &recipe.train);
    match engine.unsupported_training(&training, supported_precision(&recipe.train.precision)) {
        Some(UnsupportedLayout { what, instead }) => lacks(what, instead),
        None => Ok(()),
    }
}

/// Refuses a host that lacks the GPUs required by the recipe.
fn has_gpu(devices: Devices, host: &HostFacts) -> Result<(), PlanError> {
    let (asked, what, build, is_there) = match devices {
        Devices::Auto | Devices::Cpu => return Ok(()),
        Devices::Gpu => ("gpu", "GPU", "`--features wgpu` or `--features cuda`", host.gpu_device().is_some()),
        Devices::Cuda => {
            ("cuda", "CUDA device", "`--features cuda`", host.gpu_device() == Some(DeviceKind::Cuda))
        }
    };
    if is_there {
        return Ok(());
    }
    Err(PlanError::NoGpu { asked, what, build, host: host.name.clone() })
}

/// Returns `true` if ZeRO 3 is pinned together with a recompute setting other than full, which the worker
/// does not support: it recomputes every block that it gathers again. The recipe is valid for other engines.
fn gathers_without_recompute(pins: &LayoutPins) -> bool {
    let is_other = pins.recompute.is_some_and(|recompute| recompute != Recompute::Full);
    pins.zero == Some(ZeroStage::Zero3) && (is_other || pins.recompute_every.is_some_and(|every| every > 1))
}

/// Refuses a batch with more samples than the training data.
pub(crate) fn require_full_batch(batch: u64, samples: Option<u64>) -> Result<(), PlanError> {
    match samples.filter(|samples| *samples < batch) {
        Some(samples) => Err(PlanError::BatchBeyondData { batch, samples }),
        None => Ok(()),
    }
}

/// Returns a precision with which to check a recipe: one that the worker supports, unless the recipe allows
/// only others.
fn supported_precision(precision: &Tunable<Precision>) -> Precision {
    match precision {
        Tunable::Pinned(precision) => *precision,
        Tunable::Among(all) if all.iter().all(|precision| *precision == Precision::Fp8) => Precision::Fp8,
        Tunable::Auto | Tunable::Among(_) | Tunable::Log { .. } => Precision::F32,
    }
}

/// Returns the smallest batch that the recipe allows, in samples; `None` where the planner chooses it.
fn smallest_batch(batch: &Tunable<Samples>) -> Option<u64> {
    match batch {
        Tunable::Auto => None,
        Tunable::Pinned(batch) | Tunable::Log { low: batch, .. } => Some(batch.0),
        Tunable::Among(batches) => batches.iter().map(|batch| batch.0).min(),
    }
}

/// Refuses a batch that would need more micro-batches per rank than the limit, even with the largest number
/// of replicas.
fn limit_micro_batches(recipe: &Recipe, host: &HostFacts, batch: u64, micro: u32) -> Result<(), PlanError> {
    let most = || space::max_ranks(host, space::device(recipe, host));
    let replicas = recipe.layout.data.or(recipe.cluster.ranks).unwrap_or_else(most).max(1);
    let passes = batch / (u64::from(micro) * u64::from(replicas)).max(1);
    if passes <= MICRO_BATCHES || recipe.layout.shares.is_some() {
        return Ok(());
    }
    Err(PlanError::TooManyMicroBatches { batch, micro, replicas, passes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use dtrain_recipes::{Decoder, Devices};

    fn refused(change: impl Fn(&mut Recipe), samples: Option<u64>) -> String {
        let mut recipe = fixtures::recipe();
        change(&mut recipe);
        precheck(&recipe, Some(&fixtures::host(2)), samples).expect_err("it cannot be trained").to_string()
    }

    #[test]
    fn what_cannot_be_trained_is_refused_without_a_search() {
        let batch = |batch| Tunable::Pinned(Samples(batch));
        let pinned = refused(|recipe| recipe.train.batch = batch(64), Some(63));
        assert!(pinned.contains("train.batch is 64, and the data has 63 samples"), "{pinned}");
        let gathers = refused(
            |recipe| {
                recipe.layout.zero = Some(ZeroStage::Zero3);
                recipe.layout.recompute = Some(Recompute::None);
            },
            None,
        );
        assert!(gathers.contains("layout.zero = 3") && gathers.contains("full"), "{gathers}");
        let many = |recipe: &mut Recipe| recipe.train.batch = Tunable::Among(vec![Samples(128), Samples(64)]);
        assert!(refused(many, Some(63)).contains("train.batch is 64"));
        let passes = refused(
            |recipe| {
                recipe.train.batch = batch(400_000);
                recipe.layout.micro_batch = Some(1);
                recipe.cluster.ranks = Some(2);
            },
            None,
        );
        assert!(passes.contains("200000 micro-batches of 1 on each of 2 replicas"), "{passes}");
        let gpu = refused(|recipe| recipe.cluster.devices = Devices::Cuda, None);
        assert!(gpu.contains("has no CUDA device"), "{gpu}");
        let gpu = refused(|recipe| recipe.cluster.devices = Devices::Gpu, None);
        assert!(gpu.contains("devices = \"gpu\"") && gpu.contains("has no GPU"), "{gpu}");
    }

    #[test]
    fn what_the_worker_cannot_train_is_refused_with_its_key_and_the_engines_that_can() {
        let fp8 = refused(|recipe| recipe.train.precision = Tunable::Pinned(Precision::Fp8), None);
        assert!(fp8.starts_with("`train.precision`: dtrain's own worker has no fp8; plan for"), "{fp8}");
        let either = |recipe: &mut Recipe| {
            recipe.train.precision = Tunable::Among(vec![Precision::Fp8, Precision::F32]);
        };
        let mut recipe = fixtures::recipe();
        either(&mut recipe);
        assert_eq!(precheck(&recipe, Some(&fixtures::host(2)), None), Ok(()), "f32 is left");
        let further = refused(|recipe| decoder(recipe).mtp_layers = 1, None);
        assert!(further.contains("`model.mtp_layers`"), "{further}");
        assert!(further.contains("with megatron, torchtitan or jax"), "{further}");
        let wide = |recipe: &mut Recipe| {
            let decoder = decoder(recipe);
            (decoder.head_width, decoder.rotary_base) = (Some(48), Some(500_000));
        };
        wide(&mut recipe);
        assert_eq!(precheck(&recipe, Some(&fixtures::host(2)), None), Ok(()), "the worker trains these");
    }

    fn decoder(recipe: &mut Recipe) -> &mut Decoder {
        let Model::Decoder(decoder) = &mut recipe.model else { unreachable!("the sample is one") };
        decoder
    }

    #[test]
    fn what_only_the_hosts_know_is_not_asked_without_them() {
        let mut recipe = fixtures::recipe();
        recipe.cluster.devices = Devices::Cuda;
        assert_eq!(precheck(&recipe, None, Some(1_000_000)), Ok(()));
    }
}
