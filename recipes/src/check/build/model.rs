//! Builds the typed model of a recipe from checked values.

use super::counts;
use crate::architecture::RotaryScalingKind;
use crate::check::parsed::ParsedValue;
use crate::check::values::ParsedValues;
use crate::custom_model::{CustomModel, InputSignature, Outline};
use crate::decoder::{
    Decoder, DenseLayers, Experts, LatentAttention, Lora, NORM_EPSILON, ROTARY_BASE, RotaryScaling,
    SlidingWindow,
};
use crate::keys::Kind;
use crate::model::{Cnn, ForeignCommand, Mlp, Model};
use std::collections::BTreeMap;

pub(super) fn model(values: &ParsedValues) -> Option<Model> {
    let count = |key: &str| values.count(&format!("model.{key}"));
    let counts = |key: &str| counts(values, &format!("model.{key}"));
    Some(match values.kind? {
        Kind::Decoder => Model::Decoder(decoder(values)?),
        Kind::Mlp => Model::Mlp(Mlp {
            inputs: count("inputs")?,
            hidden: counts("hidden")?,
            classes: count("classes")?,
            activation: values.one_of("model.activation")?,
        }),
        Kind::Cnn => Model::Cnn(Cnn {
            channels: count("channels")?,
            height: count("height")?,
            width: count("width")?,
            stages: counts("stages")?,
            blocks: count("blocks")?,
            classes: count("classes")?,
        }),
        Kind::Custom => Model::Custom(CustomModel {
            network: values.text("model.network")?,
            settings: match values.get("model.settings") {
                None => BTreeMap::new(),
                Some(ParsedValue::Settings(settings)) => settings.clone(),
                Some(_) => return None,
            },
            reads: match count("context") {
                Some(context) => InputSignature::Tokens { context, vocab: count("vocab")? },
                None => InputSignature::Rows { inputs: count("inputs")?, classes: count("classes")? },
            },
            outline: Outline::default(),
        }),
        Kind::Command => Model::Command(ForeignCommand {
            argv: values.get("model.argv")?.texts()?,
            env: match values.get("model.env") {
                None => BTreeMap::new(),
                Some(ParsedValue::Environment(variables)) => variables.clone(),
                Some(_) => return None,
            },
            framework: values.one_of("model.framework")?,
            progress: match values.get("model.progress") {
                None => Vec::new(),
                Some(templates) => templates.texts()?,
            },
        }),
    })
}

fn decoder(values: &ParsedValues) -> Option<Decoder> {
    let count = |key: &str| values.count(&format!("model.{key}"));
    let (hidden, heads) = (count("hidden")?, count("heads")?);
    Some(Decoder {
        layers: count("layers")?,
        hidden,
        heads,
        kv_heads: count("kv_heads")?,
        ffn: count("ffn")?,
        vocab: count("vocab")?,
        context: count("context")?,
        positions: values.one_of("model.positions")?,
        norm: values.one_of("model.norm")?,
        activation: values.one_of("model.activation")?,
        tied: values.flag("model.tied")?,
        bias: values.flag("model.bias")?,
        experts: match count("experts") {
            Some(all) => Some(experts(values, all)?),
            None => None,
        },
        // Default values are left out, so that equal recipes have equal digests.
        head_width: count("head_width").filter(|width| width.checked_mul(heads) != Some(hidden)),
        rotary_base: values.whole("model.rotary_base").filter(|base| *base != ROTARY_BASE),
        rotary_scaling: match values.one_of("model.rotary_scaling.kind") {
            Some(kind) => Some(rotary_scaling(values, kind)?),
            None => None,
        },
        norm_epsilon: values.real("model.norm_epsilon").filter(|epsilon| *epsilon != NORM_EPSILON),
        qkv_bias: values.flag("model.qkv_bias").filter(|bias| values.flag("model.bias") != Some(*bias)),
        qk_norm: values.flag("model.qk_norm")?,
        attention_scale: values.real("model.attention_scale"),
        post_norm: values.flag("model.post_norm")?,
        scaled_embedding: values.flag("model.scaled_embedding")?,
        latent: match count("latent.key_value") {
            Some(key_value) => Some(LatentAttention {
                query: count("latent.query")?,
                key_value,
                rotary: count("latent.rotary")?,
                value: count("latent.value")?,
            }),
            None => None,
        },
        window: count("window").map(|tokens| SlidingWindow {
            tokens,
            every: count("window_every"),
            rotary_base: values.whole("model.window_rotary_base"),
        }),
        mtp_layers: count("mtp_layers").unwrap_or(0),
        lora: match count("lora.rank") {
            Some(rank) => Some(Lora {
                rank,
                alpha: values.real("model.lora.alpha")?,
                layers: values.one_of("model.lora.layers")?,
                base: values.one_of("model.lora.base"),
            }),
            None => None,
        },
    })
}

fn rotary_scaling(values: &ParsedValues, kind: RotaryScalingKind) -> Option<RotaryScaling> {
    let real = |key: &str| values.real(&format!("model.rotary_scaling.{key}"));
    let factor = real("factor")?;
    Some(match kind {
        RotaryScalingKind::Linear => RotaryScaling::Linear { factor },
        RotaryScalingKind::Llama3 => RotaryScaling::Llama3 {
            factor,
            low: real("low")?,
            high: real("high")?,
            original_context: values.count("model.rotary_scaling.original_context")?,
        },
    })
}

fn experts(values: &ParsedValues, count: u32) -> Option<Experts> {
    let dense = |layers| Some(DenseLayers { layers, ffn: values.count("model.dense_ffn")? });
    Some(Experts {
        count,
        per_token: values.count("model.experts_per_token")?,
        capacity: values.real("model.capacity"),
        balance: values.real("model.balance")?,
        shared_ffn: values.count("model.shared_ffn"),
        shared_gate: values.flag("model.shared_gate").unwrap_or(false),
        raw_gates: values.flag("model.raw_gates").unwrap_or(false),
        dense: match values.count("model.dense_layers") {
            Some(layers) => Some(dense(layers)?),
            None => None,
        },
    })
}
