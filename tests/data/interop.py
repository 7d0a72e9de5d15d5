#!/usr/bin/env python3
"""Language models of transformers for the tests of `dtrain run --from` and `dtrain model export`.

    interop.py fixtures FOLDER                        writes tiny random models, each with its logits for some tokens
    interop.py train MODEL TOKENS STEPS RATE          trains MODEL on TOKENS, all of them in each step, and prints each loss
    interop.py tune MODEL TOKENS STEPS RATE ADAPTERS  the same of ADAPTERS, a folder of peft, on MODEL, which is frozen
    interop.py loss MODEL TOKENS                      prints the mean loss of MODEL on TOKENS

Needs transformers, peft and torch, which `tests/run interop` installs.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

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

MODELS = {
    "llama": LlamaConfig(**ROTARY, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "mistral": MistralConfig(**ROTARY, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**ROTARY, rms_norm_eps=1e-6, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=16),
}


def fixtures(folder):
    for name, config in MODELS.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            # Biases and norms that are not what they begin as.
            for weight in model.parameters():
                weight.add_(0.1 * torch.randn_like(weight))
        to = folder / name
        # Two files and an index for one of them, and half precision for another.
        if name == "mistral":
            model = model.to(torch.bfloat16)
        model.save_pretrained(to, max_shard_size="40KB" if name == "llama" else "5GB")
        (to / "generation_config.json").unlink(missing_ok=True)
        # Read again, because bf16 has rounded the angles of rotary positions too.
        model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0]
        (to / "logits.json").write_text(json.dumps({"tokens": TOKENS, "logits": [[round(x, 6) for x in row] for row in logits.tolist()]}) + "\n")


def cut(tokens, length=16):
    """The windows of a shard of tokens, each with the token behind it."""
    tokens = numpy.fromfile(tokens, dtype="<u2").astype("int64")
    windows = [tokens[begin : begin + length + 1] for begin in range(0, len(tokens) - length, length)]
    return torch.tensor(numpy.stack(windows))


def train(model, tokens, steps, rate, adapters=None):
    """AdamW without decay of weights, on all windows of 16 tokens at once: what the recipe of the test says."""
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapters:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapters, is_trainable=True)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
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
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    windows = cut(tokens)
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item())


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "fixtures":
        sys.exit(fixtures(Path(rest[0])))
    if what in ("train", "tune"):
        model, tokens, steps, rate, *adapters = rest
        sys.exit(train(model, tokens, int(steps), float(rate), *adapters))
    sys.exit(loss(*rest))
