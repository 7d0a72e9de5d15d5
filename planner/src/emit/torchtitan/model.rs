//! The part of the emitted Python module that builds the model.

use super::{DecoderPlan, fp8, has_split_backward};

use dtrain_recipes::{DataFormat, Experts, Recompute};

/// Returns the notes about differences between the plan's model and the one in torchtitan.
pub(super) fn notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = Vec::new();
    if matches!(source.data().format, DataFormat::Tokens { .. }) {
        notes.push("torchtitan reads text: name the files that the shards of tokens were made from".into());
    }
    let Some(experts) = source.model.experts else { return notes };
    if experts.balance > 0.0 {
        notes.push(
            "experts are balanced by a bias on the router's scores (torchtitan's way), not by a loss".into(),
        );
    }
    if let Some(capacity) = experts.capacity {
        notes.push(format!("experts take all tokens sent to them, not up to {capacity} of an even share"));
    }
    notes
}

/// Returns the imports, the user's settings, and `SPEC`, the model.
pub(super) fn module(source: &DecoderPlan) -> String {
    [imports(source), settings(source), blocks(source), spec(source), fp8::convert(source)].concat()
}

fn imports(source: &DecoderPlan) -> String {
    let is_mixture = source.model.experts.is_some();
    let (family, base, rope) =
        if is_mixture { ("qwen3", "Qwen3", "CosSinRoPE") } else { ("llama3", "Llama3", "ComplexRoPE") };
    let recompute = match source.arrangement.recompute {
        Recompute::None => "",
        Recompute::Selective => "from torchtitan.distributed.activation_checkpoint import SelectiveAC\n",
        Recompute::Full => "from torchtitan.distributed.activation_checkpoint import FullAC\n",
    };
    let hook = if is_mixture { ", register_moe_load_balancing_hook" } else { "" };
    let parts = if is_mixture {
        "make_gqa_config,\n    make_moe_config,\n    make_routed_experts_config,\n    make_router_config"
    } else {
        "make_ffn_config,\n    make_gqa_config"
    };
    let skip = if source.model.tied {
        "from torchtitan.models.common.param_init import skip_param_init\n"
    } else {
        ""
    };
    let adapter = if is_mixture {
        ""
    } else {
        "from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter\n"
    };
    let loss = if has_split_backward(source) { "" } else { "ChunkedLossWrapper, " };
    let (converters, compile) = (fp8::imports(source), fp8::compile_import(source));
    format!(
        "\nfrom functools import partial\n\nimport torch.nn as nn\nfrom datasets import Dataset, load_dataset\n\n\
         from torchtitan.components.checkpoint import CheckpointManager\n\
         from torchtitan.components.loss import {loss}CrossEntropyLoss\n\
         from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig{hook}\n{converters}\
         from torchtitan.config import {compile}DebugConfig, ParallelismConfig, TrainingConfig\n{recompute}\
         from torchtitan.distributed.pipeline_parallel import pipeline_llm\n\
         from torchtitan.hf_datasets import DatasetConfig\n\
         from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader\n\
         from torchtitan.models.common import {rope}, Embedding, Linear, RMSNorm\n\
         from torchtitan.models.common.config_utils import (\n    get_attention_config,\n    {parts},\n)\n{skip}\
         from torchtitan.models.{family}.model import {base}Model, {base}TransformerBlock\n\
         from torchtitan.models.{family}.parallelize import parallelize_{}\n{adapter}\
         from torchtitan.protocols.model_spec import ModelSpec\nfrom torchtitan.trainer import Trainer\n",
        if is_mixture { "qwen3" } else { "llama" }
    )
}

fn settings(source: &DecoderPlan) -> String {
    // A JSON string is a Python string.
    let files = serde_json::to_string(&source.train_files()).expect("a list of texts");
    let model = source.model;
    format!(
        "\n# SET: a folder with a tokenizer.json of at most {} tokens.\nTOKENIZER = \"assets/tokenizer\"\n\
         # SET: the training text; each file is a document.\nFILES = {files}\n\
         # Ranks that read documents of their own.\nREADERS = {}\n{DOCUMENTS}\n\
         HIDDEN, HEADS, KV_HEADS, HEAD_WIDTH, FFN, VOCAB = {}, {}, {}, {}, {}, {}\n\
         INIT = {{\"weight\": partial(nn.init.normal_, std=0.02), \"bias\": nn.init.zeros_}}\n",
        model.vocab,
        source.readers(),
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_width(),
        model.ffn,
        model.vocab
    )
}

/// The data set, in Python. `datasets` fails on a rank without a document, so few files are cut up.
const DOCUMENTS: &str = r#"

def documents(path):
    """Returns the files as documents; where there are fewer than READERS, the longest are halved."""
    files = load_dataset(path, data_files=FILES, sample_by="document", split="train")
    if len(files) >= READERS:
        return files
    texts = list(files["text"])
    while len(texts) < READERS:
        longest = max(range(len(texts)), key=lambda place: len(texts[place]))
        text = texts[longest]
        texts[longest : longest + 1] = [text[: len(text) // 2], text[len(text) // 2 :]]
    return Dataset.from_dict({"text": texts})


DATASETS["recipe"] = DatasetConfig(
    path="text",
    loader=documents,
    sample_processor=lambda sample: sample["text"],
)
"#;

fn blocks(source: &DecoderPlan) -> String {
    let model = source.model;
    let (base, rope, inside) = match &model.experts {
        Some(experts) => ("Qwen3", "CosSinRoPE", mixture(experts)),
        None => ("Llama3", "ComplexRoPE", dense().into()),
    };
    format!(
        "\n\ndef norm():\n    return RMSNorm.Config(normalized_shape=HIDDEN, eps={:e}, \
         param_init={{\"weight\": nn.init.ones_}})\n\n\n\
         def block():\n    return {base}TransformerBlock.Config(\n        attention_norm=norm(),\n        \
         ffn_norm=norm(),\n        attention=make_gqa_config(\n            dim=HIDDEN,\n            n_heads=HEADS,\n            \
         n_kv_heads=KV_HEADS,\n            head_dim=HEAD_WIDTH,\n            wqkv_param_init=INIT,\n            \
         wo_param_init=INIT,\n            inner_attention=get_attention_config(\"flex\"),\n            fuse_qkv=True,\n            \
         rope={rope}.Config(dim=HEAD_WIDTH, max_seq_len={}, theta={}.0),\n        ),\n{inside}    )\n",
        model.norm_epsilon(),
        model.context,
        model.rotary_base()
    )
}

fn dense() -> &'static str {
    "        feed_forward=make_ffn_config(dim=HIDDEN, hidden_dim=FFN, w1_param_init=INIT, w2w3_param_init=INIT),\n"
}

/// Returns the settings for experts: with one expert per token its probability is the weight; otherwise
/// weights are normalized to sum to one.
fn mixture(experts: &Experts) -> String {
    let norm = if experts.per_token == 1 { "False" } else { "True" };
    let balance = if experts.balance > 0.0 { "1e-3" } else { "None" };
    let (count, top) = (experts.count, experts.per_token);
    format!(
        "        moe=make_moe_config(\n            num_experts={count},\n            load_balance_coeff={balance},\n            \
         router=make_router_config(\n                dim=HIDDEN,\n                num_experts={count},\n                \
         gate_param_init=INIT,\n                top_k={top},\n                score_func=\"softmax\",\n                \
         route_norm={norm},\n            ),\n            routed_experts=make_routed_experts_config(\n                \
         dim=HIDDEN,\n                hidden_dim=FFN,\n                num_experts={count},\n                top_k={top},\n                \
         param_init={{name: INIT[\"weight\"] for name in (\"w1_EFD\", \"w2_EDF\", \"w3_EFD\")}},\n                \
         comm_backend=\"standard\",\n            ),\n        ),\n"
    )
}

/// The adapter between the weights of Llama in Hugging Face's form and those of torchtitan.
const ADAPTER: &str = "    # Weights in the form of Hugging Face: --checkpoint.initial_load_in_hf begins with those in TOKENIZER, or in
    # --checkpoint.initial_load_path; --checkpoint.last_save_model_only with --checkpoint.last_save_in_hf writes the last.
    state_dict_adapter=Llama3StateDictAdapter,
";

/// The reason why a mixture has no adapter.
const WITHOUT_ADAPTER: &str = "    # No weights in the form of Hugging Face: its Qwen3 has norms of queries and keys, which these blocks lack.
    state_dict_adapter=None,
";

fn spec(source: &DecoderPlan) -> String {
    let model = source.model;
    let (name, parallelize, hook) = match model.experts {
        Some(_) => ("Qwen3", "parallelize_qwen3", "register_moe_load_balancing_hook"),
        None => ("Llama3", "parallelize_llama", "None"),
    };
    let adapter = if model.experts.is_some() { WITHOUT_ADAPTER } else { ADAPTER };
    let embedding = if model.tied { "{\"weight\": skip_param_init}" } else { "INIT" };
    let tied = if model.tied { "True" } else { "False" };
    format!(
        "\n\nSPEC = ModelSpec(\n    name=\"{}\",\n    flavor=\"recipe\",\n    model={name}Model.Config(\n        dim=HIDDEN,\n        \
         vocab_size=VOCAB,\n        enable_weight_tying={tied},\n        \
         tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init={embedding}),\n        \
         norm=norm(),\n        lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=INIT),\n        \
         layers=[block() for _ in range({})],\n    ),\n    parallelize_fn={parallelize},\n    pipelining_fn=pipeline_llm,\n    \
         post_optimizer_build_fn={hook},\n{adapter})\n",
        name.to_lowercase(),
        model.layers
    )
}
