//! Measured runs for the fit: rows of the benchmark table with all unstated settings resolved.

use crate::analytic::Constants;
use crate::benchmarks::{ResolvedTraining, TableRow, measured, read};
use std::collections::BTreeMap;

/// A training with its measured step time.
#[derive(Clone, Debug)]
pub struct MeasuredRun<'a> {
    /// `id` of the table row.
    pub id: String,
    /// Publication it comes from.
    pub source: String,
    /// The training, fully resolved.
    pub training: ResolvedTraining<'a>,
    /// Logarithm of the measured seconds per step.
    pub measured: f64,
    /// Weight of the residual.
    pub weight: f64,
}

/// Rows per source up to which each counts in full.
const FULL: f64 = 10.0;

/// Returns the rows that have a step time and can be priced, resolved under `constants`.
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
