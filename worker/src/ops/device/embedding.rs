//! Embeddings on a device: rows of a table by token, and by position.

use super::{CubeValues, dense, empty, numbers, of_each, record, shape, zeros};
use crate::ops::VocabRange;
use crate::ops::custom_autograd::input;
use burn::tensor::Tensor;
use cubecl::prelude::*;

/// Row number that marks a token whose row another rank holds.
const NONE: u32 = u32::MAX;

/// Looks up the rows of tokens in the table. One copy to the device has the data for forward and backward:
/// the row of each token; and for the gradient the tokens, sorted by their rows, and the start of each row's
/// tokens in this order. Each row is summed in the order of the tokens.
pub(super) fn embed(
    table: Tensor<2>,
    share: VocabRange,
    tokens: &[u32],
    [samples, length]: [usize; 2],
) -> Tensor<3> {
    record(vec![input(table)], |values| {
        let [table] = <[_; 1]>::try_from(values).expect("an embedding has one input").map(dense);
        let [rows, width] = shape(&table);
        let (count, plan) = (tokens.len(), plan(share, tokens, rows));
        let held = plan.held;
        let plan = numbers(&table, &plan.numbers);
        let out = empty(&table, [samples, length, width]);
        let (cubes, cube, indices) = of_each(count * width, [&table, &plan, &out]);
        let [from, by, to] = [&table, &plan, &out].map(|side| side.clone().into_buffer_arg());
        take_rows::launch(&out.client, cubes, cube, indices, from, by, to, width);
        let gradient = move |d: CubeValues, _: [bool; 8]| {
            let d = dense(d);
            let d_table = zeros(&d, [rows, width]);
            if held > 0 {
                let (cubes, cube, indices) = of_each(held * width, [&d, &plan, &d_table]);
                let [own, by, to] = [&d, &plan, &d_table].map(|side| side.clone().into_buffer_arg());
                add_rows::launch(&d.client, cubes, cube, indices, own, by, to, count, held, width);
            }
            vec![Some(d_table)]
        };
        (out, Box::new(gradient))
    })
}

/// The rows that a batch of tokens looks up, as uploaded to the device.
struct RowLookup {
    /// Row of each token; then the tokens in the order of their rows; then the start of each used row in that
    /// order, and the end of the last.
    numbers: Vec<u32>,
    /// Number of rows that the tokens use.
    held: usize,
}

fn plan(share: VocabRange, tokens: &[u32], rows: usize) -> RowLookup {
    let number = |number: usize| u32::try_from(number).expect("a batch has fewer tokens than a u32 counts");
    let own: Vec<_> = tokens.iter().map(|id| share.own(*id, rows).map_or(NONE, number)).collect();
    let mut order: Vec<_> = (0..number(tokens.len())).collect();
    order.sort_by_key(|token| own[*token as usize]);
    let row = |place: &usize| own[order[*place] as usize];
    let mut begins: Vec<_> =
        (0..order.len()).filter(|place| *place == 0 || row(place) != row(&(place - 1))).map(number).collect();
    // Tokens of other ranks come last, if there are any.
    let held = begins.iter().filter(|place| row(&(**place as usize)) != NONE).count();
    if held == begins.len() {
        begins.push(number(order.len()));
    }
    // Equally long for every batch, so that no new memory is allocated.
    begins.resize(order.len() + 1, 0);
    RowLookup { numbers: [own, order, begins].concat(), held }
}

/// Adds the rows of `table` from row `first` on to the tokens of every sample.
pub(super) fn add_positions(x: Tensor<3>, table: Tensor<2>, first: usize) -> Tensor<3> {
    record(vec![input(x), input(table)], |values| {
        let [x, table] = <[_; 2]>::try_from(values).expect("positions have two inputs").map(dense);
        let ([b, t, width], [rows, _]) = (shape::<3>(&x), shape::<2>(&table));
        assert!(first + t <= rows, "positions {first} to {} of {rows}", first + t);
        let out = empty(&x, [b, t, width]);
        let (cubes, cube, indices) = of_each(b * t * width, [&x, &table, &out]);
        let [from, added, to] = [&x, &table, &out].map(|side| side.clone().into_buffer_arg());
        add_table::launch(&out.client, cubes, cube, indices, from, added, to, first * width, t * width);
        let gradient = move |d: CubeValues, wanted: [bool; 8]| {
            let d = dense(d);
            let d_table = wanted[1].then(|| {
                let d_table = empty(&d, [rows, width]);
                let (cubes, cube, indices) = of_each(rows * width, [&d, &d_table]);
                let [own, to] = [&d, &d_table].map(|side| side.clone().into_buffer_arg());
                add_samples::launch(&d.client, cubes, cube, indices, own, to, first * width, t * width, b);
                d_table
            });
            vec![Some(d), d_table]
        };
        (out, Box::new(gradient))
    })
}

/// Kernel: copies the row of each token. One unit for each value of `out`.
#[cube(launch, address_type = "dynamic")]
fn take_rows(table: &[f32], plan: &[u32], out: &mut [f32], width: usize) {
    if ABSOLUTE_POS < out.len() {
        let row = plan[ABSOLUTE_POS / width];
        let mut value = 0.0f32;
        if row != 4_294_967_295u32 {
            value = table[row as usize * width + ABSOLUTE_POS % width];
        }
        out[ABSOLUTE_POS] = value;
    }
}

/// Kernel: sums the gradient of each used row, see [`RowLookup`]. One unit for each column of the `held` used
/// rows.
#[cube(launch, address_type = "dynamic")]
fn add_rows(d: &[f32], plan: &[u32], d_table: &mut [f32], count: usize, held: usize, width: usize) {
    let used = ABSOLUTE_POS / width;
    if used < held {
        let column = ABSOLUTE_POS % width;
        let mut place = plan[2 * count + used] as usize;
        let end = plan[2 * count + used + 1] as usize;
        let row = plan[plan[count + place] as usize] as usize;
        let mut sum = 0.0f32;
        while place < end {
            sum += d[plan[count + place] as usize * width + column];
            place += 1;
        }
        d_table[row * width + column] = sum;
    }
}

/// Kernel: adds position embeddings. One unit for each value of `y`, of samples of `length` values; those
/// of the table begin at `first`.
#[cube(launch, address_type = "dynamic")]
fn add_table(x: &[f32], table: &[f32], y: &mut [f32], first: usize, length: usize) {
    if ABSOLUTE_POS < y.len() {
        y[ABSOLUTE_POS] = x[ABSOLUTE_POS] + table[first + ABSOLUTE_POS % length];
    }
}

/// Kernel: sums the gradient of position embeddings over samples. One unit for each value of `d_table`, which
/// becomes zero for unused positions.
#[cube(launch, address_type = "dynamic")]
fn add_samples(d: &[f32], d_table: &mut [f32], first: usize, length: usize, samples: usize) {
    if ABSOLUTE_POS < d_table.len() {
        let mut sum = 0.0f32;
        if ABSOLUTE_POS >= first && ABSOLUTE_POS < first + length {
            let mut sample = 0usize.runtime();
            while sample < samples {
                sum += d[sample * length + ABSOLUTE_POS - first];
                sample += 1;
            }
        }
        d_table[ABSOLUTE_POS] = sum;
    }
}
