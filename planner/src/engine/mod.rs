//! Engines that train: what each can run, and how it is told.
//!
//! One rule decides twice: a search asks [`Engine::unsupported_layout`] of every layout, and [`Engine::emit`] refuses what it names.
//! So what cannot be written for an engine is no candidate, and nothing that is written stands in for something else.

pub mod emit;

mod deepspeed;
mod dtrain;
mod fsdp;
mod jax;
mod megatron;
mod rules;
mod torchtitan;

#[cfg(test)]
mod tests;

pub use self::deepspeed::DeepSpeed;
pub use self::dtrain::Dtrain;
pub use self::fsdp::Fsdp;
pub use self::jax::Jax;
pub use self::megatron::Megatron;
pub use self::torchtitan::Torchtitan;

use crate::analytic::{AcceleratorKind, SoftwareStyle};
use crate::engine::emit::{ConfigFiles, DecoderPlan};
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Decoder, Fp8Recipe, OptimizerKind, Precision, Train};

/// An engine that trains: what it can run and how it is told.
pub trait Engine: Sync + std::fmt::Debug {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Its name in errors, as its authors write it.
    fn title(&self) -> &'static str;

    /// The style of its software, which decides what it costs.
    fn style(&self) -> SoftwareStyle;

    /// The kinds of parts that it runs on.
    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Gpu]
    }

    /// How it can exchange keys and values among ranks that share sequences.
    fn context_exchanges(&self) -> &'static [ContextExchange];

    /// Why it cannot run any layout of a training in a precision; [`Engine::unsupported_layout`] says it of each.
    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout>;

    /// Why it cannot run a training in a layout; `None` where it can. Cheap, as a search asks it of millions of layouts.
    /// What it cannot train in any layout comes before what it cannot in this one.
    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout>;

    /// Its files for the best choice of a plan, which it can run: a [`DecoderPlan`] is made of no other.
    fn emit(&self, source: &DecoderPlan) -> ConfigFiles;
}

/// What an engine is to train, whatever the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSpec {
    /// The model.
    pub model: Decoder,
    /// The update rule.
    pub optimizer: OptimizerKind,
    /// How values are scaled into fp8, where products are in fp8.
    pub fp8_recipe: Fp8Recipe,
}

impl TrainingSpec {
    /// `model` as `train` says.
    pub fn of(model: &Decoder, train: &Train) -> Self {
        Self {
            model: model.clone(),
            optimizer: train.optimizer.kind,
            fp8_recipe: train.fp8_recipe.unwrap_or_default(),
        }
    }
}

/// Why an engine cannot run a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedLayout {
    /// What the layout has that the engine has not.
    pub what: &'static str,
    /// What to do.
    pub instead: &'static str,
}

/// A refusal.
const fn unsupported(what: &'static str, instead: &'static str) -> Option<UnsupportedLayout> {
    Some(UnsupportedLayout { what, instead })
}

/// dtrain's own worker.
pub static DTRAIN: Dtrain = Dtrain;
/// Megatron-LM on Megatron-Core.
pub static MEGATRON: Megatron = Megatron;
/// torchtitan.
pub static TORCHTITAN: Torchtitan = Torchtitan;
/// PyTorch's FSDP2 by Hugging Face accelerate.
pub static FSDP: Fsdp = Fsdp;
/// DeepSpeed.
pub static DEEPSPEED: DeepSpeed = DeepSpeed;
/// MaxText on JAX.
pub static JAX: Jax = Jax;

/// All engines, dtrain first.
pub static ALL: [&dyn Engine; 6] = [&DTRAIN, &MEGATRON, &TORCHTITAN, &FSDP, &DEEPSPEED, &JAX];

/// The engine that trains on parts of these kinds unless another is named: Megatron-LM where it can; `None` where none can.
pub fn default_engine(kinds: &[AcceleratorKind]) -> Option<&'static dyn Engine> {
    let can = |engine: &&'static dyn Engine| kinds.iter().all(|kind| engine.kinds().contains(kind));
    let megatron: &'static dyn Engine = &MEGATRON;
    std::iter::once(megatron).chain(ALL).find(can)
}

/// The engine called `name`.
pub fn engine_by_name(name: &str) -> Option<&'static dyn Engine> {
    ALL.into_iter().find(|engine| engine.name() == name)
}
