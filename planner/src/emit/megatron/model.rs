//! The arguments that say what the model is.

use super::Source;
use dtrain_recipes::{Activation, Experts, Norm, Positions};

/// What is told of the model.
pub(super) fn notes(source: &Source) -> Vec<String> {
    let mut notes = Vec::new();
    if source.valid_fraction().is_none() {
        notes.push("the recipe validates on files of its own: give them with --valid-data-path, and the others with --train-data-path".into());
    }
    let Some(experts) = source.model.experts else { return notes };
    if experts.capacity.is_some() {
        notes.push(
            "the capacity of experts is counted over a micro-batch here, over each sequence in the plan"
                .into(),
        );
    }
    notes
}

/// Sizes, kinds and experts.
pub(super) fn arguments(source: &Source) -> Vec<String> {
    let model = source.model;
    let mut arguments = vec![
        format!("--num-layers {}", model.layers),
        format!("--hidden-size {}", model.hidden),
        format!("--ffn-hidden-size {}", model.ffn),
        format!("--num-attention-heads {}", model.heads),
    ];
    if model.kv_heads < model.heads {
        arguments.push("--group-query-attention".into());
        arguments.push(format!("--num-query-groups {}", model.kv_heads));
    }
    arguments.extend([
        format!("--seq-length {}", model.context),
        format!("--max-position-embeddings {}", model.context),
        format!("--vocab-size {}", model.vocab),
        "--attention-dropout 0.0".into(),
        "--hidden-dropout 0.0".into(),
        "--init-method-std 0.02".into(),
    ]);
    arguments.extend(match model.positions {
        Positions::Learned => vec!["--position-embedding-type learned_absolute".into()],
        Positions::Rotary => vec!["--position-embedding-type rope".into(), "--rotary-base 10000".into()],
    });
    arguments.push(match model.norm {
        Norm::Layer => "--normalization LayerNorm".into(),
        Norm::Rms => "--normalization RMSNorm".into(),
    });
    arguments.push("--norm-epsilon 1e-5".into());
    arguments.push(match model.activation {
        Activation::Swiglu => "--swiglu".into(),
        // The fused kernel computes the tanh approximation.
        Activation::Gelu | Activation::Relu => "--no-bias-gelu-fusion".into(),
    });
    if !model.tied {
        arguments.push("--untie-embeddings-and-output-weights".into());
    }
    if !model.bias {
        arguments.push("--disable-bias-linear".into());
    }
    arguments.extend(model.experts.iter().flat_map(|all| experts(all, model.ffn)));
    arguments
}

/// Balance is counted in each sequence; one expert a token is weighed by its probability among all.
fn experts(experts: &Experts, ffn: u32) -> Vec<String> {
    let balance = if experts.balance > 0.0 { "seq_aux_loss" } else { "none" };
    let mut arguments = vec![
        format!("--num-experts {}", experts.count),
        format!("--moe-ffn-hidden-size {ffn}"),
        format!("--moe-router-topk {}", experts.per_token),
        format!("--moe-router-load-balancing-type {balance}"),
        "--moe-token-dispatcher-type alltoall".into(),
    ];
    if experts.balance > 0.0 {
        arguments.push(format!("--moe-aux-loss-coeff {:?}", experts.balance));
    }
    if experts.per_token == 1 {
        arguments.push("--moe-router-pre-softmax".into());
    }
    if let Some(capacity) = experts.capacity {
        arguments.push(format!("--moe-expert-capacity-factor {capacity:?}"));
        arguments.push("--moe-token-drop-policy position".into());
    }
    arguments
}
