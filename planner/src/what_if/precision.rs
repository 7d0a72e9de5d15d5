//! Choice of the precision of matrix products, by part and engine.

use super::DatasheetPlanError;
use crate::analytic::MatmulPrecision;
use crate::engine::{Engine, TrainingSpec};
use crate::hardware::{GpuSpec, HostGroup};
use crate::training::decision::Decision;
use dtrain_recipes::{Fp8Recipe, Precision, Train, Tunable};

/// Precisions that a plan chooses by itself, by preference.
const AUTOMATIC: [Precision; 3] = [Precision::Bf16, Precision::F16, Precision::F32];

/// Precisions among which a recipe may leave the choice, the fastest first.
const FASTEST_FIRST: [Precision; 4] = [Precision::Fp8, Precision::Bf16, Precision::F16, Precision::F32];

/// Decides the precision of the products on all `groups`: the pinned one, or the preferred one that parts and
/// engine have.
pub(super) fn precision(
    train: &Train,
    training: &TrainingSpec,
    engine: &dyn Engine,
    groups: &[HostGroup],
) -> Result<Decision<Precision>, DatasheetPlanError> {
    let lacking = |precision: Precision| groups.iter().find(|group| !group.gpu.has_precision(precision));
    let refusal = |precision: Precision, group: &HostGroup| DatasheetPlanError::Precision {
        precision: precision.name(),
        part: group.part(),
        instead: instead(group.gpu, engine, training),
    };
    let reason = |reason: String, value| Ok(Decision { value, low: value, high: value, reason });
    let wanted: Vec<Precision> = match &train.precision {
        Tunable::Pinned(precision) => {
            let is_mxfp8 = *precision == Precision::Fp8 && train.fp8_recipe == Some(Fp8Recipe::Mxfp8);
            let lacks_scales = |group: &&HostGroup| is_mxfp8 && !has_mxfp8(group.gpu);
            if let Some(group) = groups.iter().find(lacks_scales) {
                return Err(DatasheetPlanError::Precision {
                    precision: "fp8 with scales of 32 values (mxfp8)",
                    part: group.part(),
                    instead: "train.fp8_recipe = \"delayed\" or \"blockwise\"".into(),
                });
            }
            return match lacking(*precision) {
                Some(group) => Err(refusal(*precision, group)),
                None => reason("pinned by the recipe".into(), *precision),
            };
        }
        Tunable::Among(some) => {
            FASTEST_FIRST.into_iter().filter(|precision| some.contains(precision)).collect()
        }
        Tunable::Auto | Tunable::Log { .. } => AUTOMATIC.into(),
    };
    // f16 without f16 units only costs range.
    let is_worth = |precision: &Precision| {
        let has_units = |group: &HostGroup| group.gpu.dense_16 > group.gpu.dense_32;
        *precision != Precision::F16 || wanted.len() == 1 || groups.iter().all(has_units)
    };
    let can = |precision: &Precision| {
        lacking(*precision).is_none() && engine.unsupported_training(training, *precision).is_none()
    };
    let chosen = wanted.iter().copied().filter(is_worth).find(can);
    let first = *wanted.first().expect("a list of choices is not empty");
    // An engine that trains in none of them has its own refusal.
    let chosen = chosen.or_else(|| wanted.iter().copied().find(|precision| lacking(*precision).is_none()));
    let Some(chosen) = chosen else {
        let group = lacking(first).expect("no part has any of them");
        return Err(refusal(first, group));
    };
    if chosen == first {
        return reason("the fastest that keeps the result".into(), chosen);
    }
    match lacking(first) {
        Some(group) => reason(format!("{} has no {}", group.part(), first.name()), chosen),
        None => reason(format!("{} has no {}", engine.title(), first.name()), chosen),
    }
}

/// Returns `true` if the tensor cores of `gpu` have scales of 32 values: those of Blackwell's data-center parts
/// and of CDNA 4.
fn has_mxfp8(gpu: &GpuSpec) -> bool {
    matches!(gpu.generation.as_str(), "blackwell" | "cdna4")
}

/// Returns the settings that work instead, in words.
fn instead(gpu: &GpuSpec, engine: &dyn Engine, training: &TrainingSpec) -> String {
    let can = |precision: &Precision| {
        gpu.has_precision(*precision) && engine.unsupported_training(training, *precision).is_none()
    };
    let some: Vec<String> =
        AUTOMATIC.into_iter().filter(can).map(|precision| format!("\"{}\"", precision.name())).collect();
    if some.is_empty() { "another engine".into() } else { format!("train.precision = {}", some.join(" or ")) }
}

/// Returns the number format of the products for a precision.
pub(super) fn products(precision: Precision, fp8_recipe: Option<Fp8Recipe>) -> MatmulPrecision {
    match precision {
        Precision::F32 => MatmulPrecision::Bits32,
        Precision::F16 => MatmulPrecision::F16,
        Precision::Bf16 => MatmulPrecision::Bits16,
        Precision::Fp8 => match fp8_recipe.unwrap_or_default() {
            Fp8Recipe::Tensorwise | Fp8Recipe::Delayed => MatmulPrecision::Bits8,
            Fp8Recipe::Blockwise | Fp8Recipe::Mxfp8 => MatmulPrecision::Blocks8,
        },
    }
}
