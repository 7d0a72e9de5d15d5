#!/usr/bin/env python3
"""Language models of transformers for the tests of `dtrain run --from` and `dtrain model export`.

    interop.py fixtures FOLDER                        writes tiny random models, each with its logits for some tokens
    interop.py initial NAME FOLDER                    writes the model of the fixture NAME as transformers initialises it
    interop.py train MODEL TOKENS STEPS RATE          trains MODEL on TOKENS, all of them in each step, and prints each loss
    interop.py tune MODEL TOKENS STEPS RATE ADAPTERS  the same of ADAPTERS, a folder of peft, on MODEL, which is frozen
    interop.py loss MODEL TOKENS                      prints the mean loss of MODEL on TOKENS
    interop.py logits MODEL                           prints the logits of MODEL as JSON, in the form of a fixture's `logits.json`

Needs transformers, peft and torch, which `tests/run interop` installs.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

TOKENS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79]

ROTARY = dict(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=16,
)

# Windows of four tokens among sixteen, and a scale of queries that is not that of the heads.
GEMMA3 = dict(
    ROTARY,
    num_hidden_layers=3,
    head_dim=16,
    intermediate_size=24,
    query_pre_attn_scalar=24,
    sliding_window=4,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    tie_word_embeddings=True,
)

MODELS = {
    "llama": LlamaConfig(**ROTARY, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "mistral": MistralConfig(**ROTARY, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**ROTARY, rms_norm_eps=1e-6, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=16),
    # Waves of 6.3, 32, 167 and more tokens: the first is kept, the second is between, the others are scaled.
    "llama3": LlamaConfig(
        **(ROTARY | dict(head_dim=16, intermediate_size=32, max_position_embeddings=64)),
        rms_norm_eps=1e-5,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=56,
        ),
        tie_word_embeddings=True,
    ),
    "qwen3": Qwen3Config(
        **(ROTARY | dict(head_dim=16, intermediate_size=24)),
        rope_parameters=dict(rope_type="default", rope_theta=1e6),
        tie_word_embeddings=False,
    ),
    "gemma3": Gemma3TextConfig(**GEMMA3),
    "gemma3-scaled": Gemma3TextConfig(
        **GEMMA3,
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
            full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
        ),
    ),
    "mistral-window": MistralConfig(**ROTARY, rms_norm_eps=1e-5, sliding_window=5, tie_word_embeddings=False),
    "mixtral": MixtralConfig(
        **(ROTARY | dict(intermediate_size=16)),
        num_local_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    ),
    "qwen2moe": Qwen2MoeConfig(
        **ROTARY,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e6),
        tie_word_embeddings=False,
    ),
    "qwen3moe": Qwen3MoeConfig(
        **ROTARY,
        head_dim=16,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e6),
        tie_word_embeddings=False,
    ),
}
# Several files and an index for some of them, and half precision for others.
SHARDED = ["llama", "mixtral"]
HALVED = ["mistral", "gemma3", "gemma3-scaled", "mixtral", "qwen3moe"]


def load(model, **more):
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, **more)


def logits_of(model):
    with torch.no_grad():
        logits = load(model).eval()(torch.tensor([TOKENS])).logits[0]
    return json.dumps({"tokens": TOKENS, "logits": [[round(x, 6) for x in row] for row in logits.tolist()]})


def fixtures(folder):
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            # Biases and norms that are not what they begin as, and routers whose choice rounding does not change in 50 steps.
            for weight_name, weight in model.named_parameters():
                by = 0.5 if weight_name.endswith(".mlp.gate.weight") else 0.1
                weight.add_(by * torch.randn_like(weight))
        to = folder / name
        if name in HALVED:
            model = model.to(torch.bfloat16)
        model.save_pretrained(to, max_shard_size="40KB" if name in SHARDED else "5GB")
        (to / "generation_config.json").unlink(missing_ok=True)
        # Read again, because bf16 has rounded the angles of rotary positions too.
        (to / "logits.json").write_text(logits_of(to) + "\n")


def initial(name, folder):
    config = MODELS[name]
    # A fixture of Gemma has another scale of queries than llama.cpp, which takes that of the heads.
    if hasattr(config, "query_pre_attn_scalar"):
        config.query_pre_attn_scalar = config.head_dim
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def cut(tokens, length=16):
    """The windows of a shard of tokens, each with the token behind it."""
    tokens = numpy.fromfile(tokens, dtype="<u2").astype("int64")
    windows = [tokens[begin : begin + length + 1] for begin in range(0, len(tokens) - length, length)]
    return torch.tensor(numpy.stack(windows))


def train(model, tokens, steps, rate, adapters=None):
    """AdamW without decay of weights, on all windows of 16 tokens at once: what the recipe of the test says."""
    model = load(model, attn_implementation="eager")
    if adapters:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapters, is_trainable=True)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        # What a token of padding is looked up as would not be trained.
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    windows = cut(tokens)
    for _ in range(steps):
        logits = model(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}", flush=True)


def loss(model, tokens):
    model = load(model).eval()
    windows = cut(tokens)
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item())


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "fixtures":
        sys.exit(fixtures(Path(rest[0])))
    if what == "initial":
        sys.exit(initial(*rest))
    if what in ("train", "tune"):
        model, tokens, steps, rate, *adapters = rest
        sys.exit(train(model, tokens, int(steps), float(rate), *adapters))
    if what == "logits":
        sys.exit(print(logits_of(*rest)))
    sys.exit(loss(*rest))
