//! PowerSGD: sends a matrix as two factors of low rank (Vogels et al. 2019).
//!
//! One step of the power method: the sum of `M Q` over the ranks is orthogonalized to `P`, the sum of `Mᵀ P`
//! is the next `Q`, and `P Qᵀ` approximates the sum of the `M`. Beginning with the last `Q` follows the
//! matrix from step to step. The error of a rank's own `P Qᵀ` is added to its next `M` (error feedback).
//! Vectors and small matrices are sent whole. Factors and residuals are unscaled.

use super::error_feedback_rollback::ErrorFeedbackRollback;
use crate::mesh::CommQueue;
use crate::network::ModelParameter;
use crate::ops::kernels::{Matrix, matmul_to_vec};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Failure, communication_volume};
use std::ops::Range;

/// Relative length below which an orthogonalized column counts as zero.
const NOTHING: f64 = 1e-6;

/// The low-rank compressor of one stage's gradients.
#[derive(Debug)]
pub struct PowerSgdCompressor {
    rank: usize,
    parameters: usize,
    /// Parameters that are sent in two factors.
    factored: Vec<LowRankParameter>,
    /// Ranges of parameters that are sent whole.
    whole: Vec<Range<usize>>,
    /// Residual of error feedback, for all values.
    residual: Vec<f32>,
    /// Factor by which the gradients of the current batch are multiplied.
    scale: f32,
    undo: ErrorFeedbackRollback,
}

/// A parameter that is sent in two factors.
#[derive(Debug)]
struct LowRankParameter {
    /// Index of the parameter among all parameters.
    parameter: usize,
    range: Range<usize>,
    rows: usize,
    columns: usize,
    /// The last `Q`, `[columns, rank]`, the same on all ranks.
    query: Vec<f32>,
    /// `query` before the unsettled batch, if one began.
    before: Vec<f32>,
}

impl PowerSgdCompressor {
    /// Creates the compressor for the gradients of `parameters`, with factors of rank `rank`.
    pub fn new(parameters: &[ModelParameter], rank: u32) -> Self {
        let length = parameters.last().map_or(0, |last| last.range.end);
        let (mut factored, mut whole) = (Vec::new(), Vec::new());
        for (index, ModelParameter { shape, range, .. }) in parameters.iter().enumerate() {
            let shape: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
            let sides = communication_volume::matrix(&shape);
            if !communication_volume::is_low_rank(sides, rank) {
                whole.push(range.clone());
                continue;
            }
            let [rows, columns] = sides.map(|side| usize::try_from(side).expect("it lies in memory"));
            let mut query = vec![0.0; columns * rank as usize];
            (0..rank as usize).for_each(|column| fill(&mut query, column, rank as usize, index as u64));
            factored.push(LowRankParameter {
                parameter: index,
                range: range.clone(),
                rows,
                columns,
                query,
                before: Vec::new(),
            });
        }
        let (rank, parameters) = (rank as usize, parameters.len());
        let (residual, undo) = (vec![0.0; length], ErrorFeedbackRollback::default());
        Self { rank, parameters, factored, whole, residual, scale: 1.0, undo }
    }

    /// Records the start of a batch whose gradients are multiplied by `scale`, a power of two.
    pub fn begin(&mut self, scale: f32) {
        self.scale = scale;
        self.undo.begin(&self.residual);
        self.factored.iter_mut().for_each(|one| one.before.clone_from(&one.query));
    }

    /// Settles the batch in progress; unless its sums are `finite`, restores the state before it.
    pub fn resolve(&mut self, finite: bool) {
        if self.undo.resolve(&mut self.residual, finite) {
            self.factored.iter_mut().for_each(|one| one.query.clone_from(&one.before));
        }
    }

    /// Resets the factors of matrices whose last `Q` is not finite.
    pub fn replace_lost_factors(&mut self) {
        let rank = self.rank;
        for LowRankParameter { parameter, query, .. } in &mut self.factored {
            if query.iter().any(|value| !value.is_finite()) {
                (0..rank).for_each(|column| fill(query, column, rank, *parameter as u64));
            }
        }
    }

    /// Returns the number of all parameters, sent in factors or whole.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Returns the residual of error feedback.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Returns the residual of error feedback, to be replaced by that of a checkpoint.
    pub fn residual_mut(&mut self) -> &mut [f32] {
        &mut self.residual
    }

    /// Iterates over the parameters sent in factors: index, shape and values of the factor `Q`, for
    /// modification.
    pub fn factors_mut(&mut self) -> impl Iterator<Item = (usize, [usize; 2], &mut [f32])> {
        let rank = self.rank;
        self.factored
            .iter_mut()
            .map(move |one| (one.parameter, [one.columns, rank], one.query.as_mut_slice()))
    }

    /// Iterates over the parameters sent in factors: index, shape and values of the factor `Q`.
    pub fn factors(&self) -> impl Iterator<Item = (usize, [usize; 2], &[f32])> {
        self.factored.iter().map(|one| (one.parameter, [one.columns, self.rank], one.query.as_slice()))
    }

    /// Returns the bytes of the residuals and factors that it stores.
    pub fn bytes(&self) -> u64 {
        let queries = self.factored.iter().map(|one| one.query.len() + one.before.len()).sum::<usize>();
        4 * (self.residual.len() + queries) as u64 + self.undo.bytes()
    }

    /// Replaces `values` approximately by their sum over the ranks.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `factors`.
    pub fn sum(&mut self, values: &mut [f32], queue: &CommQueue) -> Result<(), Failure> {
        let (rank, back) = (self.rank, self.scale.recip());
        let mut parcel = Vec::new();
        for one in &self.factored {
            let owed = &mut self.residual[one.range.clone()];
            let own = &values[one.range.clone()];
            owed.iter_mut().zip(own).for_each(|(owed, value)| *owed += value * back);
            let query = Matrix::dense(&one.query, [one.columns, rank]);
            parcel.extend(matmul_to_vec(Matrix::dense(owed, [one.rows, one.columns]), query));
        }
        for range in &self.whole {
            parcel.extend_from_slice(&values[range.clone()]);
        }
        queue.start_all_reduce(parcel);
        let mut parcel = queue.wait()?;
        let mut rest = parcel.as_mut_slice();
        let mut bases = Vec::with_capacity(self.factored.len());
        for one in &self.factored {
            let (base, behind) = rest.split_at_mut(one.rows * rank);
            orthogonalise(base, rank);
            bases.push(&*base);
            rest = behind;
        }
        for range in &self.whole {
            let (sum, behind) = rest.split_at_mut(range.len());
            values[range.clone()].copy_from_slice(sum);
            rest = behind;
        }
        self.project(&bases, values, queue)
    }

    /// Runs the second half of [`PowerSgdCompressor::sum`]: projects the matrices onto `bases`, each of which
    /// has `rank` columns.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `factors`.
    fn project(&mut self, bases: &[&[f32]], values: &mut [f32], queue: &CommQueue) -> Result<(), Failure> {
        let (rank, scale) = (self.rank, self.scale);
        let mut parcel = Vec::new();
        for (one, base) in self.factored.iter().zip(bases) {
            let owed = &mut self.residual[one.range.clone()];
            let base = Matrix::dense(base, [one.rows, rank]);
            let own = matmul_to_vec(Matrix::dense(owed, [one.rows, one.columns]).transposed(), base);
            let sent = matmul_to_vec(base, Matrix::dense(&own, [one.columns, rank]).transposed());
            owed.iter_mut().zip(sent).for_each(|(owed, sent)| *owed -= sent);
            parcel.extend(own);
        }
        queue.start_all_reduce(parcel);
        let parcel = queue.wait()?;
        let mut rest = parcel.as_slice();
        for (one, base) in self.factored.iter_mut().zip(bases) {
            let (query, behind) = rest.split_at(one.query.len());
            rest = behind;
            one.query.copy_from_slice(query);
            let query = Matrix::dense(query, [one.columns, rank]);
            let sum = matmul_to_vec(Matrix::dense(base, [one.rows, rank]), query.transposed());
            let room = &mut values[one.range.clone()];
            room.iter_mut().zip(sum).for_each(|(value, sum)| *value = sum * scale);
            // A matrix of lower rank has columns of zeros, which would otherwise stay zero.
            for column in 0..rank {
                if one.query.iter().skip(column).step_by(rank).all(|value| *value == 0.0) {
                    fill(&mut one.query, column, rank, one.parameter as u64);
                }
            }
        }
        Ok(())
    }
}

/// Fills column `column` of `columns` with pseudo-random numbers that depend on `seed` and their index alone.
fn fill(values: &mut [f32], column: usize, columns: usize, seed: u64) {
    for (row, value) in values.iter_mut().skip(column).step_by(columns).enumerate() {
        let bits = splitmix64(splitmix64(seed, column as u64), row as u64);
        *value = (bits >> 40) as f32 / (1 << 23) as f32 - 1.0;
    }
}

/// Makes the `columns` columns of a matrix orthonormal, from the first to the last (Gram and Schmidt, twice
/// for each column, which is enough). A column in the span of those before it becomes zero.
fn orthogonalise(values: &mut [f32], columns: usize) {
    let rows = values.len() / columns;
    let mut done: Vec<Vec<f64>> = Vec::with_capacity(columns);
    for column in 0..columns {
        let mut one: Vec<f64> = (0..rows).map(|row| f64::from(values[row * columns + column])).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let before = dot(&one, &one).sqrt();
        for other in done.iter().chain(&done) {
            let along = dot(&one, other);
            one.iter_mut().zip(other).for_each(|(one, other)| *one -= along * other);
        }
        let after = dot(&one, &one).sqrt();
        let factor = if after > NOTHING * before { 1.0 / after } else { 0.0 };
        one.iter_mut().for_each(|value| *value *= factor);
        for (row, value) in one.iter().enumerate() {
            values[row * columns + column] = *value as f32;
        }
        done.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::loopback;
    use dtrain_protocol::Region;
    use std::time::Duration;

    fn parameters(shapes: &[&[usize]]) -> Vec<ModelParameter> {
        let mut begin = 0;
        let parameter = |shape: &&[usize]| {
            let range = begin..begin + shape.iter().product::<usize>();
            begin = range.end;
            let region = Region::whole(&shape.iter().map(|side| *side as u64).collect::<Vec<_>>());
            ModelParameter {
                name: format!("{range:?}"),
                shape: shape.to_vec(),
                region,
                has_weight_decay: true,
                unit: 0,
                range,
            }
        };
        shapes.iter().map(parameter).collect()
    }

    /// Returns every rank's values after `steps` sums of the same `values`, added up, and its compressor.
    fn summed(rank: u32, values: &[Vec<f32>], steps: u32) -> Vec<(Vec<f32>, PowerSgdCompressor)> {
        let groups = loopback::threads(u32::try_from(values.len()).expect("few"), Duration::from_secs(10));
        let run = |(group, values): (loopback::ThreadRank, Vec<f32>)| {
            std::thread::spawn(move || {
                let queue = CommQueue::start(Box::new(group));
                let mut sender = PowerSgdCompressor::new(&parameters(&[&[12, 10], &[5], &[3, 2]]), rank);
                let mut all = vec![0.0; values.len()];
                for _ in 0..steps {
                    let mut values = values.clone();
                    sender.sum(&mut values, &queue).expect("all are there");
                    all.iter_mut().zip(values).for_each(|(all, value)| *all += value);
                }
                (all, sender)
            })
        };
        let threads: Vec<_> = groups.into_iter().zip(values.to_vec()).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    fn noise(seed: u64, length: u64) -> Vec<f32> {
        (0..length).map(|index| (splitmix64(seed, index) % 1000) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn a_sum_of_the_rank_of_its_factors_arrives_whole() {
        // Each rank's matrix is a product of two vectors, so the sum of two has rank 2.
        let matrix = |seed| {
            let (left, right) = (noise(seed, 12), noise(seed + 1, 10));
            left.iter().flat_map(|a| right.iter().map(move |b| a * b)).collect::<Vec<_>>()
        };
        let values = [1, 3].map(|seed| [matrix(seed), noise(seed, 11)].concat());
        let expected: Vec<f32> = values[0].iter().zip(&values[1]).map(|(a, b)| a + b).collect();
        let found = summed(2, &values, 1);
        assert_eq!(found[0].0, found[1].0, "all ranks get the same bits");
        for (found, expected) in found[0].0.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
        }
        assert_eq!(found[0].0[120..], expected[120..], "small ones travel as they are");
    }

    #[test]
    fn nothing_is_lost_on_the_way() {
        let values = [noise(7, 131), noise(8, 131)];
        let found = summed(3, &values, 30);
        for (index, arrived) in found[0].0.iter().enumerate() {
            let given = 30.0 * (values[0][index] + values[1][index]);
            let waits: f32 = found.iter().map(|(_, sender)| sender.residual()[index]).sum();
            assert!((arrived + waits - given).abs() < 1e-3, "{arrived} and {waits} of {given}");
        }
        // The residuals of all ranks together do not grow with the steps.
        let waits = |steps| {
            let found = summed(3, &values, steps);
            let owed = (0..131).map(|index| found.iter().map(|(_, one)| one.residual()[index]).sum::<f32>());
            owed.map(|owed| owed * owed).sum::<f32>().sqrt()
        };
        assert!(waits(60) < 2.0 * waits(15), "{} and {}", waits(60), waits(15));
    }

    #[test]
    fn a_matrix_of_zeros_does_not_end_the_search() {
        let mut values = vec![0.0; 131];
        let queue = CommQueue::start(Box::new(loopback::SingleRank));
        let mut sender = PowerSgdCompressor::new(&parameters(&[&[12, 10], &[5], &[3, 2]]), 2);
        sender.sum(&mut values, &queue).expect("alone");
        assert!(values.iter().all(|value| *value == 0.0));
        values[..120].fill(1.0);
        sender.sum(&mut values, &queue).expect("alone");
        assert!(values[..120].iter().all(|value| (value - 1.0).abs() < 1e-5), "{:?}", &values[..3]);
    }

    #[test]
    fn columns_become_orthonormal_and_those_without_a_direction_zero() {
        // Rows of three columns, of which the last is the sum of the others.
        let mut values: Vec<f32> = (0..8u8)
            .flat_map(|row| {
                let (a, b) = (f32::from(row), f32::from(row * row) - 9.0);
                [a, b, a + b]
            })
            .collect();
        orthogonalise(&mut values, 3);
        let dot = |a: usize, b: usize| values.chunks(3).map(|row| row[a] * row[b]).sum::<f32>();
        assert!((dot(0, 0) - 1.0).abs() < 1e-6 && (dot(1, 1) - 1.0).abs() < 1e-6 && dot(0, 1).abs() < 1e-6);
        assert!(dot(2, 2) == 0.0, "{}", dot(2, 2));
    }
}
