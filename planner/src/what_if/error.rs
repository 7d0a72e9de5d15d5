//! Reasons why a recipe cannot be planned from data sheets.

use super::state::WayToFit;
use crate::planning::error::PlanError;
use dtrain_recipes::Seconds;

/// Reasons why a recipe cannot be planned from data sheets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DatasheetPlanError {
    /// The model is not a decoder, which the formulas require.
    #[error("model.kind = \"{kind}\": the formulas for engines and for different hosts are of decoders")]
    NoDecoder {
        /// Kind of the recipe's model.
        kind: &'static str,
    },
    /// Other engines train the model too, or its work is unknown.
    #[error("dtrain's own worker alone trains mlp, cnn and custom models, and this is another")]
    NotWorkerOnly,
    /// The engine trains decoders, and the model is none.
    #[error(
        "{engine} does not train model.kind = \"{kind}\": dtrain's own worker does; plan for it without --engine and \
        --emit"
    )]
    OtherEngine {
        /// Kind of the recipe's model.
        kind: &'static str,
        /// Name of the engine, as its authors spell it.
        engine: &'static str,
    },
    /// The worker trains the model on equal hosts alone.
    #[error(
        "model.kind = \"{kind}\" is trained on identical hosts: plan each group by itself, with an `--on` of its own"
    )]
    DifferentHosts {
        /// Kind of the recipe's model.
        kind: &'static str,
    },
    /// The recipe asks for CPUs, and the hosts are described by their GPUs.
    #[error(
        "cluster.devices = \"cpu\", and data sheets are of GPUs: remove it, or plan on the hosts themselves"
    )]
    Devices,
    /// dtrain's own worker has no plan for the recipe.
    #[error("{0}")]
    Worker(PlanError),
    /// The number of samples per step cannot be determined from the recipe.
    #[error(
        "train.batch is \"auto\" and objective.stop names neither steps, samples nor tokens: name one of them, or the batch"
    )]
    NoBatch,
    /// The recipe pins a value that no layout of equal devices has.
    #[error("layout.{key} is set: the cost model for other devices does not support it; remove it")]
    Pin {
        /// Key of the pinned value.
        key: &'static str,
    },
    /// The engine does not support the device.
    #[error("{engine} does not run on {part}{instead}")]
    Part {
        /// Name of the engine.
        engine: &'static str,
        /// Name of the device.
        part: String,
        /// Engines that support the device, in words.
        instead: String,
    },
    /// A part lacks the precision of the products.
    #[error("{part} has no products in {precision}: set {instead}")]
    Precision {
        /// Precision that the recipe asks for.
        precision: &'static str,
        /// Name of the device.
        part: String,
        /// Settings that work instead, in words.
        instead: String,
    },
    /// The devices do not divide the batch.
    #[error(
        "{devices} GPUs do not divide a batch of {batch} samples, and {engine} has no other layout of them: set \
        train.batch = {}",
        batches.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
    )]
    Batch {
        /// Name of the engine.
        engine: &'static str,
        /// Number of devices of the cluster.
        devices: u32,
        /// Number of samples per step.
        batch: u32,
        /// Nearest batches that the devices divide and that have a layout.
        batches: Vec<u32>,
    },
    /// No layout divides the batch, the heads and the pinned axes.
    #[error(
        "no layout of {devices} devices is left: a batch of {batch} samples, {heads} heads and the pinned axes must divide"
    )]
    NoLayout {
        /// Number of devices of the cluster.
        devices: u32,
        /// Number of samples per step.
        batch: u32,
        /// Number of query heads.
        heads: u32,
    },
    /// The engine can run none of the remaining layouts.
    #[error("{engine} can run no layout of {devices} devices: it does not support {what}; {instead}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// Number of devices of the cluster.
        devices: u32,
        /// Feature of the layouts that the engine does not support.
        what: &'static str,
        /// Alternative that the message suggests.
        instead: &'static str,
    },
    /// No layout fits into device memory.
    #[error(
        "no layout fits: the nearest needs {needed:.1} GiB of {available:.1} GiB on each device ({nearest}){}",
        these_fit(ways)
    )]
    NothingFits {
        /// GiB on the heaviest rank of the layout closest to fitting.
        needed: f64,
        /// GiB of memory of a device.
        available: f64,
        /// Layout closest to fitting, in words.
        nearest: String,
        /// The cheapest ways to make the training fit.
        ways: Vec<WayToFit>,
    },
}

/// Returns the ways to make a training fit, in words; empty if there are none.
fn these_fit(ways: &[WayToFit]) -> String {
    if ways.is_empty() {
        return String::new();
    }
    let ways: Vec<String> =
        ways.iter().map(|way| format!("{} ({} a step)", way.change, Seconds(way.step_seconds))).collect();
    format!("; these fit, the cheapest first: {}", ways.join("; "))
}
