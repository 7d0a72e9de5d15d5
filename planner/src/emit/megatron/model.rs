//! Megatron-LM arguments that describe the model.

use super::DecoderPlan;
use dtrain_recipes::{
    Activation, Decoder, Experts, Fp8Recipe, LatentAttention, Norm, Positions, RotaryScaling, SlidingWindow,
};

/// Returns the notes about differences between the plan's model and the one in Megatron-LM.
pub(super) fn notes(source: &DecoderPlan) -> Vec<String> {
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

/// Returns the arguments for sizes, kinds of layers and experts.
pub(super) fn arguments(source: &DecoderPlan) -> Vec<String> {
    let model = source.model;
    let mut arguments = vec![
        format!("--num-layers {}", model.layers),
        format!("--hidden-size {}", model.hidden),
        format!("--ffn-hidden-size {}", model.dense_ffn()),
        format!("--num-attention-heads {}", model.heads),
    ];
    if model.kv_heads < model.heads {
        arguments.push("--group-query-attention".into());
        arguments.push(format!("--num-query-groups {}", model.kv_heads));
    }
    arguments.extend(attention(model));
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
        Positions::Rotary => {
            vec!["--position-embedding-type rope".into(), format!("--rotary-base {}", model.rotary_base())]
        }
    });
    arguments.push(match model.norm {
        Norm::Layer => "--normalization LayerNorm".into(),
        Norm::Rms => "--normalization RMSNorm".into(),
    });
    arguments.push(format!("--norm-epsilon {}", epsilon(model)));
    match model.activation {
        Activation::Swiglu => arguments.push("--swiglu".into()),
        Activation::Geglu => unreachable!("the rules of the engine refuse it"),
        Activation::Gelu => arguments.push("--no-bias-gelu-fusion".into()),
        // The fused kernel, the default, computes the tanh form.
        Activation::GeluTanh => {}
    }
    if !model.tied {
        arguments.push("--untie-embeddings-and-output-weights".into());
    }
    if !model.bias {
        arguments.push("--disable-bias-linear".into());
        if model.qkv_bias() {
            arguments.push("--add-qkv-bias".into());
        }
    }
    arguments.extend(model.experts.iter().flat_map(|all| experts(all, model)));
    if model.mtp_layers > 0 {
        arguments.push(format!("--mtp-num-layers {}", model.mtp_layers));
    }
    arguments
}

/// Formats the epsilon of the norms as Python does, with an exponent.
fn epsilon(model: &Decoder) -> String {
    format!("{:e}", model.norm_epsilon())
}

/// Returns the arguments for head width, latent attention and sliding windows.
fn attention(model: &Decoder) -> Vec<String> {
    let mut arguments = Vec::new();
    if let Some(width) = model.head_width {
        arguments.push(format!("--kv-channels {width}"));
    }
    if let Some(LatentAttention { query, key_value, rotary, value }) = model.latent {
        arguments.extend([
            "--multi-latent-attention".into(),
            format!("--q-lora-rank {query}"),
            format!("--kv-lora-rank {key_value}"),
            format!("--qk-head-dim {}", model.head_width()),
            format!("--qk-pos-emb-head-dim {rotary}"),
            format!("--v-head-dim {value}"),
            // Latent attention has norms between its matrices, and plain rotary positions that the fused
            // kernel lacks.
            "--qk-layernorm".into(),
            "--rope-type rope".into(),
            "--no-rope-fusion".into(),
        ]);
    }
    if model.qk_norm {
        arguments.push("--qk-layernorm".into());
    }
    if let Some(RotaryScaling::Llama3 { factor, .. }) = model.rotary_scaling {
        arguments.extend(["--use-rope-scaling".into(), format!("--rope-scaling-factor {factor:?}")]);
    }
    if let Some(SlidingWindow { tokens, every, .. }) = model.window {
        // Tokens to the left and to the right of the query.
        arguments.push(format!("--window-size {},0", tokens - 1));
        arguments.extend(every.map(|every| format!("--window-attn-skip-freq {every}")));
    }
    arguments
}

/// Returns the fp8 arguments for `recipe`: with per-tensor scales, gradients need the format of larger range.
pub(super) fn fp8(recipe: Fp8Recipe) -> [String; 3] {
    let format = match recipe {
        Fp8Recipe::Tensorwise | Fp8Recipe::Delayed => "hybrid",
        Fp8Recipe::Blockwise | Fp8Recipe::Mxfp8 => "e4m3",
    };
    ["--bf16".into(), format!("--fp8-format {format}"), format!("--fp8-recipe {}", recipe.name())]
}

/// Returns the arguments for experts: the balance loss is per sequence; with one expert per token, its weight
/// is its probability among all experts.
fn experts(experts: &Experts, model: &Decoder) -> Vec<String> {
    let balance = if experts.balance > 0.0 { "seq_aux_loss" } else { "none" };
    let mut arguments = vec![
        format!("--num-experts {}", experts.count),
        format!("--moe-ffn-hidden-size {}", model.ffn),
        format!("--moe-router-topk {}", experts.per_token),
        format!("--moe-router-load-balancing-type {balance}"),
        "--moe-token-dispatcher-type alltoall".into(),
    ];
    if experts.balance > 0.0 {
        arguments.push(format!("--moe-aux-loss-coeff {:?}", experts.balance));
    }
    if let Some(width) = experts.shared_ffn {
        arguments.push(format!("--moe-shared-expert-intermediate-size {width}"));
    }
    if let Some(dense) = experts.dense {
        let others = model.layers - dense.layers;
        arguments.push(format!("--moe-layer-freq '[0]*{}+[1]*{others}'", dense.layers));
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
