//! Training engines, and the layouts that each can run.
//!
//! One rule serves search and emission: a search asks [`Engine::unsupported_layout`] about every layout, and
//! [`emit`](mod@crate::emit) writes only layouts that it accepts. So a layout that cannot be emitted is never
//! a candidate.

mod deepspeed;
mod dtrain;
mod fsdp;
mod hf_trainer;
mod jax;
mod megatron;
pub(crate) mod overlap;
mod recomputation;
pub(crate) mod rules;
mod software_style;
pub(crate) mod state_layout;
mod state_support;
mod torchtitan;

#[cfg(test)]
mod tests;

pub use self::deepspeed::DeepSpeed;
pub use self::dtrain::Dtrain;
pub use self::fsdp::FsdpProgram;
pub use self::hf_trainer::HfTrainer;
pub use self::jax::Jax;
pub use self::megatron::Megatron;
pub use self::overlap::Overlaps;
pub use self::recomputation::Recomputation;
pub use self::software_style::{AttentionKernel, SoftwareStyle};
pub use self::state_support::StateSupport;
pub use self::torchtitan::Torchtitan;

use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange, DeviceKind};
use dtrain_recipes::{Decoder, Fp8Recipe, OptimizerKind, Precision, StatePins, Train, TrainingEngine};

/// A training engine, and the layouts it can run.
pub trait Engine: Sync + std::fmt::Debug {
    /// Returns the name of the engine on the command line.
    fn name(&self) -> &'static str;

    /// Returns the name of the engine in messages, as its authors spell it.
    fn title(&self) -> &'static str;

    /// Returns the software style of the engine, which decides its costs.
    fn style(&self) -> SoftwareStyle;

    /// Returns the kinds of accelerators that the engine runs on.
    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia, AcceleratorKind::Amd]
    }

    /// Returns the exchanges of keys and values that the engine supports in context parallelism.
    fn context_exchanges(&self) -> &'static [ContextExchange];

    /// Returns the training state that the engine can hold: by default in f32 on the device.
    fn state_support(&self) -> &'static StateSupport {
        &StateSupport::PLAIN
    }

    /// Returns the state or the adapters of `training` that the engine cannot hold in any layout; `None` if it
    /// can hold all.
    fn unsupported_state(&self, training: &TrainingSpec) -> Option<UnsupportedLayout>
    where
        Self: Sized,
    {
        state_support::of_training(self, training)
    }

    /// Returns `true` if the engine keeps 16-bit weights beside an f32 copy; `None` if it does as its style.
    fn has_master_copy(&self) -> Option<bool> {
        None
    }

    /// Returns the communication that the engine, configured as emitted, overlaps with computing when it runs
    /// `training` in `precision`: by default all that its software style hides.
    fn overlaps(&self, _training: &TrainingSpec, _precision: Precision) -> Overlaps {
        Overlaps::ALL
    }

    /// Returns the reason why the engine cannot run any layout of `training` in `precision`; `None` if it can
    /// run some. [`Engine::unsupported_layout`] repeats it for each layout.
    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout>;

    /// Returns the reason why the engine cannot run `training` in a layout; `None` if it can. Must be cheap:
    /// a search asks about millions of layouts. Reasons that hold for any layout come first.
    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout>;

    /// Returns the reason of the engine's own for [`unsupported_in_run`]; `None` if it has none.
    fn unsupported_in_run(&self, _model: &Decoder, _arrangement: &Arrangement) -> Option<UnsupportedLayout> {
        None
    }
}

/// The training that an engine is to run, without its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSpec {
    /// Model to train.
    pub model: Decoder,
    /// Optimizer to train with.
    pub optimizer: OptimizerKind,
    /// Method by which values are scaled into fp8, if products are in fp8.
    pub fp8_recipe: Fp8Recipe,
    /// True if a z-loss is added to the loss.
    pub has_z_loss: bool,
    /// Precision and place of the training state, as far as they are pinned.
    pub state: StatePins,
}

impl TrainingSpec {
    /// Creates the training of `model` under the settings of `train`.
    pub fn of(model: &Decoder, train: &Train) -> Self {
        Self {
            model: model.clone(),
            optimizer: train.optimizer.kind,
            fp8_recipe: train.fp8_recipe.unwrap_or_default(),
            has_z_loss: train.z_loss > 0.0,
            state: train.state,
        }
    }
}

/// An engine with the training it is to run.
#[derive(Clone, Debug)]
pub struct EngineSupport {
    /// Engine that is to run the training.
    pub engine: &'static dyn Engine,
    /// Training that the engine is asked about.
    pub training: TrainingSpec,
}

/// Reason why an engine cannot run a layout, with a way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedLayout {
    /// Feature of the layout that the engine does not support.
    pub what: &'static str,
    /// Alternative that the message suggests.
    pub instead: &'static str,
}

/// Returns the refusal of a layout for the feature `what`.
const fn unsupported(what: &'static str, instead: &'static str) -> Option<UnsupportedLayout> {
    Some(UnsupportedLayout { what, instead })
}

/// The engine of dtrain: its own worker.
pub static DTRAIN: Dtrain = Dtrain;
/// The engine Megatron-LM, on Megatron-Core.
pub static MEGATRON: Megatron = Megatron;
/// The engine torchtitan.
pub static TORCHTITAN: Torchtitan = Torchtitan;
/// The engine PyTorch FSDP2, through dtrain's own program.
pub static FSDP_PROGRAM: FsdpProgram = FsdpProgram;
/// The Trainer of Hugging Face transformers, with PyTorch FSDP2 through accelerate.
pub static HF_TRAINER: HfTrainer = HfTrainer;
/// The engine DeepSpeed.
pub static DEEPSPEED: DeepSpeed = DeepSpeed;
/// The engine MaxText, on JAX.
pub static JAX: Jax = Jax;

/// All engines, dtrain first.
pub static ALL: [&dyn Engine; 7] =
    [&DTRAIN, &MEGATRON, &TORCHTITAN, &FSDP_PROGRAM, &HF_TRAINER, &DEEPSPEED, &JAX];

/// Returns the default engine for the given kinds of accelerators: Megatron-LM if it supports them all,
/// otherwise the first that does; `None` if no engine does.
pub fn default_engine(kinds: &[AcceleratorKind]) -> Option<&'static dyn Engine> {
    let can = |engine: &&'static dyn Engine| kinds.iter().all(|kind| engine.kinds().contains(kind));
    let megatron: &'static dyn Engine = &MEGATRON;
    std::iter::once(megatron).chain(ALL).find(can)
}

/// Returns the engine that a recipe names, as `dtrain run` starts it; `None` for dtrain's own worker.
pub fn engine_of_recipe(engine: TrainingEngine) -> Option<&'static dyn Engine> {
    if engine.is_foreign() { engine_by_name(engine.name()) } else { None }
}

/// Returns the reason why `engine`, started by `dtrain run`, cannot train `model` in a layout that it can run
/// otherwise; `None` if it can.
pub fn unsupported_in_run(
    engine: &dyn Engine,
    model: &Decoder,
    arrangement: &Arrangement,
) -> Option<UnsupportedLayout> {
    if arrangement.device == DeviceKind::Wgpu {
        return unsupported("GPUs through wgpu", "set cluster.devices = \"cuda\" or \"cpu\"");
    }
    engine.unsupported_in_run(model, arrangement)
}

/// Finds the engine whose name is `name`; `None` if there is none.
pub fn engine_by_name(name: &str) -> Option<&'static dyn Engine> {
    ALL.into_iter().find(|engine| engine.name() == name)
}
