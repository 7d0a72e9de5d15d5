//! Parity check: compares a short training on the device with the same one on the host, which computes
//! with plain operations in f32.

use super::finite;
use super::training::{SingleRankTraining, llama};
use crate::median::median;
use crate::mesh::ModelParallelGroups;
use crate::network::ModelParameter;
use crate::ops::{Arithmetic, Implementation};
use crate::probe::synthetic::SyntheticSamples;
use crate::stage::{ModelShard, Stage};
use burn::tensor::Device;
use dtrain_protocol::device_check::Parity;
use dtrain_protocol::{Arrangement, DeviceKind, Failure, Rank};
use dtrain_recipes::{Activation, Decoder, Model, Norm, Positions, Precision};

/// Names of the decoders that are compared: two families with no building block in common but attention
/// and linear layers, and one whose dimensions fill no tile of a kernel and no aligned row of memory.
pub(super) const FAMILIES: [&str; 3] = ["gpt", "llama", "odd"];

/// Number of training steps in a comparison.
const STEPS: usize = 8;

/// Number of sequences in a step.
const BATCH: u32 = 4;

/// Least norm of a parameter's gradient that differences are compared with, as a share of the norm of all
/// gradients: smaller gradients are mostly rounding errors, such as those of the biases of keys.
const FLOOR: f64 = 1e-3;

/// Returns the decoder of a family, small enough for the host. Its dimensions fill the tiles of a kernel,
/// except those of the family `odd`.
fn decoder(family: &str) -> Decoder {
    if family == "odd" {
        return Decoder { kv_heads: 1, ..llama(2, 120, 3, 250, 509, 60) };
    }
    let llama = Decoder { kv_heads: 2, ..llama(2, 128, 4, 256, 512, 64) };
    if family == "llama" {
        return llama;
    }
    Decoder {
        kv_heads: 4,
        ffn: 512,
        positions: Positions::Learned,
        norm: Norm::Layer,
        activation: Activation::Gelu,
        tied: true,
        bias: true,
        ..llama
    }
}

/// Returns the tolerated relative differences of losses and of gradients, in this order.
///
/// CUDA computes products in f32 with TF32, which has the ten bits of mantissa of f16.
fn tolerances(precision: Precision, kind: DeviceKind) -> (f64, f64) {
    match precision {
        Precision::F32 if kind == DeviceKind::Cuda => (1e-3, 1e-2),
        Precision::F32 => (1e-3, 1e-3),
        Precision::F16 => (3e-3, 1e-2),
        Precision::Bf16 | Precision::Fp8 => (1e-2, 5e-2),
    }
}

/// Trains a decoder of `family` on the device and on the host, and compares losses and gradients.
pub(super) fn compare(
    family: &str,
    precision: Precision,
    kind: DeviceKind,
    device: &Device,
) -> Result<Parity, Failure> {
    let decoder = decoder(family);
    let model = Model::Decoder(decoder);
    let unbuilt = |error: crate::stage::StageError| Failure::Other(error.to_string());
    let plain =
        Arithmetic { by: Implementation::Reference, precision: Precision::F32, forgets_scores: false };
    let blocks = 0..model.blocks();
    let (arrangement, partners) = (Arrangement::SINGLE, ModelParallelGroups::none());
    let holding = ModelShard {
        model: &model,
        chunks: std::slice::from_ref(&blocks),
        seed: 7,
        arrangement,
        rank: Rank(0),
        partners,
    };
    let reference = Stage::with_arithmetic(&holding, plain, &Device::flex()).map_err(unbuilt)?;
    let mut reference = SingleRankTraining::of(reference, Precision::F32);
    let mut subject = SingleRankTraining::build(&model, precision, device)?;
    let samples = SyntheticSamples::of(&model, BATCH);
    let (mut losses, mut wanted) = (Vec::new(), Vec::new());
    let (mut seconds, mut gradients) = (Vec::new(), None);
    for _ in 0..STEPS {
        let (loss, taken) = subject.step(&samples)?;
        losses.push(finite(loss));
        seconds.push(taken);
        wanted.push(finite(reference.step(&samples)?.0));
        if gradients.is_none() {
            let parameters = subject.stage().parameters().to_vec();
            gradients = Some(farthest(&parameters, &subject.gradients(), &reference.gradients()));
        }
    }
    let (parameter, gradient_difference) = gradients.unwrap_or_default();
    let (loss_tolerance, gradient_tolerance) = tolerances(precision, kind);
    Ok(Parity {
        family: family.to_owned(),
        precision,
        loss_difference: parted(&losses, &wanted),
        losses,
        reference: wanted,
        gradient_difference,
        parameter,
        loss_tolerance,
        gradient_tolerance,
        first_step_seconds: seconds[0],
        step_seconds: median(&seconds[1..]),
    })
}

/// Returns the largest relative difference between an element of `found` and the same one of `wanted`.
fn parted(found: &[f64], wanted: &[f64]) -> f64 {
    let differences =
        found.iter().zip(wanted).map(|(found, wanted)| finite(((found - wanted) / wanted).abs()));
    differences.fold(0.0, f64::max)
}

/// Returns the name of the parameter whose gradient differs most, and the difference relative to the
/// gradient's norm.
fn farthest(parameters: &[ModelParameter], found: &[f32], wanted: &[f32]) -> (String, f64) {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let all = norm(&mut wanted.iter().map(|value| f64::from(*value)));
    let mut worst = (String::new(), -1.0);
    for ModelParameter { name, range, .. } in parameters {
        let (found, wanted) = (&found[range.clone()], &wanted[range.clone()]);
        let own = norm(&mut wanted.iter().map(|value| f64::from(*value)));
        let apart = norm(&mut found.iter().zip(wanted).map(|(f, w)| f64::from(*f) - f64::from(*w)));
        let difference = finite(apart / own.max(FLOOR * all));
        if difference > worst.1 {
            worst = (name.clone(), difference);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_agrees_with_itself_in_every_precision_and_family() {
        for family in FAMILIES {
            for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                let parity = compare(family, precision, DeviceKind::Cpu, &Device::flex()).unwrap();
                println!(
                    "{family} {}: losses {:.1e}, gradient of {} {:.1e}",
                    precision.name(),
                    parity.loss_difference,
                    parity.parameter,
                    parity.gradient_difference
                );
                assert!(parity.is_within(), "{parity:?}");
                let (first, last) = (parity.losses[0], parity.losses[STEPS - 1]);
                assert!(last < first - 0.2, "it learned nothing: {first} to {last}");
                if precision != Precision::F32 {
                    assert!(
                        parity.gradient_difference > 1e-5,
                        "the products are not in {}",
                        precision.name()
                    );
                }
            }
        }
    }

    /// A small error is detected, and the parameter is named.
    #[test]
    fn a_wrong_gradient_is_found() {
        let model = Model::Decoder(decoder("gpt"));
        let samples = SyntheticSamples::of(&model, BATCH);
        let mut rank = SingleRankTraining::build(&model, Precision::F32, &Device::flex()).unwrap();
        rank.step(&samples).unwrap();
        let (parameters, right) = (rank.stage().parameters().to_vec(), rank.gradients());
        assert!(farthest(&parameters, &right, &right).1 < 1e-12);
        for parameter in &parameters {
            let mut wrong = right.clone();
            let own = &mut wrong[parameter.range.clone()];
            own.iter_mut().for_each(|value| *value = 1.01 * *value + 1e-3);
            let (name, difference) = farthest(&parameters, &wrong, &right);
            assert_eq!(name, parameter.name);
            assert!(difference > 1e-3, "{name}: {difference}");
            wrong[parameter.range.start] = f32::NAN;
            assert_eq!(farthest(&parameters, &wrong, &right), (name, f64::MAX));
        }
        assert!(parted(&[1.0, 2.0], &[1.0, 2.1]) > 0.04);
        assert_eq!(parted(&[f64::NAN, 2.0], &[1.0, 2.0]), f64::MAX);
    }
}
