"""Trains the models of training.rs with PyTorch: python training_torch.py MODEL MODE THREADS STEPS HIDDEN.

MODEL is gpt or llama, MODE eager, compile or bf16 (eager under autocast). Prints the tokens a second of every step after the warm-up
as one JSON array.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CONTEXT, VOCABULARY, LAYERS, HEADS = 8, 256, 512, 4, 8
HIDDEN = int(sys.argv[5])
WARM = 4


class Attention(nn.Module):
    def __init__(self, kv_heads, bias, rotary):
        super().__init__()
        self.kv_heads, self.size = kv_heads, HIDDEN // HEADS
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=bias)
        self.k = nn.Linear(HIDDEN, kv_heads * self.size, bias=bias)
        self.v = nn.Linear(HIDDEN, kv_heads * self.size, bias=bias)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=bias)
        self.rotary = rotary
        if rotary:
            rates = 10_000.0 ** (-torch.arange(0, self.size, 2).float() / self.size)
            angles = torch.outer(torch.arange(CONTEXT).float(), rates)
            self.register_buffer("cos", angles.cos().repeat(1, 2))
            self.register_buffer("sin", angles.sin().repeat(1, 2))

    def turn(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, self.size).transpose(1, 2)
        k = self.k(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if self.rotary:
            q, k = self.turn(q), self.turn(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != HEADS)
        return self.out(y.transpose(1, 2).reshape(b, t, HIDDEN))


class Gated(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.gate, self.up = nn.Linear(HIDDEN, ffn, bias=False), nn.Linear(HIDDEN, ffn, bias=False)
        self.down = nn.Linear(ffn, HIDDEN, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        norm = nn.LayerNorm if model == "gpt" else nn.RMSNorm
        self.first, self.second = norm(HIDDEN), norm(HIDDEN)
        if model == "gpt":
            self.attention = Attention(HEADS, True, False)
            self.ffn = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(approximate="tanh"), nn.Linear(4 * HIDDEN, HIDDEN))
        else:
            self.attention = Attention(4, False, True)
            self.ffn = Gated(-(-8 * HIDDEN // 3))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.ffn(self.second(x))


class Decoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(CONTEXT, HIDDEN) if model == "gpt" else None
        self.blocks = nn.Sequential(*(Block(model) for _ in range(LAYERS)))
        self.norm = (nn.LayerNorm if model == "gpt" else nn.RMSNorm)(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def main():
    model, mode, threads, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    decoder = Decoder(model)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    forward = torch.compile(decoder) if mode == "compile" else decoder
    tokens = (torch.arange(BATCH * CONTEXT, dtype=torch.int64) * 2_654_435_761 % 2**32 % VOCABULARY).view(BATCH, CONTEXT)
    rates = []
    for step in range(WARM + steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "bf16"):
            logits = forward(tokens)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), tokens.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        float(loss.detach())
        if step >= WARM:
            rates.append(BATCH * CONTEXT / (time.perf_counter() - begun))
    print(json.dumps(rates))


main()
