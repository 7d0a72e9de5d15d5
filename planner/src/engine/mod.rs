//! Training engines: the layouts that each can run.
//!
//! One rule serves search and emission: a search asks [`Engine::unsupported_layout`] about every layout, and
//! [`emit`](mod@crate::emit) writes only layouts that it accepts. So a layout that cannot be emitted is never
//! a candidate.

mod deepspeed;
mod dtrain;
mod fsdp;
mod jax;
mod megatron;
pub(crate) mod rules;
mod software_style;
mod torchtitan;

#[cfg(test)]
mod tests;

pub use self::deepspeed::DeepSpeed;
pub use self::dtrain::Dtrain;
pub use self::fsdp::Fsdp;
pub use self::jax::Jax;
pub use self::megatron::Megatron;
pub use self::software_style::{AttentionKernel, Recomputation, SoftwareStyle};
pub use self::torchtitan::Torchtitan;

use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Decoder, Fp8Recipe, OptimizerKind, Precision, Train};

/// A training engine.
pub trait Engine: Sync + std::fmt::Debug {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the name in messages, in its authors' spelling.
    fn title(&self) -> &'static str;

    /// Returns the software style, which decides its costs.
    fn style(&self) -> SoftwareStyle;

    /// Returns the supported kinds of accelerators.
    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Gpu]
    }

    /// Returns the supported exchanges of keys and values in context parallelism.
    fn context_exchanges(&self) -> &'static [ContextExchange];

    /// Returns the reason why it cannot run any layout of a training in a precision;
    /// [`Engine::unsupported_layout`] repeats it for each.
    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout>;

    /// Returns the reason why it cannot run a training in a layout; `None` if it can. Must be cheap: a search
    /// asks about millions of layouts. Reasons that hold for any layout come first.
    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout>;
}

/// The training of an engine, independent of the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSpec {
    /// The model.
    pub model: Decoder,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Scaling of values into fp8, if products are in fp8.
    pub fp8_recipe: Fp8Recipe,
    /// True if a z-loss is added to the loss.
    pub has_z_loss: bool,
}

impl TrainingSpec {
    /// Creates the training of `model` with the settings of `train`.
    pub fn of(model: &Decoder, train: &Train) -> Self {
        Self {
            model: model.clone(),
            optimizer: train.optimizer.kind,
            fp8_recipe: train.fp8_recipe.unwrap_or_default(),
            has_z_loss: train.z_loss > 0.0,
        }
    }
}

/// An engine with the training it is to run.
#[derive(Clone, Debug)]
pub struct EngineSupport {
    /// The engine.
    pub engine: &'static dyn Engine,
    /// The training, for the engine's checks.
    pub training: TrainingSpec,
}

/// The reason why an engine cannot run a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedLayout {
    /// The unsupported feature of the layout.
    pub what: &'static str,
    /// Suggested alternative.
    pub instead: &'static str,
}

/// Builds the refusal of a layout.
const fn unsupported(what: &'static str, instead: &'static str) -> Option<UnsupportedLayout> {
    Some(UnsupportedLayout { what, instead })
}

/// dtrain's own worker.
pub static DTRAIN: Dtrain = Dtrain;
/// Megatron-LM on Megatron-Core.
pub static MEGATRON: Megatron = Megatron;
/// torchtitan.
pub static TORCHTITAN: Torchtitan = Torchtitan;
/// PyTorch FSDP2 through Hugging Face accelerate.
pub static FSDP: Fsdp = Fsdp;
/// DeepSpeed.
pub static DEEPSPEED: DeepSpeed = DeepSpeed;
/// MaxText on JAX.
pub static JAX: Jax = Jax;

/// All engines, dtrain first.
pub static ALL: [&dyn Engine; 6] = [&DTRAIN, &MEGATRON, &TORCHTITAN, &FSDP, &DEEPSPEED, &JAX];

/// Returns the default engine for these kinds of accelerators: Megatron-LM if it supports them; `None` if no
/// engine does.
pub fn default_engine(kinds: &[AcceleratorKind]) -> Option<&'static dyn Engine> {
    let can = |engine: &&'static dyn Engine| kinds.iter().all(|kind| engine.kinds().contains(kind));
    let megatron: &'static dyn Engine = &MEGATRON;
    std::iter::once(megatron).chain(ALL).find(can)
}

/// Finds the engine called `name`.
pub fn engine_by_name(name: &str) -> Option<&'static dyn Engine> {
    ALL.into_iter().find(|engine| engine.name() == name)
}
