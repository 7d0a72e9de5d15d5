//! Building blocks of device kernels, and a kernel that sums columns.

use cubecl::prelude::*;

/// Returns the sum of `value` over all units of a cube of `units`, a power of two. All units of the cube must
/// call it.
#[cube]
pub(super) fn sum_of_units(value: f32, #[comptime] units: usize) -> f32 {
    let mut parts = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    parts[unit] = value;
    sync_cube();
    let mut half = (units / 2).runtime();
    while half > 0 {
        if unit < half {
            let other = parts[unit + half];
            parts[unit] += other;
        }
        sync_cube();
        half /= 2;
    }
    let sum = parts[0];
    sync_cube();
    sum
}

/// Returns the largest `value` of the units of a cube, under the same conditions as [`fn@sum_of_units`].
#[cube]
pub(super) fn largest_of_units(value: f32, #[comptime] units: usize) -> f32 {
    let mut parts = Shared::<[f32]>::new_slice(units);
    let unit = UNIT_POS as usize;
    parts[unit] = value;
    sync_cube();
    let mut half = (units / 2).runtime();
    while half > 0 {
        if unit < half {
            let (own, other) = (parts[unit], parts[unit + half]);
            parts[unit] = select(other > own, other, own);
        }
        sync_cube();
        half /= 2;
    }
    let largest = parts[0];
    sync_cube();
    largest
}

/// Kernel: sums the columns of each `height` rows. `values: [rows, width]`, whose rows begin `stride`
/// values after one another, `sums: [rows / height, width]`; one unit for each sum.
#[cube(launch, address_type = "dynamic")]
pub(super) fn column_sums(
    values: &[f32],
    sums: &mut [f32],
    rows: usize,
    width: usize,
    height: usize,
    stride: usize,
) {
    if ABSOLUTE_POS < sums.len() {
        let column = ABSOLUTE_POS % width;
        let mut row = ABSOLUTE_POS / width * height;
        let mut end = row + height;
        if end > rows {
            end = rows;
        }
        let mut sum = 0.0f32;
        while row < end {
            sum += values[row * stride + column];
            row += 1;
        }
        sums[ABSOLUTE_POS] = sum;
    }
}
