//! Gradient clipping: the global norm of the gradient, and the factor that limits it.

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

/// Returns the clip factor: it scales a gradient of norm `norm` down to the norm `largest`, and is 1 if the
/// norm is smaller or `largest` is `None`.
pub fn clip_factor(norm: f64, largest: Option<f64>) -> f64 {
    largest.map_or(1.0, |largest| (largest / norm).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_larger_norm_is_clipped() {
        let of = |norm| clip_factor(norm, Some(1.0));
        assert_eq!([of(4.0), of(1.0), of(0.5), of(0.0)], [0.25, 1.0, 1.0, 1.0]);
        assert_eq!(clip_factor(4.0, None), 1.0);
    }
}
