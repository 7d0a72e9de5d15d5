//! The norm of all gradients of the model, wherever they lie.

use super::{Ballot, Mesh, tally};
use crate::stage::Stage;
use dtrain_protocol::Failure;

/// Square of the L2 norm of all gradients of the model, the same on every rank; each element counts once.
///
/// The gradients must be summed over the replicas. Ranks that all hold the same weights know it without a word.
pub fn norm_squared(stage: &mut Stage, mesh: &Mesh) -> Result<f64, Failure> {
    if !mesh.cuts_weights() {
        return Ok(stage.gradients().norm_squared());
    }
    // A tied embedding lies on the first and on the last stage; the first counts.
    let again = stage.tied_across_stages().filter(|_| !stage.has_embedding());
    let counted = stage.parameters().iter().enumerate();
    let counted = counted.filter(|(index, one)| Some(*index) != again && mesh.speaks_for(&one.name));
    let ranges: Vec<_> = counted.map(|(_, parameter)| parameter.range.clone()).collect();
    let mine = ranges.into_iter().map(|range| stage.gradients().norm_squared_of(range)).sum();
    tally::send(&Ballot { loss_sum: mine, ..Ballot::default() }, mesh.world());
    Ok(tally::collect(mesh.world())?.loss_sum)
}
