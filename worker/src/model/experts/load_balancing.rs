//! Load balancing of a mixture of experts: the auxiliary loss for spreading the tokens evenly among the
//! experts.
// Shapes in this file: b samples · t tokens of a sample

use crate::mesh::ModelParallelGroups;
use crate::ops;
use burn::tensor::{Tensor, TensorData};
use dtrain_recipes::Experts;

/// Returns the load-balancing loss of this rank's tokens, an auxiliary loss that is added to their mean
/// cross-entropy (DeepSeek-AI 2024, for each sequence): the sum over the experts of the share of choices
/// times the mean probability, times the number of experts and the weight of the loss. It is smallest,
/// the weight itself, if every expert has the same number of tokens. `None` if no gradient is needed.
///
/// If ranks hold parts of a sequence, they sum the choices; each adds for its own tokens, so that the mean
/// over these ranks is that of whole sequences. In sequence mode all ranks have all tokens, and each adds
/// its share.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `experts`.
pub(super) fn load_balancing_loss(
    probabilities: &Tensor<2>,
    chosen: &[usize],
    experts: &Experts,
    partners: &ModelParallelGroups,
    [b, t]: [usize; 2],
) -> Option<Tensor<1>> {
    let (count, per_token) = (experts.count as usize, experts.per_token as usize);
    if experts.balance <= 0.0 || !probabilities.is_tracked() {
        return None;
    }
    let mut shares = vec![0.0; b * count];
    for (choice, expert) in chosen.iter().enumerate() {
        shares[choice / (t * per_token) * count + expert] += 1.0;
    }
    partners.context.all_reduce(&mut shares);
    let copies = if partners.sequence { partners.tensor.size() } else { 1 };
    let choices = (t * per_token) as f64 * f64::from(partners.context.size());
    let factor = experts.balance * count as f64 / choices / (b * t) as f64 / f64::from(copies);
    ops::kernels::scale(&mut shares, factor as f32);
    let shares = Tensor::<3>::from_data(TensorData::new(shares, [b, 1, count]), &probabilities.device());
    Some((probabilities.clone().reshape([b, t, count]) * shares).sum())
}
