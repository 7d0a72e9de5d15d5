//! Degrees of parallelism that a row of a table states.

use super::table::TableRow;
use super::words;

/// Number of devices per host if a row does not state it.
const PER_HOST: f64 = 8.0;

/// Degrees of parallelism that a row states, as far as they do not depend on the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowDegrees {
    pub(super) ranks: f64,
    pub(super) per_host: f64,
    pub(super) tensor: f64,
    pub(super) pipeline: f64,
    pub(super) context: f64,
    pub(super) data: f64,
}

/// Reads the degrees of parallelism of a row; the number of devices decides where columns disagree.
pub(super) fn shape(row: &TableRow) -> RowDegrees {
    let ranks = row.positive("num_gpus").unwrap_or(1.0);
    let degree = |column| row.positive(column).unwrap_or(1.0).max(1.0);
    let (tensor, pipeline, context) = (degree("tp"), degree("pp"), degree("cp"));
    let others = tensor * pipeline * context;
    let rest = (ranks / others).max(1.0);
    // The number of devices wins: some tables count replicas differently.
    let data = row.positive("dp").filter(|data| (others * data - ranks).abs() < 0.5).unwrap_or(rest);
    let said = row.positive("gpus_per_node").unwrap_or(PER_HOST);
    let domain = row.positive("link_domain").unwrap_or_else(|| {
        words::link_domain(row.text("hardware")).map_or(said, |smallest| said.max(smallest))
    });
    RowDegrees { ranks, per_host: domain.min(ranks), tensor, pipeline, context, data }
}
