//! Seconds of the embedding before the layers, and of the output head and the loss after them.

use super::StepInputs;
use super::collective::all_reduce;
use super::device_throughput::DeviceThroughput;
use super::matmul::{ceiling, linear};
use dtrain_recipes::LossKernel;

/// Returns the seconds of output head and loss, forward and backward, for one micro-batch on the last stage.
pub fn head_seconds(case: &StepInputs<'_>) -> f64 {
    let (c, model, tokens) = (case.general(), case.model, case.tokens());
    let width = vocabulary_shard(case);
    // The head's product stays in 16 bits.
    let wide = DeviceThroughput { small: None, ..case.device };
    let product = linear(tokens, width, model.hidden, &wide);
    let (_, again) = case.logits_held();
    // A frozen head has no gradient of its weights, which is half of its backward.
    let backward = if model.adapters.is_some() { product.forward } else { product.backward };
    let products = product.forward * (1.0 + again) + backward;
    let passes = match case.config.arrangement.state.loss {
        LossKernel::Plain | LossKernel::Chunked => c.loss_passes * case.engine.profile.loss,
        // Logits are read and written once in 16 bits beside the sum.
        LossKernel::Fused => 0.5 * c.loss_passes,
    };
    let loss = passes * 4.0 * tokens * width / case.device.stream;
    let group = super::topology::tensor_group(case);
    let sum = all_reduce(case.engine.profile.wire_bytes * tokens * model.hidden, group, &case.links);
    let host = 30.0 * case.engine.profile.launch;
    ((products + loss).max(host) + sum) * (1.0 + model.further())
}

/// Returns the number of vocabulary entries that one rank holds.
fn vocabulary_shard(case: &StepInputs<'_>) -> f64 {
    let (vocabulary, tensor) = (case.model.vocabulary, case.config.tensor());
    if case.engine.profile.pads_vocabulary {
        ceiling(vocabulary / (128.0 * tensor)) * 128.0
    } else {
        (vocabulary / tensor).floor()
    }
}

/// Returns the seconds of the embedding, forward and backward, for one micro-batch on the first stage.
pub fn embedding_seconds(case: &StepInputs<'_>) -> f64 {
    20.0 * case.tokens() * case.model.hidden / case.device.stream + 10.0 * case.engine.profile.launch
}
