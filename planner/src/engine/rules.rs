//! Rules that several engines share. Each returns the reason why a layout is refused, or `None`.

use super::{Engine, TrainingSpec, UnsupportedLayout, state_support, unsupported};
use crate::pipeline_schedule::{PipelineShape, is_possible};
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_protocol::{Arrangement, sharding};
use dtrain_recipes::{
    Activation, Decoder, Experts, Norm, OptimizerKind, PipelineSchedule, Positions, Precision, Recompute,
    RotaryScaling, ZeroStage,
};

/// Refuses layouts that no engine can run, by rules for tensor ranks, experts, stages, sharding and
/// recomputation.
pub(super) fn of_all(
    model: &Decoder,
    arrangement: &Arrangement,
    micro_batches: u32,
) -> Option<UnsupportedLayout> {
    matrices(model, arrangement)
        .or_else(|| experts(model, arrangement))
        .or_else(|| stages(model, arrangement, micro_batches))
        .or_else(|| state(arrangement))
        .or_else(|| recompute(arrangement))
}

/// Refuses optimizers that are not among the `known` ones.
pub(super) fn optimizer(
    training: &TrainingSpec,
    known: &[OptimizerKind],
    instead: &'static str,
) -> Option<UnsupportedLayout> {
    if known.contains(&training.optimizer) {
        return None;
    }
    let what = match training.optimizer {
        OptimizerKind::Adamw => "train.optimizer = \"adamw\"",
        OptimizerKind::Sgd => "train.optimizer = \"sgd\"",
        OptimizerKind::Lion => "train.optimizer = \"lion\"",
        OptimizerKind::Lamb => "train.optimizer = \"lamb\"",
    };
    unsupported(what, instead)
}

/// A setting of `[train]` that only some engines have.
struct TrainingSetting {
    /// Key of the setting in a recipe.
    key: &'static str,
    /// Returns `true` if the training depends on the setting.
    is_used: fn(&TrainingSpec) -> bool,
    /// Names of the engines that have the setting.
    engines: &'static [&'static str],
    /// Alternative that the message suggests.
    instead: &'static str,
}

/// The settings of `[train]` that only some engines have.
const TRAINING_SETTINGS: [TrainingSetting; 1] = [TrainingSetting {
    key: "train.z_loss",
    is_used: |training| training.has_z_loss,
    engines: &["dtrain", "jax"],
    instead: "dtrain and MaxText (`--engine jax`) have a z-loss; or set train.z_loss = 0",
}];

/// Refuses settings of `[train]` that the engine lacks; the others are in [`TRAINING_SETTINGS`].
pub(super) fn training_settings(engine: &dyn Engine, training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let lacks =
        |setting: &&TrainingSetting| (setting.is_used)(training) && !setting.engines.contains(&engine.name());
    match TRAINING_SETTINGS.iter().find(lacks) {
        Some(missing) => unsupported(missing.key, missing.instead),
        None => state_support::of_training(engine, training),
    }
}

/// Refuses products in f16.
pub(super) fn no_f16(precision: Precision) -> Option<UnsupportedLayout> {
    if precision != Precision::F16 {
        return None;
    }
    unsupported("train.precision = \"f16\"", "pin \"bf16\" or \"f32\"")
}

const FP8_INSTEAD: &str =
    "only files for `megatron` and `torchtitan` say it: `dtrain plan --on … --emit megatron`";

/// Features of newer models, with those that an engine's files can express set to `true`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewerFeatures {
    /// True for scaled rotary positions as in Llama 3.1.
    pub(super) llama3_scaling: bool,
    /// True for norms of queries and keys.
    pub(super) qk_norm: bool,
    /// True for matrix products in fp8.
    pub(super) fp8: bool,
}

/// Refuses features of newer models that are not among those that the engine `can` express in its files.
pub(super) fn newer(model: &Decoder, precision: Precision, can: NewerFeatures) -> Option<UnsupportedLayout> {
    let experts = model.experts.as_ref();
    let newer = [
        ("model.latent", model.latent.is_some()),
        ("model.window", model.window.is_some()),
        ("model.shared_ffn", experts.is_some_and(|experts| experts.shared_ffn.is_some())),
        ("model.dense_layers", experts.is_some_and(|experts| experts.dense.is_some())),
        ("model.mtp_layers", model.mtp_layers > 0),
    ];
    if let Some((what, _)) = newer.into_iter().find(|(_, is_said)| *is_said) {
        return unsupported(what, "only files for `megatron` say it: `dtrain plan --on … --emit megatron`");
    }
    if let Some(refused) = variants(model, can) {
        return Some(refused);
    }
    if precision == Precision::Fp8 && !can.fp8 {
        return unsupported("train.precision = \"fp8\"", FP8_INSTEAD);
    }
    None
}

/// Refuses variants of Llama (scaled positions, norms of heads, Gemma's parts, weights of experts) that are not
/// among those that the engine `can` express in its files.
pub(super) fn variants(model: &Decoder, can: NewerFeatures) -> Option<UnsupportedLayout> {
    let experts = model.experts.as_ref();
    let is_llama3 = matches!(model.rotary_scaling, Some(RotaryScaling::Llama3 { .. }));
    let variants = [
        ("model.rotary_scaling", model.rotary_scaling.is_some() && !(is_llama3 && can.llama3_scaling)),
        ("model.qk_norm", model.qk_norm && !can.qk_norm),
        ("model.attention_scale", model.attention_scale.is_some()),
        ("model.post_norm", model.post_norm),
        ("model.scaled_embedding", model.scaled_embedding),
        ("model.window_rotary_base", model.window.is_some_and(|window| window.rotary_base.is_some())),
        ("model.raw_gates", experts.is_some_and(|experts| experts.raw_gates)),
        ("model.shared_gate", experts.is_some_and(|experts| experts.shared_gate)),
    ];
    let (what, _) = variants.into_iter().find(|(_, is_said)| *is_said)?;
    unsupported(what, "files for `hf-trainer` and `deepspeed`, and `fsdp`, have the models of transformers")
}

fn matrices(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let tensor = arrangement.layout.tensor.get();
    if tensor == 1 && arrangement.sequence {
        return unsupported("sequence parallelism without tensor parallelism", "pin layout.sequence = false");
    }
    if ![model.hidden, model.heads, model.ffn].iter().all(|size| size.is_multiple_of(tensor)) {
        return unsupported(
            "matrices whose width or heads the tensor ranks do not divide",
            "pin another layout.tensor",
        );
    }
    if !model.context.is_multiple_of(arrangement.layout.context.get()) {
        return unsupported("sequences that the context ranks do not divide", "pin another layout.context");
    }
    None
}

/// Refuses a number of key-value heads that is no multiple of the tensor ranks.
pub(super) fn whole_heads(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if model.kv_heads.is_multiple_of(arrangement.layout.tensor.get()) {
        return None;
    }
    unsupported(
        "key and value heads that the tensor ranks do not divide",
        "pin layout.tensor to a divisor of model.kv_heads",
    )
}

fn experts(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let (layout, fold) = (&arrangement.layout, arrangement.expert_fold);
    let shared = layout.tensor.get() * layout.context.get();
    let Some(experts) = &model.experts else {
        let is_spread = layout.expert.get() > 1 || fold != 1;
        return if is_spread {
            unsupported("expert parallelism of a model without experts", "pin layout.expert = 1")
        } else {
            None
        };
    };
    if fold == 0 || !shared.is_multiple_of(fold) {
        return unsupported(
            "experts folded over ranks that there are not",
            "fold over a divisor of tensor × context",
        );
    }
    if !experts.count.is_multiple_of(layout.expert.get() * fold) {
        return unsupported(
            "experts that their ranks do not divide",
            "pin layout.expert to a divisor of model.experts",
        );
    }
    None
}

/// Refuses expert ranks that cannot be counted from the innermost axis: tensor, then context, then replicas.
/// The axes in between must be covered whole.
pub(super) fn experts_from_the_nearest(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let (layout, fold) = (&arrangement.layout, arrangement.expert_fold);
    let (tensor, context) = (layout.tensor.get(), layout.context.get());
    if fold > 1 && !fold.is_multiple_of(tensor) {
        return unsupported(
            "experts folded over some of the tensor ranks",
            "fold over all tensor ranks or none",
        );
    }
    if layout.expert.get() > 1 && fold > 1 && fold != tensor * context {
        return unsupported(
            "experts spread over replicas and only some of the ranks within one",
            "fold over all tensor and context ranks",
        );
    }
    if layout.expert.get() > 1 && fold == 1 && context > 1 {
        return unsupported(
            "experts spread over replicas but not over the context ranks between them",
            "fold over all tensor and context ranks",
        );
    }
    None
}

fn stages(model: &Decoder, arrangement: &Arrangement, micro_batches: u32) -> Option<UnsupportedLayout> {
    let (stages, chunks, ends) = (arrangement.layout.pipeline.get(), arrangement.chunks, arrangement.ends);
    if stages == 1 {
        return if chunks == 1 {
            None
        } else {
            unsupported("interleaving without a pipeline", "set one run of blocks")
        };
    }
    if chunks == 0 || (chunks > 1) != (arrangement.schedule == PipelineSchedule::Interleaved) {
        return unsupported(
            "several runs of blocks on a stage",
            "interleave where there are several, and only there",
        );
    }
    if !is_possible(arrangement.schedule, PipelineShape { stages, chunks, micros: micro_batches }) {
        return unsupported(
            "micro-batches of an interleaved pipeline that are no multiple of its stages",
            "pin a layout.micro_batch that makes a multiple of layout.pipeline",
        );
    }
    let runs = stages * chunks;
    let counted = u64::from(model.layers) + u64::from(ends.embedding) + u64::from(ends.head);
    let length = |run| {
        let share = sharding::shard_range(counted, run, runs);
        share.end - share.start
    };
    if u64::from(model.layers) < runs.into()
        || length(0) <= ends.embedding.into()
        || length(runs - 1) <= ends.head.into()
    {
        return unsupported("a pipeline stage without blocks", "pin a smaller layout.pipeline");
    }
    None
}

fn state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.zero == ZeroStage::Zero0 {
        return None;
    }
    if arrangement.shard == 0 || !arrangement.replicas().is_multiple_of(arrangement.shard) {
        return unsupported(
            "shard groups that do not divide the replicas",
            "pin layout.shard to a divisor of the replicas",
        );
    }
    None
}

fn recompute(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    match (arrangement.recompute, arrangement.recompute_every) {
        (_, 1) | (Recompute::Full, 2..) => None,
        _ => unsupported("recompute of some blocks that is not full", "pin layout.recompute = \"full\""),
    }
}

/// Refuses gradient synchronization that leaves replicas unequal after a step.
pub(super) fn exact(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.sync.is_exact() {
        return None;
    }
    unsupported(
        "replicas that are kept alike approximately",
        "`--engine dtrain` has them; or remove the `sync` table",
    )
}

/// Refuses recomputation of only some blocks.
pub(super) fn every_block(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.recompute_every == 1 {
        return None;
    }
    unsupported("recompute of one block in several", "pin layout.recompute_every = 1")
}

/// Refuses selective recomputation, and recomputation of only some blocks.
pub(super) fn whole_blocks(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.recompute != Recompute::Selective {
        return every_block(arrangement);
    }
    let instead = "pin layout.recompute = \"none\": its fused attention does not keep its scores";
    unsupported("selective recompute", instead)
}

/// Refuses rank orders in which the pipeline axis is not outermost.
pub(super) fn pipeline_outermost(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.order.is_pipeline_outermost() || arrangement.layout.pipeline.get() == 1 {
        return None;
    }
    unsupported(
        "pipeline stages nearer to each other than replicas",
        "let the pipeline be the outermost axis",
    )
}

/// Refuses layouts with a pipeline.
pub(super) fn no_pipeline(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.layout.pipeline.get() == 1 {
        return None;
    }
    unsupported("pipeline parallelism", "pin layout.pipeline = 1")
}

/// Returns `true` if the model is of the Llama family, biases aside.
pub(super) fn is_llama(model: &Decoder) -> bool {
    model.positions == Positions::Rotary && model.norm == Norm::Rms && model.activation == Activation::Swiglu
}

/// Returns `true` if no linear layer of the model has a bias.
pub(super) fn has_no_biases(model: &Decoder) -> bool {
    !model.bias && !model.qkv_bias()
}

/// Returns `true` if the model is of the GPT-2 family.
pub(super) fn is_gpt2(model: &Decoder) -> bool {
    model.positions == Positions::Learned
        && model.norm == Norm::Layer
        && matches!(model.activation, Activation::Gelu | Activation::GeluTanh)
        && model.bias
        && model.qkv_bias()
        && model.kv_heads == model.heads
}

/// Returns the family of transformers whose files say a model. They have no limit of the tokens that an expert
/// takes, and Mixtral's scale the weight of a single expert to one; the notes of the files say so.
pub(crate) fn hugging_face_family(model: &Decoder) -> Result<ModelFamily, String> {
    let experts = model.experts.map(|experts| Experts { capacity: None, ..experts });
    let model = Decoder { experts, ..model.base() };
    let found = ModelFamily::of(&model);
    match experts.filter(|experts| experts.per_token == 1 && found.is_err()) {
        Some(experts) => {
            ModelFamily::of(&Decoder { experts: Some(Experts { per_token: 2, ..experts }), ..model })
        }
        None => found,
    }
}

/// Refuses models that transformers lacks, and precisions that its files cannot express.
pub(super) fn hugging_face(model: &Decoder, precision: Precision) -> Option<UnsupportedLayout> {
    if hugging_face_family(model).is_err() {
        return unsupported(
            "a decoder of none of the families of transformers that dtrain knows",
            "docs/new-family.md lists them; take positions, norm, activation, bias and experts of one",
        );
    }
    if precision == Precision::Fp8 {
        return unsupported("train.precision = \"fp8\"", FP8_INSTEAD);
    }
    None
}
