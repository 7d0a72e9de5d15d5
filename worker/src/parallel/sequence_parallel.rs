//! Sequence parallelism: the gradients of parameters that each tensor-parallel rank uses for its part of the
//! sequence only.

use crate::mesh::ModelParallelGroups;
use crate::stage::Stage;
use burn::tensor::Tensor;
use dtrain_protocol::Axis;
use dtrain_protocol::sharding::is_sharded;

/// Sums the gradients of replicated parameters over the tensor-parallel ranks in sequence mode, where each
/// rank used them for its part of the sequence only. One message a step, after the reduction over replicas;
/// of shards those that this rank owns, which are the same on all of these ranks.
///
/// Counted in `planner/src/step/traffic/data_parallel.rs`, `whole`.
pub(crate) fn sum_parts(stage: &mut Stage, partners: &ModelParallelGroups) {
    if !partners.sequence || partners.tensor.size() == 1 {
        return;
    }
    let parameters = stage.parameters().iter().enumerate();
    let whole = parameters.filter(|(_, parameter)| !is_sharded(&parameter.name, Axis::Tensor));
    let whole: Vec<_> = whole.map(|(index, _)| index).collect();
    let gradients = stage.gradients();
    if gradients.are_tensors() {
        let sums: Vec<_> = whole.iter().map(|index| gradients.tensor_or_zeros(*index)).collect();
        let lengths: Vec<_> = sums.iter().map(|sum| sum.dims()[0]).collect();
        if sums.is_empty() {
            return;
        }
        let sums = partners.tensor.all_reduce_tensor(Tensor::cat(sums, 0));
        let mut before = 0;
        for (index, length) in whole.into_iter().zip(lengths) {
            gradients.set_tensor(index, sums.clone().narrow(0, before, length));
            before += length;
        }
        return;
    }
    let mut sums = Vec::new();
    for index in &whole {
        gradients.to_host(*index..index + 1);
        sums.extend_from_slice(gradients.own(*index));
    }
    partners.tensor.all_reduce(&mut sums);
    let mut rest = sums.as_slice();
    for index in whole {
        gradients.change(index, |own| {
            let (sum, after) = rest.split_at(own.len());
            own.copy_from_slice(sum);
            rest = after;
        });
    }
}
