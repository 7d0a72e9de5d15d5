"""Trains decoders in PyTorch as `dtrain doctor --device` does; a process of its own.

Arguments: the device (`cpu`, `cuda:0`), and a JSON list of `{name, decoder, batch, parameters, precision}`. Prints PyTorch's version,
and a line of JSON for each decoder, eager and compiled, as soon as it was measured.
"""

import json
import statistics
import sys
import time

# Steps before anything counts, steps at least and at most, and the seconds that they may take.
WARM_UP, STEPS, SECONDS = 3, (3, 20), 4.0


def decoder_of(torch, shape):
    """The same decoder: the Llama family, or the GPT-2 family where positions are learned."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads, keys, ffn = (shape[key] for key in ("hidden", "heads", "kv_heads", "ffn"))
    width = hidden // heads
    is_gpt, bias = shape["positions"] == "learned", shape["bias"]

    def turned(x, angles):
        cos, sin = angles
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return functional.rms_norm(x, (hidden,), self.weight, 1e-5)

    def norm():
        return nn.LayerNorm(hidden) if is_gpt else RmsNorm()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.between = norm(), norm()
            self.packed = nn.Linear(hidden, (heads + 2 * keys) * width, bias=bias)
            self.out = nn.Linear(heads * width, hidden, bias=bias)
            self.up = nn.Linear(hidden, ffn if is_gpt else 2 * ffn, bias=bias)
            self.down = nn.Linear(ffn, hidden, bias=bias)

        def forward(self, x, angles):
            batch, length, _ = x.shape
            packed = self.packed(self.before(x)).view(batch, length, heads + 2 * keys, width).transpose(1, 2)
            q, k, v = packed.split((heads, keys, keys), dim=1)
            if not is_gpt:
                q, k = turned(q, angles), turned(k, angles)
            if keys != heads:
                k, v = (part.repeat_interleave(heads // keys, dim=1) for part in (k, v))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, heads * width))
            wide = self.up(self.between(x))
            if is_gpt:
                return x + self.down(functional.gelu(wide))
            gate, up = wide.chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(shape["vocab"], hidden)
            if is_gpt:
                self.positions = nn.Parameter(torch.randn(shape["context"], hidden) * 0.02)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = norm()
            self.head = None if shape["tied"] else nn.Linear(hidden, shape["vocab"], bias=False)
            pairs = torch.arange(width // 2, dtype=torch.float32)
            angles = torch.outer(torch.arange(shape["context"], dtype=torch.float32), 10000.0 ** (-2 * pairs / width))
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.embedding(tokens)
            if is_gpt:
                x = x + self.positions
            for block in self.blocks:
                x = block(x, (self.cos, self.sin))
            x = self.norm(x)
            logits = functional.linear(x, self.embedding.weight) if self.head is None else self.head(x)
            return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return Decoder()


def train(torch, one, is_compiled, device):
    """Tokens a second, and the most memory that tensors took (`None` where PyTorch does not tell)."""
    shape, batch = one["decoder"], one["batch"]
    is_cuda = device.startswith("cuda")
    torch.manual_seed(0)
    model = decoder_of(torch, shape).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != one["parameters"]:
        raise ValueError(f"the decoder has {parameters} parameters here, and {one['parameters']} in dtrain")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=is_cuda or None)
    loss_of = torch.compile(model) if is_compiled else model
    tokens = torch.randint(shape["vocab"], (batch, shape["context"]), device=device)
    targets = tokens.flip((0, 1))
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)

    def step():
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=one["precision"] == "bf16"):
            loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        # As dtrain does: the loss is read, and the device has nothing left to do.
        loss.item()
        if is_cuda:
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    for _ in range(WARM_UP):
        step()
    begun, seconds = time.perf_counter(), []
    while len(seconds) < STEPS[1] and (len(seconds) < STEPS[0] or time.perf_counter() - begun < SECONDS):
        seconds.append(step())
    peak = torch.cuda.max_memory_allocated(device) if is_cuda else None
    return batch * shape["context"] / statistics.median(seconds), peak


def main():
    device, asked = sys.argv[1], json.loads(sys.argv[2])
    try:
        import torch

        torch.zeros(1, device=device)
    except ImportError as error:
        print(json.dumps({"absent": f"this Python has no PyTorch ({error}); `pip install torch`"}))
        return
    except (RuntimeError, AssertionError) as error:
        # Built for a processor alone, or for another driver.
        print(json.dumps({"absent": f"PyTorch cannot use the device: {(str(error).splitlines() or [''])[0][:200]}"}))
        return
    # dtrain's products in f32 use TF32, too.
    torch.set_float32_matmul_precision("high")
    name = "the processor" if device == "cpu" else torch.cuda.get_device_name(device)
    print(json.dumps({"version": torch.__version__, "device": name}), flush=True)
    # What compiles takes long: it comes when the rest is known.
    for is_compiled in (False, True):
        for one in asked:
            result = {key: one[key] for key in ("name", "precision")} | {"how": "compiled" if is_compiled else "eager"}
            try:
                speed, peak = train(torch, one, is_compiled, device)
                result |= {"tokens_per_second": speed, "memory_peak_bytes": peak}
            except Exception as error:  # Whatever it is, the others can still be measured.
                result["failure"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            print(json.dumps(result), flush=True)
            if device != "cpu":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
