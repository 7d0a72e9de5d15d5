//! Rows of a table as the fit sees them: a training with all that the row leaves open settled, and the measured time.

use crate::analytic::Constants;
use crate::benchmarks::{ResolvedTraining, TableRow, measured, read};
use std::collections::BTreeMap;

/// A measured training.
#[derive(Clone, Debug)]
pub struct MeasuredRun<'a> {
    /// The `id` of its row.
    pub id: String,
    /// Where it was published.
    pub source: String,
    /// The training.
    pub training: ResolvedTraining<'a>,
    /// Logarithm of the measured seconds of a step.
    pub measured: f64,
    /// What its residual counts.
    pub weight: f64,
}

/// Rows of a source of this size count in full.
const FULL: f64 = 10.0;

/// The rows that have a measured step time and can be priced, settled under `constants`.
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
