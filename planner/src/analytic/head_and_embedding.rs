//! Seconds of the embedding before the layers, and of the output head and the loss after them.

use super::StepInputs;
use super::collective::all_reduce;
use super::device_throughput::DeviceThroughput;
use super::matmul::{ceiling, linear};

/// Returns the seconds of output head and loss, forward and backward, for one micro-batch on the last stage.
pub fn head_seconds(case: &StepInputs<'_>) -> f64 {
    let (c, model, tokens) = (case.general(), case.model, case.tokens());
    let width = vocabulary_shard(case);
    // The head's product stays in 16 bits.
    let wide = DeviceThroughput { small: None, ..case.device };
    let products = linear(tokens, width, model.hidden, &wide).sum();
    let loss = c.loss_passes * 4.0 * tokens * width / case.device.stream;
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
