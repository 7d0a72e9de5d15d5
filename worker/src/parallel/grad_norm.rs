//! Gradient norm of the whole model, for gradient clipping.

use super::{StepTotals, step_totals};
use crate::mesh::Mesh;
use crate::stage::Stage;
use dtrain_protocol::Failure;

/// Returns the squared L2 norm of all gradients of the model, the same on every rank; each element counts
/// once.
///
/// The gradients must be reduced over the replicas; of shards a rank counts those that it owns. Ranks that
/// all hold all gradients need no communication.
pub fn grad_norm_squared(stage: &mut Stage, mesh: &Mesh) -> Result<f64, Failure> {
    if !mesh.cuts_gradients() {
        return Ok(stage.gradients().norm_squared());
    }
    // A tied embedding is on the first and on the last stage; the first counts.
    let again = stage.tied_across_stages().filter(|_| !stage.has_embedding());
    let counted = stage.parameters().iter().enumerate();
    let counted = counted.filter(|(index, one)| Some(*index) != again && mesh.counts_in_norm(&one.name));
    let counted: Vec<_> = counted.map(|(index, _)| index).collect();
    let mine = stage.gradients().norm_squared_of_all(counted.into_iter());
    step_totals::send(&StepTotals { square: mine, ..StepTotals::default() }, mesh.world());
    Ok(step_totals::collect(mesh.world())?.square)
}
