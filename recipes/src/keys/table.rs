//! The table of all recipe keys.

use super::{Key, Kind, LARGEST_WHOLE, Requirement, ValueType};
use crate::architecture::{Activation, Family, Norm, Positions, RotaryScalingKind};
use crate::cluster::{Devices, GrowthPolicy, LauncherKind, SshBackend};
use crate::data::{DataKind, LossOn};
use crate::decoder::AdaptedLayers;
use crate::gpu_facts::GpuLink;
use crate::keyword_enum::{KeywordEnum, Keywords};
use crate::model::{Framework, MlpActivation};
use crate::objective::Goal;
use crate::recipe::{PipelineSchedule, Recompute};
use crate::state::{
    AttentionImplementation, FrozenPrecision, LossKernel, MomentPrecision, Offload, StatePrecision,
};
use crate::sync::CompressionKind;
use crate::train::{Fp8Recipe, OptimizerKind, Precision, Schedule};
use crate::training_engine::TrainingEngine;
use crate::tune::{PrunerKind, SamplerKind};

const ANY: &[Kind] = &[Kind::Decoder, Kind::Mlp, Kind::Cnn, Kind::Custom, Kind::Command];
const OURS: &[Kind] = &[Kind::Decoder, Kind::Mlp, Kind::Cnn, Kind::Custom];
const DECODER: &[Kind] = &[Kind::Decoder];
const MLP: &[Kind] = &[Kind::Mlp];
const CNN: &[Kind] = &[Kind::Cnn];
const CUSTOM: &[Kind] = &[Kind::Custom];
/// Kinds of model that are always classifiers.
const CLASSES: &[Kind] = &[Kind::Mlp, Kind::Cnn];
/// Kinds of model that may be classifiers.
const OF_CLASSES: &[Kind] = &[Kind::Mlp, Kind::Cnn, Kind::Custom];
const OF_TEXT: &[Kind] = &[Kind::Decoder, Kind::Custom];
const COMMAND: &[Kind] = &[Kind::Command];

use Requirement::{Default, Optional, Required};
use ValueType::{Choice, OrAuto, OrNone, Whole};

/// Returns the value type of a key that takes a keyword of the enum `T`.
const fn one_of<T: KeywordEnum>() -> ValueType {
    ValueType::OneOf(Keywords::of::<T>())
}

const AXIS: ValueType = OrAuto(&Whole(1, 1_000_000));
const AUTO_AXIS: Requirement = Default("auto");
const NO_LIMIT: &str =
    "no limit; one of steps, samples, tokens, epochs and time is required, except for commands";

macro_rules! keys {
    ($($path:literal, $shape:expr, $need:expr, $kinds:expr, $doc:literal;)*) => {
        &[$(Key { path: $path, shape: $shape, need: $need, kinds: $kinds, doc: $doc }),*]
    };
}

/// The table of all recipe keys, section by section.
pub const KEYS: &[Key] = keys![
    "name", ValueType::Name, Default("the file's name; of FOLDER/recipe.toml the folder's"), ANY, "Name of the recipe, and of its trials";
    "description", ValueType::Text, Optional("no description"), ANY, "What the recipe is for; shown only";
    "extends", ValueType::Text, Optional("nothing is extended"), ANY,
        "Recipe that this one extends: `library/NAME`, a relative path, or `PACKAGE/RECIPE` from git";
    "engine", one_of::<TrainingEngine>(), Default("\"dtrain\""), DECODER, "Program that trains the model";

    "model.kind", one_of::<Kind>(), Required, ANY, "Kind of model";
    "model.family", one_of::<Family>(), Default("\"gpt2\""), DECODER,
        "Preset of positions, norm, activation, tied, bias and ffn";
    "model.layers", Whole(1, 16_384), Required, DECODER, "Number of blocks";
    "model.hidden", Whole(1, 262_144), Required, DECODER, "Hidden size";
    "model.heads", Whole(1, 65_536), Required, DECODER, "Query heads; they divide hidden";
    "model.kv_heads", Whole(1, 65_536), Default("heads"), DECODER, "Key and value heads; they divide heads";
    "model.ffn", Whole(1, 8_388_608), Default("gelu: 4 × hidden; swiglu and geglu: 8/3 × hidden, rounded up to a multiple of 64"),
        DECODER, "Feed-forward width; of each expert, where there are experts";
    "model.head_width", Whole(1, 65_536), Default("hidden / heads"), DECODER,
        "Width of a head; with latent attention, of the part of queries and keys without positions (qk_nope_head_dim)";
    "model.latent.query", Whole(1, 262_144), Optional("no latent attention"), DECODER,
        "Multi-head latent attention (MLA): rank of the queries (q_lora_rank)";
    "model.latent.key_value", Whole(1, 262_144), Optional("no latent attention"), DECODER,
        "Rank of keys and values (kv_lora_rank)";
    "model.latent.rotary", Whole(2, 65_536), Optional("no latent attention"), DECODER,
        "Width of the part of a head with rotary positions (qk_rope_head_dim)";
    "model.latent.value", Whole(1, 65_536), Optional("with latent attention: head_width"), DECODER,
        "Width of a head of values (v_head_dim)";
    "model.window", Whole(1, 16_777_216), Optional("every token attends to all before it"), DECODER,
        "Sliding-window attention: tokens that a token attends to, itself included";
    "model.window_every", Whole(2, 16_384), Optional("with window: every layer has it"), DECODER,
        "Of this many layers, the last attends to all tokens before each";
    "model.window_rotary_base", Whole(2, 1_000_000_000_000), Optional("with window: rotary_base"), DECODER,
        "Base of rotary positions in the layers with a window, whose angles are not scaled (rope_local_base_freq)";
    "model.experts", Whole(2, 65_536), Optional("one dense feed-forward layer"), DECODER,
        "Experts (feed-forward layers without biases) in each block; each token is routed to a few";
    "model.experts_per_token", Whole(1, 65_536), Default("2, where there are experts"), DECODER,
        "Experts per token: the router's top k";
    "model.capacity", OrNone(&ValueType::Above(0.0, 1e6)), Default("\"none\", where there are experts"), DECODER,
        "Tokens of a sequence that an expert accepts, as a multiple of its even share; the rest skip it";
    "model.balance", ValueType::Below(0.0, 1e6), Default("0.01, where there are experts"), DECODER,
        "Weight of the load-balance loss, which is not part of the reported loss";
    "model.shared_ffn", Whole(1, 8_388_608), Optional("no shared experts"), DECODER,
        "Width of the shared experts together, which every token passes";
    "model.shared_gate", ValueType::Flag, Default("false, where there are shared experts"), DECODER,
        "Whether the output of the shared experts is multiplied by the sigmoid of a linear layer, as in Qwen2-MoE";
    "model.raw_gates", ValueType::Flag, Default("false, where there are experts"), DECODER,
        "Whether a token's experts are weighted by their probabilities as they are (norm_topk_prob = false)";
    "model.dense_layers", Whole(1, 16_384), Optional("every layer has experts"), DECODER,
        "Leading layers with one dense feed-forward layer in place of experts";
    "model.dense_ffn", Whole(1, 8_388_608), Optional("required with dense_layers"), DECODER,
        "Feed-forward width of the leading dense layers";
    "model.mtp_layers", Whole(1, 64), Optional("only the next token is predicted"), DECODER,
        "Multi-token prediction: layers that each predict one further token";
    "model.vocab", Whole(2, 16_777_216), Default("that of the tokenizer; required for token shards and a tokenizer.json"), DECODER,
        "Vocabulary size";
    "model.context", Whole(1, 16_777_216), Required, DECODER, "Sequence length in tokens";
    "model.positions", one_of::<Positions>(), Default("gpt2: \"learned\"; llama: \"rotary\""), DECODER,
        "Position encoding";
    "model.rotary_base", Whole(2, 1_000_000_000_000), Default("10000, with rotary positions"), DECODER,
        "Base of the angles of rotary positions (rope_theta)";
    "model.rotary_scaling.kind", one_of::<RotaryScalingKind>(), Optional("angles are not scaled; with a factor: \"linear\""), DECODER,
        "Scaling of rotary positions for long contexts (rope_type of rope_scaling)";
    "model.rotary_scaling.factor", ValueType::Above(0.0, 1e6), Optional("required with rotary_scaling"), DECODER,
        "What the scaled angles are divided by";
    "model.rotary_scaling.low", ValueType::Above(0.0, 1e6), Optional("with llama3: 1"), DECODER,
        "Waves in the original context below which an angle is scaled whole (low_freq_factor)";
    "model.rotary_scaling.high", ValueType::Above(0.0, 1e6), Optional("with llama3: 4"), DECODER,
        "Waves in the original context above which an angle is not scaled (high_freq_factor)";
    "model.rotary_scaling.original_context", Whole(1, 16_777_216), Optional("with llama3: 8192"), DECODER,
        "Context of pretraining, in tokens (original_max_position_embeddings)";
    "model.norm", one_of::<Norm>(), Default("gpt2: \"layer\"; llama: \"rms\""), DECODER,
        "Normalisation before each sub-layer";
    "model.norm_epsilon", ValueType::Above(0.0, 1.0), Default("1e-5"), DECODER,
        "What norms add to the variance or mean square (rms_norm_eps, layer_norm_epsilon)";
    "model.activation", one_of::<Activation>(), Default("gpt2: \"gelu\"; llama: \"swiglu\""), DECODER,
        "Feed-forward non-linearity; gelu_tanh is the form of GPT-2's own weights (gelu_new)";
    "model.tied", ValueType::Flag, Default("gpt2: true; llama: false"), DECODER, "Whether the head shares the embedding";
    "model.bias", ValueType::Flag, Default("gpt2: true; llama: false"), DECODER, "Whether linear layers have a bias";
    "model.qkv_bias", ValueType::Flag, Default("that of bias"), DECODER,
        "Whether the projections of queries, keys and values have a bias; Qwen2 has these alone";
    "model.qk_norm", ValueType::Flag, Default("false"), DECODER,
        "Whether each head of queries and keys passes an RMS norm before its positions, as in Qwen3 and Gemma 3";
    "model.attention_scale", ValueType::Above(0.0, 1e6), Optional("1 / sqrt(head_width)"), DECODER,
        "Factor of the scores of attention, in models with qk_norm (query_pre_attn_scalar ^ -0.5)";
    "model.post_norm", ValueType::Flag, Default("false"), DECODER,
        "Whether the outputs of attention and of the feed-forward layer pass a norm too, as in Gemma";
    "model.scaled_embedding", ValueType::Flag, Default("false"), DECODER,
        "Whether embeddings are multiplied by the square root of hidden, as in Gemma";
    "model.lora.rank", Whole(1, 65_536), Optional("every weight is trained"), DECODER,
        "Low-rank adapters (LoRA) of this rank are trained, and all other weights are frozen";
    "model.lora.alpha", ValueType::Above(0.0, 1e6), Default("2 × rank"), DECODER,
        "Weight of the adapters, times rank: a layer adds alpha / rank · x·A·B";
    "model.lora.layers", one_of::<AdaptedLayers>(), Default("\"all\"; with experts: \"attention\""), DECODER,
        "Linear layers of each block that have adapters";
    "model.lora.base", one_of::<FrozenPrecision>(), Optional("the precision of products; f32 with dtrain's own worker"), DECODER,
        "Precision of the frozen weights below adapters; nf4 is QLoRA";
    "model.inputs", Whole(1, 1_048_576), Required, MLP,
        "Numbers of a row: one for each column of numbers or dates, one for each category of a column of text; `dtrain data` counts them";
    "model.hidden", ValueType::Wholes(1, 1_048_576), Required, MLP, "Width of each hidden layer";
    "model.activation", one_of::<MlpActivation>(), Default("\"relu\""), MLP, "Non-linearity between layers";
    "model.channels", Whole(1, 4096), Required, CNN,
        "Channels of an image; set here so that planning does not read data";
    "model.height", Whole(1, 65_536), Required, CNN, "Rows of an image, in pixels";
    "model.width", Whole(1, 65_536), Required, CNN, "Columns of an image, in pixels";
    "model.stages", ValueType::Wholes(1, 65_536), Required, CNN, "Channels of each residual stage; each after the first halves the image";
    "model.blocks", Whole(1, 4096), Default("2"), CNN, "Residual blocks in each stage";
    "model.classes", Whole(2, 1_048_576), Required, CLASSES, "Number of classes";
    "model.network", ValueType::Name, Required, CUSTOM,
        "Network of your own, under the name by which your program registered it";
    "model.settings", ValueType::Settings, Optional("none"), CUSTOM,
        "Settings for the function that builds your network, under names of your own";
    "model.context", Whole(1, 16_777_216), Optional("the network reads rows"), CUSTOM,
        "Sequence length in tokens, where the network reads tokens";
    "model.vocab", Whole(2, 16_777_216),
        Default("with context: that of the tokenizer; required for token shards and a tokenizer.json"), CUSTOM,
        "Vocabulary size, where the network reads tokens";
    "model.inputs", Whole(1, 1_048_576), Optional("the network reads tokens"), CUSTOM,
        "Numbers of a row, where the network reads rows; `dtrain data` counts them";
    "model.classes", Whole(2, 1_048_576), Optional("the network reads tokens"), CUSTOM,
        "Number of classes, where the network reads rows";
    "model.argv", ValueType::Texts, Required, COMMAND, "Program and arguments; `{params.lr}` stands for the value of a key, and no shell is involved";
    "model.env", ValueType::Environment, Optional("none"), COMMAND,
        "Further environment variables of the program, with placeholders as in argv";
    "model.framework", one_of::<Framework>(), Default("\"pytorch\""), COMMAND,
        "Convention for the environment variables passed to the program";
    "model.progress", ValueType::Texts, Optional("JSON lines on the file DTRAIN_EVENTS_FD only"), COMMAND,
        "Templates of progress lines, such as `step {step} * loss {loss}`";

    "params", ValueType::Params, Optional("none"), COMMAND,
        "Values under names of your own, each a value or a range; the program gets them by placeholders and in DTRAIN_PARAMS";

    "data.train", ValueType::Files, Required, OURS,
        "Files or glob patterns of the training data, relative to the recipe's folder, or URLs: https://…#sha256=…";
    "data.valid", ValueType::Valid, Default("\"5%\""), OURS,
        "Share of the training data held out for validation, or files or URLs";
    "data.format", one_of::<DataKind>(),
        Default("by the first training file: .bin tokens, .csv or .tsv csv, .jsonl, .ndjson or .json jsonl, .parquet parquet, -ubyte or .idx idx, .png, .jpg or .jpeg images, otherwise text"), OURS,
        "How files are read; of text, jsonl, csv and idx also compressed ones (.gz, .zst)";
    "data.tokenizer", ValueType::Tokenizer, Default("text, jsonl and parquet: \"bytes\"; required for chat"), OF_TEXT, "How text becomes tokens";
    "data.field", ValueType::Text, Default("jsonl and parquet: \"text\""), OF_TEXT,
        "Field of JSON lines, or column of Parquet files, with the text";
    "data.template", ValueType::Files, Optional("chat: that of the tokenizer"), DECODER,
        "File with the chat template (Jinja), if not chat_template.jinja or tokenizer_config.json beside data.tokenizer";
    "data.loss_on", one_of::<LossOn>(), Default("chat: \"answers\""), DECODER,
        "Tokens of conversations that count in the loss: those of answers and of the ends of their turns, or all";
    "data.packing", ValueType::Flag, Default("chat: true"), DECODER,
        "Whether several conversations share a sequence, none of which sees another";
    "data.separator", OrAuto(&OrNone(&ValueType::Text)), Default("text, jsonl and parquet: \"auto\""), OF_TEXT,
        "Token or text behind each document; auto: the tokenizer's end-of-text token, or behind a JSON line or row a line break";
    "data.labels", ValueType::Files, Optional("required for idx"), OF_CLASSES,
        "Label files or URLs, one for each file of train";
    "data.valid_labels", ValueType::Files, Optional("required when valid names idx files"), OF_CLASSES,
        "Label files or URLs, one for each file of valid";
    "data.target", ValueType::Text, Optional("required for csv and parquet"), OF_CLASSES, "Name of the column with the class";
    "data.ignore", ValueType::Texts, Optional("csv and parquet: every column but the target is used"), OF_CLASSES,
        "Names of columns that are left out, such as an id";
    "data.resize", ValueType::Flag, Default("images: false"), OF_CLASSES,
        "Whether images of another size are resized to height and width";
    "data.fraction", ValueType::Part, Default("1.0"), OURS, "Share of the training data that is used";

    "objective.metric", ValueType::Metric, Default("\"valid.loss\""), ANY,
        "Metric to optimise: valid.loss, valid.accuracy, or of a command any that it reports";
    "objective.goal", one_of::<Goal>(), Optional("valid.loss: min; valid.accuracy: max; required of another metric"), ANY,
        "Which way the metric is better";
    "objective.stop.steps", ValueType::Steps, Optional(NO_LIMIT), ANY, "Stop after this many optimizer steps";
    "objective.stop.samples", ValueType::Samples(1_000_000_000_000), Optional(NO_LIMIT), OURS, "Stop after this many samples";
    "objective.stop.tokens", ValueType::Tokens, Optional(NO_LIMIT), OURS, "Stop after this many tokens";
    "objective.stop.epochs", ValueType::Epochs, Optional(NO_LIMIT), OURS, "Stop after this many passes over the training data";
    "objective.stop.time", ValueType::Time, Optional(NO_LIMIT), OURS,
        "Stop after this much training time, over all attempts";
    "objective.stop.target", ValueType::Level, Optional("no target"), ANY, "Stop when the metric reaches this value";

    "train.optimizer.kind", one_of::<OptimizerKind>(), Default("\"adamw\""), OURS, "Optimizer";
    "train.optimizer.beta1", ValueType::Below(0.0, 1.0), Default("0.9"), OURS, "Decay of the first moment; momentum for sgd";
    "train.optimizer.beta2", ValueType::Below(0.0, 1.0), Default("adamw: decoder 0.95, others 0.999; lamb: 0.999; lion: 0.99"), OURS,
        "Decay of the second moment";
    "train.optimizer.epsilon", ValueType::Above(0.0, 1.0), Default("adamw: 1e-8; lamb: 1e-6"), OURS, "Added to the root of the second moment";
    "train.optimizer.weight_decay", ValueType::Below(0.0, 100.0), Default("sgd: 0; otherwise decoder 0.1, others 0.01"), OURS,
        "Decoupled weight decay of matrices";
    "train.batch", Choice(&ValueType::Samples(1_000_000_000)), Default("auto"), OURS, "Samples in one optimizer step over all ranks";
    "train.learning_rate", Choice(&ValueType::Above(0.0, 1000.0)), Default("auto"), OURS, "Peak learning rate";
    "train.warmup", Choice(&ValueType::Warmup), Default("auto"), OURS, "Linear warm-up from zero, in steps or tokens";
    "train.schedule", one_of::<Schedule>(), Default("\"cosine\""), OURS,
        "How the learning rate falls after warm-up";
    "train.final_fraction", ValueType::Share, Default("0.1"), OURS, "Learning rate at the end, as a share of the peak";
    "train.clip", OrNone(&ValueType::Above(0.0, 1e9)), Default("1.0"), OURS, "Largest global norm of the gradient";
    "train.z_loss", ValueType::Below(0.0, 1000.0), Default("0"), DECODER,
        "Weight of the z-loss: training adds this times the mean of log(Z)², Z the sum of exponentials of the scores of a prediction";
    "train.precision", Choice(&one_of::<Precision>()), Default("auto"), OURS,
        "Precision of matrix products; f16 is for GPUs without bf16 and uses loss scaling; fp8 is for plans with `--on`";
    "train.fp8_recipe", one_of::<Fp8Recipe>(), Default("fp8: \"tensorwise\""), OURS,
        "Scaling of fp8: per tensor, from earlier steps, per block of 128, or per 32 values (Blackwell)";
    "train.from", OrNone(&ValueType::Folder), Optional("random weights"), DECODER,
        "Model whose weights training begins with: a folder of Hugging Face transformers, relative to the recipe's folder, or `hf:ORG/NAME@COMMIT`";
    "train.state.weights", one_of::<StatePrecision>(), Default("\"f32\""), DECODER,
        "Precision of the weights that the optimizer updates; bf16 leaves no f32 copy";
    "train.state.gradients", one_of::<StatePrecision>(), Optional("as the engine does"), DECODER,
        "Precision in which gradients are accumulated and reduced";
    "train.state.moments", one_of::<MomentPrecision>(), Default("\"f32\""), DECODER,
        "Precision of optimizer moments; int8 has a scale per block";
    "train.state.offload", OrAuto(&one_of::<Offload>()), Default("auto"), DECODER,
        "State in host memory instead of the GPU; auto: none, unless nothing fits otherwise";
    "train.state.loss", OrAuto(&one_of::<LossKernel>()), Default("auto"), DECODER,
        "Whether all logits of a micro-batch are held; chunked and fused are for other engines";
    "train.state.attention", one_of::<AttentionImplementation>(), Optional("the engine's own"), DECODER,
        "Implementation of attention; for other engines";
    "train.seed", Whole(0, LARGEST_WHOLE), Default("1"), OURS, "Seed of weights and data order";

    "layout.data", AXIS, AUTO_AXIS, OURS, "Data-parallel replicas";
    "layout.tensor", AXIS, AUTO_AXIS, OURS, "Tensor-parallel ranks";
    "layout.pipeline", AXIS, AUTO_AXIS, OURS, "Pipeline stages";
    "layout.context", AXIS, AUTO_AXIS, OURS, "Context-parallel ranks";
    "layout.expert", AXIS, AUTO_AXIS, OURS, "Expert-parallel ranks";
    "layout.zero", OrAuto(&Whole(0, 3)), Default("auto"), OURS,
        "ZeRO stage: 1 shards optimizer state, 2 also gradients, 3 also parameters";
    "layout.micro_batch", AXIS, AUTO_AXIS, OURS, "Samples of one forward pass on one rank";
    "layout.recompute", OrAuto(&one_of::<Recompute>()), Default("auto"), OURS,
        "Activation recomputation in the backward pass";
    "layout.recompute_every", OrAuto(&Whole(1, 4096)), Default("auto"), OURS,
        "Recompute one block in this many; 1 recomputes every block";
    "layout.schedule", OrAuto(&one_of::<PipelineSchedule>()), Default("auto"), OURS,
        "Order of forward and backward passes in a pipeline";
    "layout.chunks", OrAuto(&Whole(1, 1024)), Default("auto"), OURS,
        "Model chunks (virtual stages) per pipeline stage; more than 1 only with the interleaved schedule";
    "layout.sequence", OrAuto(&ValueType::Flag), Default("auto"), OURS,
        "Sequence parallelism: tensor-parallel ranks split the sequence outside of sharded matrices";
    "layout.shard", OrAuto(&Whole(1, 1_000_000)), Default("auto"), OURS,
        "Replicas per sharding group; state is replicated across groups (hybrid sharding)";
    "layout.shares", OrAuto(&ValueType::Wholes(1, 1000)), AUTO_AXIS, OURS,
        "How much of a step each data replica does, relative to the others: `[3, 1]` gives the first three times as much";

    "sync.compress", one_of::<CompressionKind>(), Default("\"none\""), OURS,
        "Compression of gradient all-reduce between replicas; all but \"none\" are approximate";
    "sync.rank", Whole(1, 1024), Default("powersgd: 4"), OURS, "Rank of the two PowerSGD factors of a matrix";
    "sync.keep", ValueType::Part, Default("topk: \"1%\""), OURS,
        "Share of the gradient values that are sent, the largest first";
    "sync.every", Whole(1, 1_000_000), Default("1"), OURS,
        "Optimizer steps from one synchronisation of the replicas to the next; above 1 is approximate";
    "sync.outer_learning_rate", ValueType::Above(0.0, 10.0), Default("every above 1: 0.7"), OURS,
        "Outer learning rate, applied to the mean change of the replicas";
    "sync.outer_momentum", ValueType::Below(0.0, 1.0), Default("every above 1: 0.9"), OURS,
        "Momentum of the outer step";
    "sync.staleness", Whole(0, 64), Default("0"), OURS,
        "Steps by which gradients may be stale; above 0 is approximate";

    "validation.every", OrAuto(&ValueType::Period), Default("auto"), OURS,
        "How often a run is validated, in steps or time; it always is at its end";
    "validation.samples", OrAuto(&ValueType::Samples(1_000_000_000_000)), Default("auto"), OURS,
        "Validation samples that each validation uses, at most";

    "checkpoint.every", OrAuto(&ValueType::Period), Default("auto"), OURS, "How often state is saved, in steps or time";
    "checkpoint.keep", Whole(2, 1000), Default("3"), OURS, "Newest checkpoints that are kept";

    "tune.sampler", one_of::<SamplerKind>(), Default("\"auto\""), ANY, "How `dtrain tune` proposes values";
    "tune.pruner", one_of::<PrunerKind>(), Default("\"none\""), ANY, "Which trials `dtrain tune` ends early";
    "tune.trials", Whole(1, 1_000_000), Default("12"), ANY, "Trials of a study in all";
    "tune.time", ValueType::Time, Optional("no limit"), ANY, "`dtrain tune` begins no trial after so long";
    "tune.min_steps", Whole(1, 1_000_000_000), Default("1"), ANY,
        "Steps before which no trial ends early: the first rung of asha and hyperband";
    "tune.eta", Whole(2, 100), Default("3"), ANY, "One trial in so many passes a rung of asha and hyperband";
    "tune.threshold", ValueType::Level, Optional("required for the pruner \"threshold\""), ANY,
        "A trial ends early whose metric is worse than this";
    "tune.confirm", Whole(0, 100), Default("0"), ANY,
        "Seeds with which `dtrain tune` trains the best setting again, beside the untuned one";

    "cluster.launcher", one_of::<LauncherKind>(), Default("\"local\""), ANY, "How processes are placed";
    "cluster.transport", one_of::<SshBackend>(), Default("\"ssh2\", for the launcher \"ssh\""), ANY,
        "How hosts are reached: \"openssh\" runs the program `ssh`, with your `ProxyCommand`, certificates and Kerberos";
    "cluster.ranks", OrAuto(&Whole(1, 1_000_000)), Default("auto"), ANY,
        "Total number of ranks, a multiple of the hosts; at most 1,024 on each";
    "cluster.slots", Whole(1, 1024), Default("1"), ANY, "Trials of a study that run side by side";
    "cluster.devices", one_of::<Devices>(), Default("\"auto\""), ANY, "Devices that train, on every host; \"gpu\" is any maker's, \"cuda\" NVIDIA's";
    "cluster.mtbf", ValueType::Time, Optional("154 days"), ANY,
        "Mean time between failures of one host; \"auto\" checkpoints and expected failures follow from it";
    "cluster.python", ValueType::Text, Optional("`python3`"), DECODER,
        "Python interpreter with the packages of the engine, on every host";
    "cluster.probe", ValueType::Time, Optional("12 s"), ANY,
        "Time limit for measuring how fast the hosts train a model";
    "cluster.price", ValueType::Above(0.0, 1e9), Optional("device-hours are reported, and no money"), ANY,
        "Price per GPU hour, or per core hour on CPUs, in any currency";
    "cluster.network", ValueType::Network, Optional("that over which each host was reached"), ANY,
        "Network over which the hosts of a run communicate with each other, such as `10.0.0.0/16`";
    "cluster.unreachable_timeout", ValueType::Time, Optional("10 min"), ANY,
        "How long the hosts of a run may be out of reach before the one that leads is given up for lost";
    "cluster.least", Whole(1, 100_000), Optional("all but the spares at the start, then one"), ANY,
        "Number of hosts that must answer for a run to start, and to continue";
    "cluster.spares", Whole(0, 100_000), Default("0"), ANY,
        "Number of hosts that stand by and take the places of hosts that are lost";
    "cluster.grow", one_of::<GrowthPolicy>(), Default("\"checkpoint\""), ANY,
        "When a run takes more hosts, such as one that is back: after a checkpoint if that saves time, or never";
    "cluster.notice.command", ValueType::Texts, Optional("no command is asked"), ANY,
        "Program and arguments that each host runs to learn that it will be taken away, which exit code 0 says; it then leaves";
    "cluster.notice.url", ValueType::HttpUrl, Optional("no URL is asked"), ANY,
        "URL that each host asks instead of a command: once it is answered with 200, the host will be taken away, and leaves";
    "cluster.notice.contains", ValueType::Text, Optional("every answer with 200 counts"), ANY,
        "Text that an answer must contain to count";
    "cluster.notice.headers", ValueType::Headers, Optional("none"), ANY,
        "Header fields of the request to the URL, such as `{ Metadata-Flavor = \"Google\" }`";
    "cluster.notice.every", ValueType::Time, Default("\"5 s\", where there is a command or a URL"), ANY,
        "Time from one look for a notice to the next";
    "cluster.workdir.send", ValueType::Flag, Default("true with another key of `workdir`, otherwise false"), ANY,
        "Whether the recipe's folder is sent to every host, where programs run in it; `workdir = true` for short";
    "cluster.workdir.exclude", ValueType::Texts, Optional("what git tracks or does not ignore is sent"), ANY,
        "Patterns of files and folders that are not sent, as in a .gitignore";
    "cluster.workdir.limit", ValueType::Size, Default("\"256 MiB\", where the folder is sent"), ANY,
        "Total size of the sent files, at most";
    "cluster.workdir.files", Whole(1, 10_000_000), Default("20000, where the folder is sent"), ANY,
        "Number of sent files, at most";
    "cluster.gpu.memory", ValueType::Size, Optional("that of the data sheet"), ANY,
        "Memory of one GPU of `plan --on`, as its driver reports it, for a part that dtrain does not know";
    "cluster.gpu.tflops", ValueType::Above(0.0, 1e6), Optional("those of the data sheet"), ANY,
        "TFLOP/s of its dense matrix products in 16 bits with f32 accumulation";
    "cluster.gpu.memory_bandwidth", ValueType::Above(0.0, 1e6), Optional("that of the data sheet"), ANY,
        "GB/s between the GPU and its memory";
    "cluster.gpu.link", one_of::<GpuLink>(), Optional("the usual one of the GPU"), ANY,
        "Links between the GPUs of a host: NVLink among all, NVLink bridges between pairs, PCIe with peer access, PCIe through host memory";
    "cluster.gpu.link_bandwidth", ValueType::Above(0.0, 1e5), Optional("the usual one of the link"), ANY,
        "GB/s of these links of one GPU, one way";
    "cluster.gpu.network", ValueType::Above(0.0, 1e5), Optional("the usual one of the GPU"), ANY,
        "Gbit/s of network between hosts for each GPU; `plan --network` says it too";
    "cluster.slurm.nodes", Whole(1, 100_000), Default("1"), ANY, "Nodes of the Slurm job";
    "cluster.slurm.partition", ValueType::Host, Optional("Slurm's default"), ANY, "Partition of the job";
    "cluster.slurm.account", ValueType::Host, Optional("Slurm's default"), ANY, "Account that the job is charged to";
    "cluster.slurm.time", ValueType::Time, Optional("the partition's limit"), ANY,
        "Time limit of the job; shortly before it, training is saved and the job is requeued";
    "cluster.slurm.options", ValueType::Texts, Optional("none"), ANY,
        "More options of sbatch, such as `--gpus-per-node=8`, each with its value in one text";
    "cluster.slurm.environment", ValueType::Variables, Optional("none"), ANY,
        "Environment variables that the job gets from this shell, besides PATH, HOME and the like";
    "cluster.hosts.address", ValueType::Host, Required, ANY, "Name or address; `gpu-[01-04]` stands for four";
    "cluster.hosts.port", Whole(1, 65_535), Default("22"), ANY, "SSH port";
    "cluster.hosts.user", ValueType::Host, Optional("that of the SSH configuration"), ANY, "User name";
    "cluster.hosts.via", ValueType::Host, Optional("reached directly"), ANY, "Bastion to go through";
];
