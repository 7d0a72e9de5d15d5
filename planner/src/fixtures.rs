//! Recipes, hosts and rates shared by tests.

use crate::planning::plan::PlanRequest;
use dtrain_protocol::{HostFacts, ProfilePoint, RankRates, Rates};
use dtrain_recipes::*;
use std::collections::BTreeMap;

pub(crate) fn gpt2() -> Model {
    Model::Decoder(Decoder {
        layers: 12,
        hidden: 768,
        heads: 12,
        kv_heads: 12,
        ffn: 3072,
        vocab: 50_257,
        context: 1024,
        ..Decoder::small_gpt2()
    })
}

pub(crate) fn llama() -> Model {
    Model::Decoder(Decoder {
        layers: 4,
        hidden: 256,
        heads: 8,
        kv_heads: 4,
        ffn: 1024,
        vocab: 256,
        context: 256,
        ..Decoder::small_llama()
    })
}

/// Returns a decoder with eight experts per block, of which each token uses two.
pub(crate) fn experts() -> Model {
    let Model::Decoder(dense) = llama() else { unreachable!("it is a decoder") };
    let experts = Experts::new(8, 2);
    Model::Decoder(Decoder { experts: Some(experts), ..dense })
}

/// Returns a decoder with latent attention, shared experts, a first dense layer, and multi-token prediction.
pub(crate) fn deepseek() -> Model {
    let Model::Decoder(llama) = llama() else { unreachable!("it is a decoder") };
    let experts = Experts {
        shared_ffn: Some(96),
        dense: Some(DenseLayers { layers: 1, ffn: 512 }),
        ..Experts::new(8, 2)
    };
    Model::Decoder(Decoder {
        kv_heads: llama.heads,
        experts: Some(experts),
        head_width: Some(24),
        rotary_base: Some(50_000),
        norm_epsilon: None,
        qkv_bias: None,
        latent: Some(LatentAttention { query: 48, key_value: 32, rotary: 8, value: 16 }),
        mtp_layers: 1,
        lora: None,
        ..llama
    })
}

pub(crate) fn models() -> [Model; 3] {
    let mlp = Mlp { inputs: 16, hidden: vec![64, 32], classes: 4, activation: MlpActivation::Relu };
    let cnn = Cnn { channels: 1, height: 28, width: 28, stages: vec![8, 16], blocks: 1, classes: 10 };
    [llama(), Model::Mlp(mlp), Model::Cnn(cnn)]
}

pub(crate) fn adamw() -> Optimizer {
    Optimizer::ADAMW
}

pub(crate) fn recipe() -> Recipe {
    Recipe {
        name: "tiny-llama".into(),
        engine: TrainingEngine::Dtrain,
        model: llama(),
        data: Some(Data {
            format: DataFormat::Text {
                tokenizer: Tokenizer::Bytes,
                documents: Documents::Files,
                separator: Default::default(),
            },
            train: vec!["data/*.txt".into()],
            valid: ValidationSource::Fraction(0.05),
            fraction: 1.0,
            mix: None,
        }),
        params: BTreeMap::new(),
        ranges: BTreeMap::new(),
        objective: Objective {
            metric: Metric::ValidLoss,
            goal: None,
            stop: StopConditions { tokens: Some(Tokens(20_000_000)), ..StopConditions::default() },
        },
        train: Train { batch: Tunable::Pinned(Samples(32)), ..Train::example() },
        layout: LayoutPins::default(),
        sync: Synchronisation::EXACT,
        checkpoint: CheckpointSchedule { every: Interval::Auto, keep: 3 },
        validation: ValidationSchedule::AUTO,
        tune: dtrain_recipes::Tune::default(),
        cluster: Cluster::default(),
    }
}

pub(crate) fn host(cores: u32) -> HostFacts {
    HostFacts {
        name: "bench".into(),
        processor: "an x86-64 processor".into(),
        cores,
        memory_bytes: 16 << 30,
        ..HostFacts::example()
    }
}

/// Returns a request to plan the sample recipe; tests change the fields that they are about.
pub(crate) fn request<'a>(
    recipe: &'a Recipe,
    host: &'a HostFacts,
    rates: Option<&'a Rates>,
) -> PlanRequest<'a> {
    PlanRequest { rates, data_root: "/data".into(), program: "0.1.0", ..PlanRequest::new(recipe, host) }
}

/// Returns the rates of a host with `cores` cores: perfectly divided compute, a 2 GB/s all-reduce.
pub(crate) fn rates(cores: u32) -> Rates {
    let by_ranks = (1..=cores).filter(|ranks| cores.is_multiple_of(*ranks)).map(|ranks| {
        let threads = cores / ranks;
        let each = 1.0 / f64::from(threads).powf(0.7);
        let point = |micro_batch: u32| {
            let seconds = each * (0.002 + 0.006 * f64::from(micro_batch));
            ProfilePoint {
                micro_batch,
                block_forward: seconds,
                block_backward: 2.1 * seconds,
                outer_forward: seconds,
                outer_backward: 1.5 * seconds,
                overhead: 0.1 * seconds,
            }
        };
        let curve = [1u64 << 12, 1 << 16, 1 << 20, 1 << 24];
        #[expect(clippy::cast_precision_loss, reason = "four small sizes")]
        let all_reduce = curve.iter().map(|bytes| (*bytes, 3e-5 + *bytes as f64 / 2e9)).collect();
        RankRates {
            ranks,
            threads,
            profile: [1, 2, 4, 8].map(point).to_vec(),
            optimizer_seconds_per_parameter: 2e-9 / f64::from(threads),
            all_reduce: if ranks > 1 { all_reduce } else { Vec::new() },
            baseline_bytes: 20 << 20,
            ..RankRates::example()
        }
    });
    Rates {
        host: host(cores),
        measured_at_ms: 1_700_000_000_000,
        model_digest: "sample".into(),
        by_ranks: by_ranks.collect(),
    }
}

/// Returns a custom language model: two blocks over 16 tokens, with a vocabulary of 100.
pub(crate) fn own() -> CustomModel {
    let block = PartOutline { parameters: vec![vec![64, 128], vec![128], vec![128, 64]], output: [16, 64] };
    CustomModel {
        network: "mine".into(),
        settings: BTreeMap::new(),
        reads: InputSignature::Tokens { context: 16, vocab: 100 },
        outline: Outline {
            first: PartOutline { parameters: vec![vec![100, 64]], output: [16, 64] },
            blocks: vec![block.clone(), block],
            head: PartOutline { parameters: vec![vec![64, 100]], output: [16, 100] },
        },
    }
}
