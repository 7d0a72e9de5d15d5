//! Converts the decoder of a recipe into the dimensions that the cost model uses.

use crate::analytic::{AdaptedMatrices, AdapterDims, ExpertDims, LatentDims, Transformer, WindowDims};
use dtrain_recipes::{Decoder, Lora};

/// Returns the dimensions of a decoder that decide its cost.
pub fn transformer(decoder: &Decoder) -> Transformer {
    let head = f64::from(decoder.head_width());
    let rotary = decoder.latent.map_or(0.0, |latent| latent.rotary.into());
    Transformer {
        layers: decoder.layers.into(),
        hidden: decoder.hidden.into(),
        heads: decoder.heads.into(),
        kv_heads: decoder.kv_heads.into(),
        head: head + rotary,
        head_value: decoder.latent.map_or(head, |latent| latent.value.into()),
        latent: decoder.latent.map(|latent| LatentDims {
            query: latent.query.into(),
            key_value: latent.key_value.into(),
            rotary,
        }),
        window: decoder.window.map(|window| WindowDims {
            tokens: window.tokens.into(),
            share: window.every.map_or(1.0, |every| 1.0 - 1.0 / f64::from(every)),
        }),
        ffn: decoder.dense_ffn().into(),
        is_gated: decoder.activation.is_gated(),
        experts: decoder.experts.map(|experts| ExpertDims {
            count: experts.count.into(),
            chosen: experts.per_token.into(),
            ffn: decoder.ffn.into(),
            shared: experts.shared_ffn.unwrap_or(0).into(),
            dense_layers: decoder.dense_layers().into(),
            drop: experts.capacity.is_some(),
        }),
        is_tied: Some(decoder.tied),
        adapters: decoder.lora.map(adapters),
        vocabulary: decoder.vocab.into(),
        sequence: decoder.context.into(),
        mtp_layers: decoder.mtp_layers.into(),
    }
}

fn adapters(lora: Lora) -> AdapterDims {
    let (attention, ffn) = (lora.adapts_attention(), lora.adapts_ffn());
    AdapterDims {
        rank: lora.rank.into(),
        matrices: AdaptedMatrices {
            query: attention,
            key: attention,
            value: attention,
            output: attention,
            gate: ffn,
            up: ffn,
            down: ffn,
        },
        frozen: lora.base,
    }
}
