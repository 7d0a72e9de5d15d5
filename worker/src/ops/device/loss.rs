//! Cross-entropy on a device: reads the scores once, replaces them by the gradient, and keeps loss and hits
//! on the device.

use super::kernels::{largest_of_units, sum_of_units};
use super::{
    CubeBackwardFn, CubeValues, buffer, dense, empty, empty_of, indices, numbers, of_each, of_each_row,
    owned_rows, record, shape, values,
};
use crate::mesh::Peers;
use crate::ops::custom_autograd::input;
use crate::ops::{DeferredLossFigures, VocabRange};
use burn::backend::Cube;
use burn::tensor::{DType, Int, Tensor};
use cubecl::prelude::*;

/// Number of units that sum the losses of all rows.
const UNITS: usize = 256;

/// Class that marks a target whose class another rank holds.
const ELSEWHERE: u32 = u32::MAX;

pub(super) fn cross_entropy(
    logits: Tensor<2>,
    targets: &[u32],
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    measured(logits, targets, |differences, stride| {
        let [count, classes] = shape(differences);
        // The kernel would read out of bounds.
        targets.iter().for_each(|id| {
            assert!((*id as usize) < classes, "target {id} is not one of {classes} classes");
        });
        let found = empty(differences, [count, 3]);
        let wanted = numbers(differences, targets);
        let (cubes, cube, indices, units) = of_each_row(count, classes, [differences, &wanted, &found]);
        let (client, scores) = (&found.client, buffer(differences, stride));
        let [wanted, out] = [&wanted, &found].map(|side| side.clone().into_buffer_arg());
        cross_entropy_rows::launch(
            client, cubes, cube, indices, scores, wanted, out, count, classes, stride, z_loss, units,
        );
        found
    })
}

/// Computes the cross-entropy of scores whose classes are cut among `peers`. The ranks exchange three
/// numbers for each prediction: the largest score, the sum of the exponentials relative to it, and the
/// score of the target if they hold it.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products`.
pub(super) fn cross_entropy_of_part(
    logits: Tensor<2>,
    targets: &[u32],
    share: VocabRange,
    peers: &Peers,
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    measured(logits, targets, |differences, stride| {
        let [count, classes] = shape(differences);
        let own = |id: &u32| {
            let own = share.own(*id, classes);
            own.map_or(ELSEWHERE, |class| u32::try_from(class).expect("a class is a u32"))
        };
        let own: Vec<_> = targets.iter().map(own).collect();
        let (wanted, told) = (numbers(differences, &own), empty(differences, [3 * count]));
        let (cubes, cube, indices, units) = of_each_row(count, classes, [differences, &wanted, &told]);
        let (client, scores) = (&told.client, buffer(differences, stride));
        let [targets, out] = [&wanted, &told].map(|side| side.clone().into_buffer_arg());
        tell_rows::launch(client, cubes, cube, indices, scores, targets, out, count, classes, stride, units);

        let (ranks, found) = (peers.size() as usize, empty(differences, [count, 3]));
        let told = dense(values(peers.all_gather_tensor(Tensor::from_primitive::<Cube>(told))));
        let (cubes, cube, indices, units) =
            of_each_row(count, classes, [differences, &wanted, &told, &found]);
        let (client, scores) = (&found.client, buffer(differences, stride));
        let [targets, of, out] = [&wanted, &told, &found].map(|side| side.clone().into_buffer_arg());
        cross_entropy_of_told::launch(
            client, cubes, cube, indices, scores, targets, of, out, count, classes, stride, ranks, z_loss,
            units,
        );
        found
    })
}

/// Returns the mean loss and the figures from the result of `rows`: `[count, 3]`, the cross-entropy of each
/// prediction, 1 if it was right, and its z-loss. `rows` gets the scores, with the stride of their rows, and
/// overwrites them with the gradient of the sum of all losses.
fn measured(
    logits: Tensor<2>,
    targets: &[u32],
    rows: impl FnOnce(&CubeValues, usize) -> CubeValues,
) -> (Tensor<1>, DeferredLossFigures) {
    let mut told = None;
    let loss: Tensor<1> = record(vec![input(logits)], |inputs| {
        let [logits] = <[_; 1]>::try_from(inputs).expect("the loss has one input");
        let (differences, stride) = owned_rows(logits);
        let [count, _] = shape(&differences);
        assert_eq!(targets.len(), count, "there is a target for each prediction");
        let found = rows(&differences, stride);
        let [loss, entropy] = [(); 2].map(|()| empty(&found, [1]));
        let hits = empty_of(&found, [1], DType::I32);
        let (one, cube) = (CubeCount::Static(1, 1, 1), CubeDim::new_1d(256));
        let addresses = indices(UNITS, [&found, &loss, &entropy, &hits]);
        let [of, to, own, right] =
            [&found, &loss, &entropy, &hits].map(|side| side.clone().into_buffer_arg());
        add_up::launch(&found.client, one, cube, addresses, of, to, own, right, count, UNITS);
        let entropy = Tensor::<1>::from_primitive::<Cube>(entropy);
        told = Some((entropy, Tensor::<1, Int>::from_primitive::<Cube>(hits)));
        let gradient: CubeBackwardFn = Box::new(move |d: CubeValues, _: [bool; 8]| {
            let scores = buffer(&differences, stride);
            // The padding between rows is changed as well; it is never read.
            let (cubes, cube, indices) = of_each(scores.len(), [&differences, &d]);
            let (client, d) = (&differences.client, d.clone().into_buffer_arg());
            scale::launch(client, cubes, cube, indices, scores, d, 1.0 / count as f32);
            vec![Some(differences)]
        });
        (loss, gradient)
    });
    let (entropy, hits) = told.expect("the operation ran");
    (loss, DeferredLossFigures::on_device(entropy, hits, targets.len() as u64))
}

/// Kernel: replaces each row of scores by the gradient of its cross-entropy plus that of its z-loss, `z_loss ·
/// log(Z)²`; `found: [rows, 3]` receives its cross-entropy, 1 if no other class has a higher score, and its
/// z-loss. One cube for each row; those of scores begin `stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn cross_entropy_rows(
    scores: &mut [f32],
    targets: &[u32],
    found: &mut [f32],
    rows: usize,
    classes: usize,
    stride: usize,
    z_loss: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * stride);
    let target = targets[row] as usize;
    let wanted = scores[begin + target];
    // The largest score that this unit has read, and the sum of exponentials relative to it.
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    let mut class = unit;
    while class < classes {
        let score = scores[begin + class];
        if score > largest {
            sum = sum * (largest - score).exp() + 1.0f32;
            largest = score;
        } else {
            sum += (score - largest).exp();
        }
        class += units;
    }
    let top = largest_of_units(largest, units);
    let total = sum_of_units(sum * (largest - top).exp(), units);
    let log_z = total.ln() + top;
    let factor = 1.0f32 + 2.0f32 * z_loss * log_z;
    let mut class = unit;
    while class < classes {
        let mut value = (scores[begin + class] - top).exp() / total * factor;
        if class == target {
            value -= 1.0f32;
        }
        scores[begin + class] = value;
        class += units;
    }
    if unit == 0 {
        found[3 * row] = log_z - wanted;
        found[3 * row + 1] = select(wanted >= top, 1.0f32, 0.0f32);
        found[3 * row + 2] = z_loss * log_z * log_z;
    }
}

/// Kernel: writes the numbers that ranks exchange into `told: [rows, 3]`: the largest score of a row, the
/// sum of the exponentials relative to it, and the score of the target, zero if that is [`ELSEWHERE`]. One
/// cube for each row; those of scores begin `stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn tell_rows(
    scores: &[f32],
    targets: &[u32],
    told: &mut [f32],
    rows: usize,
    classes: usize,
    stride: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * stride);
    // The largest score that this unit has read, and the sum of exponentials relative to it.
    let mut largest = f32::min_value();
    let mut sum = 0.0f32;
    let mut class = unit;
    while class < classes {
        let score = scores[begin + class];
        if score > largest {
            sum = sum * (largest - score).exp() + 1.0f32;
            largest = score;
        } else {
            sum += (score - largest).exp();
        }
        class += units;
    }
    let top = largest_of_units(largest, units);
    let total = sum_of_units(sum * (largest - top).exp(), units);
    if unit == 0 {
        let target = targets[row];
        let mut wanted = 0.0f32;
        if target != 4_294_967_295u32 {
            wanted = scores[begin + target as usize];
        }
        told[3 * row] = top;
        told[3 * row + 1] = total;
        told[3 * row + 2] = wanted;
    }
}

/// Kernel: computes [`fn@cross_entropy_rows`] if other ranks hold other classes; `told: [ranks, rows, 3]` has
/// the numbers of all ranks.
#[cube(launch, address_type = "dynamic")]
fn cross_entropy_of_told(
    scores: &mut [f32],
    targets: &[u32],
    told: &[f32],
    found: &mut [f32],
    rows: usize,
    classes: usize,
    stride: usize,
    ranks: usize,
    z_loss: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * stride);
    let mut top = f32::min_value();
    let mut rank = 0usize.runtime();
    while rank < ranks {
        let largest = told[3 * (rank * rows + row)];
        top = select(largest > top, largest, top);
        rank += 1;
    }
    let mut total = 0.0f32;
    let mut wanted = 0.0f32;
    let mut rank = 0usize.runtime();
    while rank < ranks {
        let at = 3 * (rank * rows + row);
        total += told[at + 1] * (told[at] - top).exp();
        wanted += told[at + 2];
        rank += 1;
    }
    let log_z = total.ln() + top;
    let factor = 1.0f32 + 2.0f32 * z_loss * log_z;
    let target = targets[row];
    let mut class = unit;
    while class < classes {
        let mut value = (scores[begin + class] - top).exp() / total * factor;
        if class as u32 == target {
            value -= 1.0f32;
        }
        scores[begin + class] = value;
        class += units;
    }
    if unit == 0 {
        found[3 * row] = log_z - wanted;
        found[3 * row + 1] = select(wanted >= top, 1.0f32, 0.0f32);
        found[3 * row + 2] = z_loss * log_z * log_z;
    }
}

/// Kernel: computes the mean of the cross-entropies (`entropy`), that of the losses with their z-losses
/// (`loss`), and the number of hits. One cube.
#[cube(launch, address_type = "dynamic")]
fn add_up(
    found: &[f32],
    loss: &mut [f32],
    entropy: &mut [f32],
    hits: &mut [i32],
    rows: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let mut entropies = 0.0f32;
    let mut right = 0.0f32;
    let mut z_losses = 0.0f32;
    let mut row = unit;
    while row < rows {
        entropies += found[3 * row];
        right += found[3 * row + 1];
        z_losses += found[3 * row + 2];
        row += units;
    }
    let entropies = sum_of_units(entropies, units);
    let right = sum_of_units(right, units);
    let z_losses = sum_of_units(z_losses, units);
    if unit == 0 {
        loss[0] = (entropies + z_losses) / rows as f32;
        entropy[0] = entropies / rows as f32;
        hits[0] = right as i32;
    }
}

/// Kernel: scales a gradient, `values *= d[0] * factor`.
#[cube(launch, address_type = "dynamic")]
fn scale(values: &mut [f32], d: &[f32], factor: f32) {
    if ABSOLUTE_POS < values.len() {
        let factor = d[0] * factor;
        values[ABSOLUTE_POS] *= factor;
    }
}
