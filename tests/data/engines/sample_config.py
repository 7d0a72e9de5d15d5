# torchtitan 0.3.0 (PyPI): python -m torchtitan.train --module dtrain_config --config train, once per rank
# Written by dtrain 0.1.0 for tests/data/engines/compare.py, which sets the fields marked TEST.

from functools import partial

import torch.nn as nn
from dtrain_engines import titan

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
)
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

HIDDEN, HEADS, KV_HEADS, HEAD_WIDTH, FFN, VOCAB = 64, 4, 2, 16, 128, 256
INIT = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
JOB = titan.JOB
SHARD = max(JOB.shard // JOB.degree("context"), 1)  # TEST: torchtitan also shards among context ranks
LAYERS = 2 * JOB.arrangement["chunks"]  # TEST
TIED = JOB.assignment["model"]["tied"]  # TEST
EMBEDDING = {"weight": skip_param_init} if TIED else INIT  # TEST


def norm():
    return RMSNorm.Config(normalized_shape=HIDDEN, eps=1e-5, param_init={"weight": nn.init.ones_})


def block():
    return Llama3TransformerBlock.Config(
        attention_norm=norm(),
        ffn_norm=norm(),
        attention=make_gqa_config(
            dim=HIDDEN,
            n_heads=HEADS,
            n_kv_heads=KV_HEADS,
            head_dim=HEAD_WIDTH,
            wqkv_param_init=INIT,
            wo_param_init=INIT,
            inner_attention=get_attention_config("flex"),
            fuse_qkv=True,
            rope=ComplexRoPE.Config(dim=HEAD_WIDTH, max_seq_len=256, theta=10000.0),
        ),
        feed_forward=make_ffn_config(dim=HIDDEN, hidden_dim=FFN, w1_param_init=INIT, w2w3_param_init=INIT),
    )


SPEC = ModelSpec(
    name="llama3",
    flavor="recipe",
    model=Llama3Model.Config(
        dim=HIDDEN,
        vocab_size=VOCAB,
        enable_weight_tying=TIED,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=HIDDEN, param_init=EMBEDDING),
        norm=norm(),
        lm_head=Linear.Config(in_features=HIDDEN, out_features=VOCAB, param_init=INIT),
        layers=[block() for _ in range(LAYERS)],
    ),
    parallelize_fn=parallelize_llama,
    pipelining_fn=pipeline_llm,
    post_optimizer_build_fn=None,
    state_dict_adapter=None,
)


LOSS = CrossEntropyLoss.Config(global_vocab_size=VOCAB)
SCHEDULES = {  # TEST
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
}


def stages() -> list[list[str]]:  # TEST: one chunk after the other
    count = JOB.degree("pipeline") * JOB.arrangement["chunks"]
    layers = [f"layers.{index}" for index in range(LAYERS)]
    each = LAYERS // count
    parts = [layers[begin : begin + each] for begin in range(0, LAYERS, each)]
    return [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", "lm_head"]]


def train() -> titan.Trainer.Config:
    return titan.configured(emitted())


def emitted() -> Trainer.Config:
    piped = JOB.degree("pipeline") > 1  # TEST: the emitter writes numbers
    return Trainer.Config(
        model_spec=SPEC,
        loss=LOSS if JOB.arrangement["schedule"] == "zero_bubble" else ChunkedLossWrapper.Config(loss_fn=LOSS),  # TEST
        optimizer=OptimizersContainer.Config(
            param_groups=[
                ParamGroupConfig(
                    pattern=r"norm",
                    optimizer_name="AdamW",
                    optimizer_kwargs={"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0},
                ),
                ParamGroupConfig(
                    pattern=r".*",
                    optimizer_name="AdamW",
                    optimizer_kwargs={"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1},
                ),
            ]
        ),
        training=TrainingConfig(
            local_batch_size=len(JOB.share) if piped else JOB.micro_batch,  # TEST
            global_batch_size=8,
            seq_len=JOB.context,  # TEST
            max_norm=1.0,
            steps=JOB.steps,  # TEST
            mixed_precision_param="bfloat16" if JOB.arrangement["precision"] == "bf16" else "float32",  # TEST
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=JOB.degree("data") // SHARD,  # TEST
            data_parallel_shard_degree=SHARD,  # TEST
            fsdp_reshard_after_forward="always" if JOB.zero == 3 else "never",  # TEST
            tensor_parallel_degree=JOB.degree("tensor"),  # TEST
            enable_sequence_parallel=JOB.arrangement["sequence"],  # TEST
            context_parallel_degree=JOB.degree("context"),  # TEST
            expert_parallel_degree=1,
            pipeline_parallel_degree=JOB.degree("pipeline"),  # TEST
            # TEST: only with a pipeline
            pipeline_parallel_schedule=SCHEDULES[JOB.arrangement["schedule"]],
            pipeline_parallel_microbatch_size=JOB.micro_batch if piped else 1,
            module_fqns_per_model_part=stages() if piped else None,
        ),
        activation_checkpoint=FullAC.Config() if JOB.arrangement["recompute"] == "full" else None,  # TEST
        debug=DebugConfig(seed=1),
    )
