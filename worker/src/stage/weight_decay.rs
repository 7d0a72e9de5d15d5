//! Weight decay: the rule for the parameters that it applies to.

/// Returns `true` if weight decay applies to parameters of `shape`: to matrices, and not to the vectors of
/// norms and biases.
pub(super) fn has_weight_decay(shape: &[usize]) -> bool {
    shape.len() > 1
}

#[cfg(test)]
mod tests {
    use crate::stage::Stage;
    use burn::tensor::Device;
    use dtrain_recipes::{Decoder, Model, Precision, Recompute};

    #[test]
    fn norms_and_biases_do_not_decay() {
        let sizes = Decoder {
            layers: 1,
            hidden: 4,
            heads: 2,
            kv_heads: 2,
            ffn: 4,
            vocab: 3,
            context: 2,
            ..Decoder::small_gpt2()
        };
        let model = Model::Decoder(sizes);
        let stage = Stage::build(&model, 0..1, 0, Precision::F32, Recompute::None, &Device::flex());
        for parameter in stage.unwrap_or_else(|error| panic!("{error}")).parameters() {
            let is_spared = parameter.name.contains("norm") || parameter.name.ends_with(".bias");
            assert_eq!(parameter.has_weight_decay, !is_spared, "{}", parameter.name);
        }
    }
}
