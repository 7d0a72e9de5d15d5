//! The typed model.

use super::counts;
use crate::check::parsed::Parsed;
use crate::check::values::Values;
use crate::decoder::{
    AdaptedLayers, Decoder, DenseLayers, Experts, Latent, Lora, NORM_EPSILON, ROTARY_BASE, Window,
};
use crate::keys::Kind;
use crate::model::{Activation, Cnn, Command, Framework, Mlp, Model, Norm, Positions};
use crate::own::{Outline, Own, Reads};
use std::collections::BTreeMap;

pub(super) fn model(values: &Values) -> Option<Model> {
    let count = |key: &str| values.count(&format!("model.{key}"));
    let counts = |key: &str| counts(values, &format!("model.{key}"));
    Some(match values.kind? {
        Kind::Decoder => Model::Decoder(decoder(values)?),
        Kind::Mlp => Model::Mlp(Mlp {
            inputs: count("inputs")?,
            hidden: counts("hidden")?,
            classes: count("classes")?,
            activation: activation(values)?,
        }),
        Kind::Cnn => Model::Cnn(Cnn {
            channels: count("channels")?,
            height: count("height")?,
            width: count("width")?,
            stages: counts("stages")?,
            blocks: count("blocks")?,
            classes: count("classes")?,
        }),
        Kind::Own => Model::Own(Own {
            network: values.text("model.network")?,
            with: match values.get("model.with") {
                Some(Parsed::Settings(settings)) => settings.clone(),
                _ => BTreeMap::new(),
            },
            reads: match count("context") {
                Some(context) => Reads::Tokens { context, vocab: count("vocab")? },
                None => Reads::Rows { inputs: count("inputs")?, classes: count("classes")? },
            },
            outline: Outline::default(),
        }),
        Kind::Command => match values.get("model.argv")? {
            Parsed::Texts(argv) => Model::Command(Command {
                argv: argv.clone(),
                env: match values.get("model.env") {
                    Some(Parsed::Environment(variables)) => variables.clone(),
                    _ => BTreeMap::new(),
                },
                framework: framework(values.word("model.framework")?),
                progress: match values.get("model.progress") {
                    Some(Parsed::Texts(templates)) => templates.clone(),
                    _ => Vec::new(),
                },
            }),
            _ => return None,
        },
    })
}

fn decoder(values: &Values) -> Option<Decoder> {
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
        positions: match values.word("model.positions")? {
            "rotary" => Positions::Rotary,
            _ => Positions::Learned,
        },
        norm: if values.word("model.norm")? == "rms" { Norm::Rms } else { Norm::Layer },
        activation: activation(values)?,
        tied: values.flag("model.tied")?,
        bias: values.flag("model.bias")?,
        experts: match count("experts") {
            Some(all) => Some(experts(values, all)?),
            None => None,
        },
        // What is as by default is not told: equal recipes have equal digests.
        head_width: count("head_width").filter(|width| width.checked_mul(heads) != Some(hidden)),
        rotary_base: values.whole("model.rotary_base").filter(|base| *base != ROTARY_BASE),
        norm_epsilon: values.real("model.norm_epsilon").filter(|epsilon| *epsilon != NORM_EPSILON),
        qkv_bias: values.flag("model.qkv_bias").filter(|bias| values.flag("model.bias") != Some(*bias)),
        latent: match count("latent.key_value") {
            Some(key_value) => Some(Latent {
                query: count("latent.query")?,
                key_value,
                rotary: count("latent.rotary")?,
                value: count("latent.value")?,
            }),
            None => None,
        },
        window: count("window").map(|tokens| Window { tokens, every: count("window_every") }),
        mtp_layers: count("mtp_layers").unwrap_or(0),
        lora: match count("lora.rank") {
            Some(rank) => Some(Lora {
                rank,
                alpha: values.real("model.lora.alpha")?,
                layers: match values.word("model.lora.layers")? {
                    "attention" => AdaptedLayers::Attention,
                    "ffn" => AdaptedLayers::Ffn,
                    _ => AdaptedLayers::All,
                },
            }),
            None => None,
        },
    })
}

fn experts(values: &Values, count: u32) -> Option<Experts> {
    let dense = |layers| Some(DenseLayers { layers, ffn: values.count("model.dense_ffn")? });
    Some(Experts {
        count,
        per_token: values.count("model.experts_per_token")?,
        capacity: values.real("model.capacity"),
        balance: values.real("model.balance")?,
        shared_ffn: values.count("model.shared_ffn"),
        dense: match values.count("model.dense_layers") {
            Some(layers) => Some(dense(layers)?),
            None => None,
        },
    })
}

fn framework(word: &str) -> Framework {
    match word {
        "deepspeed" => Framework::Deepspeed,
        "tensorflow" => Framework::Tensorflow,
        "jax" => Framework::Jax,
        "horovod" => Framework::Horovod,
        _ => Framework::Pytorch,
    }
}

fn activation(values: &Values) -> Option<Activation> {
    Some(match values.word("model.activation")? {
        "swiglu" => Activation::Swiglu,
        "relu" => Activation::Relu,
        "gelu_tanh" => Activation::GeluTanh,
        _ => Activation::Gelu,
    })
}
