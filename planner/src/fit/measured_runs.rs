//! Measured runs for the fit: rows of the benchmark table, with all settings resolved that they do not state.

use crate::analytic::Constants;
use crate::benchmarks::{ResolvedTraining, TableRow, measured, read};
use std::collections::BTreeMap;

/// A published training with its measured step time.
#[derive(Clone, Debug)]
pub struct MeasuredRun<'a> {
    /// Identifier of the table row.
    pub id: String,
    /// Publication that the run comes from.
    pub source: String,
    /// The training that was measured, with all settings resolved.
    pub training: ResolvedTraining<'a>,
    /// Logarithm of the measured seconds per step.
    pub measured: f64,
    /// Weight of the run's residual in the loss.
    pub weight: f64,
}

/// Number of rows per source up to which each row counts in full.
const FULL: f64 = 10.0;

/// Returns the rows that have a measured step time and can be priced, resolved under `constants`.
pub fn measured_runs<'a>(rows: &[TableRow], constants: &'a Constants) -> Vec<MeasuredRun<'a>> {
    let one = |row: &TableRow| {
        let measured = measured::step_seconds(row)?.ln();
        let training = read::resolve_training(row, constants).ok()?;
        let source = row.text("source").to_owned();
        Some(MeasuredRun { id: row.id.clone(), source, training, measured, weight: 1.0 })
    };
    let mut all: Vec<MeasuredRun<'_>> = rows.iter().filter_map(one).collect();
    let mut sizes: BTreeMap<String, f64> = BTreeMap::new();
    for one in &all {
        *sizes.entry(one.source.clone()).or_default() += 1.0;
    }
    for one in &mut all {
        one.weight = (FULL / sizes[&one.source]).sqrt().min(1.0);
    }
    all
}
