//! Cross-entropy that reads the scores once, leaves its gradient where they were, and keeps loss and hits on the device.

use super::kernels::{largest_of_units, sum_of_units};
use super::{Values, empty, empty_of, numbers, of_each, of_each_row, owned, record, shape};
use crate::ops::Measured;
use crate::ops::tape::input;
use burn::backend::Cube;
use burn::tensor::{DType, Int, Tensor};
use cubecl::prelude::*;

/// Units that add up the losses of all rows.
const UNITS: usize = 256;

pub(super) fn cross_entropy(logits: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Measured) {
    let mut hits = None;
    let loss: Tensor<1> = record(vec![input(logits)], |values| {
        let [logits] = <[_; 1]>::try_from(values).expect("the loss has one input");
        let differences = owned(logits);
        let [count, classes] = shape(&differences);
        assert_eq!(targets.len(), count, "there is a target for each prediction");
        // A device would read past the scores.
        targets.iter().for_each(|id| {
            assert!((*id as usize) < classes, "target {id} is not one of {classes} classes");
        });
        let found = empty(&differences, [count, 2]);
        let (cubes, cube, units) = of_each_row(&differences, count, classes);
        let wanted = numbers(&differences, targets).into_buffer_arg();
        let [scores, out] = [&differences, &found].map(|side| side.clone().into_buffer_arg());
        cross_entropy_rows::launch(&found.client, cubes, cube, scores, wanted, out, count, classes, units);
        let (loss, own_hits) = (empty(&found, [1]), empty_of(&found, [1], DType::I32));
        let (one, cube) = (CubeCount::Static(1, 1, 1), CubeDim::new_1d(256));
        let [of, to, right] = [&found, &loss, &own_hits].map(|side| side.clone().into_buffer_arg());
        add_up::launch(&found.client, one, cube, of, to, right, count, UNITS);
        hits = Some(Tensor::<1, Int>::from_primitive::<Cube>(own_hits));
        let gradient = move |d: Values, _: [bool; 8]| {
            let (cubes, cube) = of_each(&differences, count * classes);
            let [own, d] = [&differences, &d].map(|side| side.clone().into_buffer_arg());
            scale::launch(&differences.client, cubes, cube, own, d, 1.0 / count as f32);
            vec![Some(differences)]
        };
        (loss, Box::new(gradient))
    });
    let hits = hits.expect("the operation ran");
    (loss.clone(), Measured::on_device(loss.inner(), hits, targets.len() as u64))
}

/// Each row of scores becomes its softmax less the target; `found: [rows, 2]` gets its cross-entropy, and 1 where no other class
/// has a higher score. One cube for each row.
#[cube(launch)]
fn cross_entropy_rows(
    scores: &mut [f32],
    targets: &[u32],
    found: &mut [f32],
    rows: usize,
    classes: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * classes);
    let target = targets[row] as usize;
    let wanted = scores[begin + target];
    // The largest score that a unit has seen, and the sum of exponentials relative to it.
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
    let mut class = unit;
    while class < classes {
        let mut value = (scores[begin + class] - top).exp() / total;
        if class == target {
            value -= 1.0f32;
        }
        scores[begin + class] = value;
        class += units;
    }
    if unit == 0 {
        found[2 * row] = total.ln() + top - wanted;
        found[2 * row + 1] = select(wanted >= top, 1.0f32, 0.0f32);
    }
}

/// The mean of the cross-entropies, and the number of hits. One cube.
#[cube(launch)]
fn add_up(found: &[f32], loss: &mut [f32], hits: &mut [i32], rows: usize, #[comptime] units: usize) {
    let unit = UNIT_POS as usize;
    let mut losses = 0.0f32;
    let mut right = 0.0f32;
    let mut row = unit;
    while row < rows {
        losses += found[2 * row];
        right += found[2 * row + 1];
        row += units;
    }
    let losses = sum_of_units(losses, units);
    let right = sum_of_units(right, units);
    if unit == 0 {
        loss[0] = losses / rows as f32;
        hits[0] = right as i32;
    }
}

/// `values *= d[0] * factor`
#[cube(launch)]
fn scale(values: &mut [f32], d: &[f32], factor: f32) {
    if ABSOLUTE_POS < values.len() {
        let factor = d[0] * factor;
        values[ABSOLUTE_POS] *= factor;
    }
}
