//! Rows of a table as the fit sees them: a training with all that the row leaves open settled, and the measured time.

use crate::analytic::Constants;
use crate::rows::{Row, Training, measured, read};
use std::collections::BTreeMap;

/// A measured training.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// The `id` of its row.
    pub id: String,
    /// Where it was published.
    pub source: String,
    /// The training.
    pub training: Training<'a>,
    /// Logarithm of the measured seconds of a step.
    pub measured: f64,
    /// What its residual counts.
    pub weight: f64,
}

/// Rows of a source of this size count in full.
const FULL: f64 = 10.0;

/// The rows that have a measured step time and can be priced, settled under `constants`.
pub fn observed<'a>(rows: &[Row], constants: &'a Constants) -> Vec<Observed<'a>> {
    let one = |row: &Row| {
        let measured = measured::step_seconds(row)?.ln();
        let training = read::training(row, constants).ok()?;
        let source = row.text("source").to_owned();
        Some(Observed { id: row.id.clone(), source, training, measured, weight: 1.0 })
    };
    let mut all: Vec<Observed<'_>> = rows.iter().filter_map(one).collect();
    let mut sizes: BTreeMap<String, f64> = BTreeMap::new();
    for one in &all {
        *sizes.entry(one.source.clone()).or_default() += 1.0;
    }
    for one in &mut all {
        one.weight = (FULL / sizes[&one.source]).sqrt().min(1.0);
    }
    all
}
