"""Trains the same small decoder in every engine and layout, and compares the losses with a plain PyTorch loop.

    python tests/data/engines/compare.py [NAME …]

Needs torch, transformers and torchtitan; no GPU. Starts two ranks for each case, as dtrain does. NAME selects the cases
whose name contains it. Ends with 1 if a loss differs from the plain loop's by more than a thousandth at any step.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

HERE = Path(__file__).resolve().parent
PACKAGES = HERE.parents[2] / "runner/python"
sys.path.insert(0, str(PACKAGES))

from dtrain_engines.job import Job  # noqa: E402
from dtrain_engines.schedule import Schedule  # noqa: E402
from dtrain_engines.tokens import Samples, StepReader  # noqa: E402

STEPS, CONTEXT, LONGEST_CONTEXT, VOCAB, BATCH, VALID_SAMPLES = 10, 64, 256, 256, 8, 5
TOLERANCE = {"f32": 1e-3, "bf16": 5e-2}
LIMIT_SECONDS = 300
LAYOUT = {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 1}


def llama(is_tied: bool) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LONGEST_CONTEXT, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=is_tied, bos_token_id=None, eos_token_id=None,
    )


FAMILIES = {
    "llama": llama(is_tied=False),
    "tied": llama(is_tied=True),
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_inner=256, n_layer=2, n_head=4, n_positions=LONGEST_CONTEXT, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    ),
}
FSDP = ["-m", "dtrain_engines.fsdp"]
TITAN = [str(HERE / "cpu_shim.py"), "--module", "sample_config", "--config", "train"]
# Name, program, family, axes of the layout, other fields of the arrangement and of the hyperparameters.
CASES = [
    ("fsdp: data 2", FSDP, "llama", {"data": 2}, {}, {}),
    ("fsdp: data 2, zero 1", FSDP, "llama", {"data": 2}, {"zero": "1", "shard": 2}, {}),
    ("fsdp: data 2, zero 2, 2 micro-batches", FSDP, "llama", {"data": 2}, {"zero": "2", "shard": 2}, {"micro_batch": 2}),
    ("fsdp: data 2, zero 3", FSDP, "llama", {"data": 2}, {"zero": "3", "shard": 2}, {}),
    ("fsdp: data 2, zero 3, recompute", FSDP, "llama", {"data": 2}, {"zero": "3", "shard": 2, "recompute": "full"}, {}),
    ("fsdp: tensor 2", FSDP, "llama", {"tensor": 2}, {}, {}),
    ("fsdp: data 2, zero 3, gpt2", FSDP, "gpt2", {"data": 2}, {"zero": "3", "shard": 2}, {}),
    ("fsdp: data 2, zero 3, lion", FSDP, "llama", {"data": 2}, {"zero": "3", "shard": 2}, {"optimizer": "lion"}),
    ("fsdp: data 2, zero 3, tied", FSDP, "tied", {"data": 2}, {"zero": "3", "shard": 2}, {}),
    ("fsdp: data 2, zero 3, bf16", FSDP, "llama", {"data": 2}, {"zero": "3", "shard": 2, "precision": "bf16"}, {}),
    ("fsdp: data 4 in shards of 2, zero 3, 2 micro-batches", FSDP, "llama", {"data": 4}, {"zero": "3", "shard": 2}, {"micro_batch": 1}),
    ("fsdp: data 2, tensor 2, zero 3", FSDP, "llama", {"data": 2, "tensor": 2}, {"zero": "3", "shard": 2}, {}),
    ("fsdp: tensor 2, sgd", FSDP, "llama", {"tensor": 2}, {}, {"optimizer": "sgd"}),
    ("torchtitan: data 2", TITAN, "llama", {"data": 2}, {}, {}),
    ("torchtitan: data 2, zero 3", TITAN, "llama", {"data": 2}, {"zero": "3", "shard": 2}, {}),
    ("torchtitan: data 2, zero 2, 2 micro-batches", TITAN, "llama", {"data": 2}, {"zero": "2", "shard": 2}, {"micro_batch": 2}),
    ("torchtitan: data 2, zero 3, tied", TITAN, "tied", {"data": 2}, {"zero": "3", "shard": 2}, {}),
    ("torchtitan: data 2, zero 3, bf16", TITAN, "llama", {"data": 2}, {"zero": "3", "shard": 2, "precision": "bf16"}, {}),
    ("torchtitan: tensor 2", TITAN, "llama", {"tensor": 2}, {}, {}),
    ("torchtitan: tensor 2, sequence", TITAN, "llama", {"tensor": 2}, {"sequence": True}, {}),
    ("torchtitan: pipeline 2", TITAN, "llama", {"pipeline": 2}, {}, {"micro_batch": 2}),
    # torchtitan splits sequences in blocks of 128 tokens.
    ("torchtitan: context 2", TITAN, "llama", {"context": 2}, {}, {"context": 256}),
    ("torchtitan: data 4 in shards of 2, zero 3", TITAN, "llama", {"data": 4}, {"zero": "3", "shard": 2}, {}),
    ("torchtitan: data 2, pipeline 2, zero 3", TITAN, "llama", {"data": 2, "pipeline": 2}, {"zero": "3", "shard": 2}, {"micro_batch": 2}),
]
# Name, program, family and recomputation of the trainings that end early and are started again.
RESTARTED = [
    ("fsdp", FSDP, "llama", "none"),
    ("fsdp gpt2", FSDP, "gpt2", "full"),
    ("torchtitan", TITAN, "llama", "none"),
]
# Name, program, family, axes, fields of the arrangement and of the hyperparameters, and the last line of every rank.
REFUSED = [
    ("fsdp: pipeline 2", FSDP, "llama", {"pipeline": 2}, {}, {}, "cannot split along the axis `pipeline`"),
    ("fsdp: tensor 2, gpt2", FSDP, "gpt2", {"tensor": 2}, {}, {}, "cannot split a model of type `gpt2`"),
    ("fsdp: lamb", FSDP, "llama", {"data": 2}, {}, {"optimizer": "lamb"}, "has no optimizer `lamb`"),
    ("torchtitan: context 2 of 64 tokens", TITAN, "llama", {"context": 2}, {}, {}, "NotImplementedError: Q_LEN 64"),
]


def corpus(folder: Path) -> None:
    """Writes two files of tokens, 2 bytes wide behind a header, and 1 byte wide."""
    random = np.random.default_rng(1)
    tokens = (np.cumsum(random.integers(0, 3, 24_000)) + random.integers(0, 2, 24_000)) % VOCAB
    (folder / "a.bin").write_bytes(b"head" + tokens[:4000].astype("<u2").tobytes())
    (folder / "b.bin").write_bytes(tokens[4000:].astype("u1").tobytes())


def job(folder: Path, family: str, layout: dict, arrangement: dict, training: dict, rank: int) -> dict:
    """The job of a rank, as dtrain writes it."""
    degrees = {**LAYOUT, **layout}
    readers = degrees["data"]
    share = BATCH // readers
    reader = rank // (degrees["tensor"] * degrees["context"]) % readers
    micro_batch = training.get("micro_batch", share)
    segments = [
        {"path": str(folder / "a.bin"), "begin": 4, "tokens": 4000, "width": 2},
        {"path": str(folder / "b.bin"), "begin": 0, "tokens": 20_000, "width": 1},
    ]
    kind = training.get("optimizer", "adamw")
    return {
        "assignment": {
            "rank": rank,
            "model": {"kind": "decoder", "context": training.get("context", CONTEXT), "vocab": VOCAB, "tied": family == "tied"},
            "arrangement": {
                "layout": degrees, "zero": "0", "shard": 1, "sequence": False, "recompute": "none",
                "precision": "f32", "device": "cpu", **arrangement,
            },
            "training": {
                "batch": BATCH,
                "share": {"start": reader * share, "end": (reader + 1) * share},
                "micro_batch": micro_batch,
                "micro_batches": share // micro_batch,
                "optimizer": {"kind": kind, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
                # A step of Lion is as long as its rate, whatever the gradient.
                "learning_rate": 1e-3 if kind == "lion" else 1e-2,
                "warmup_steps": 2, "schedule_steps": STEPS, "schedule": "cosine", "final_fraction": 0.1,
                "clip": 1.0, "z_loss": 0.0, "seed": 7,
            },
            "until": {"steps": training.get("steps", STEPS)},
            "waits": {"silence_seconds": 60.0, "idle_seconds": 1200.0, "step_seconds": None},
            "validate_every": 5, "validate_samples": VALID_SAMPLES, "save_every": training.get("save_every", 100),
        },
        # Fewer samples than the steps take, so that epochs change.
        "train": {"segments": segments, "first": 0, "samples": 70},
        "valid": {"segments": segments, "first": 18_000, "samples": 8},
        "initial": str(folder / family),
        "keep": 2,
    }


def plain(job_file: Path) -> dict[int, dict[str, float]]:
    """The reference: a plain loop on one process, which takes whole batches."""
    job = Job.read(job_file)
    training, rule = job.training, job.training["optimizer"]
    model = AutoModelForCausalLM.from_pretrained(job.initial, dtype=torch.float32)
    params = list(model.parameters())
    decays = [rule["weight_decay"] if param.dim() > 1 else 0.0 for param in params]
    moments = [(torch.zeros_like(param), torch.zeros_like(param)) for param in params]
    reader, schedule = StepReader(job, range(job.batch)), Schedule.of(training)
    valid = Samples(job.valid, job.context)

    def loss_of(inputs: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        logits = model(input_ids=torch.from_numpy(inputs)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())

    events = {}
    for step in range(job.steps):
        batches = list(reader.micro_batches(step))
        losses = [loss_of(*batch) / len(batches) for batch in batches]
        gradients = torch.autograd.grad(sum(losses), params)
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients)).item()
        scale, rate = min(1.0, training["clip"] / norm), schedule.rate(step)
        b1, b2 = rule["beta1"], rule["beta2"]
        with torch.no_grad():
            for param, gradient, decay, (m, v) in zip(params, gradients, decays, moments):
                gradient = gradient * scale
                if rule["kind"] == "adamw":
                    m.mul_(b1).add_(gradient * (1 - b1))
                    v.mul_(b2).add_(gradient * gradient * (1 - b2))
                    corrected = m / (1 - b1 ** (step + 1)), v / (1 - b2 ** (step + 1))
                    direction = corrected[0] / (corrected[1].sqrt() + rule["epsilon"])
                elif rule["kind"] == "lion":
                    direction = (m * b1 + gradient * (1 - b1)).sign()
                    m.mul_(b2).add_(gradient * (1 - b2))
                else:
                    direction = m.mul_(b1).add_(gradient)
                param.mul_(1 - rate * decay).sub_(direction * rate)
        loss = sum(loss.item() for loss in losses)
        events[step + 1] = {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "tokens": job.tokens_per_step}
        if job.validates_after(step + 1):
            with torch.no_grad():
                events[step + 1]["valid_loss"] = loss_of(*valid.read(np.arange(job.valid_samples))).item()
    return events


class Ranks:
    """Two processes with the variables that dtrain sets, and what they report."""

    def __init__(self, folder: Path, program: list[str], jobs: list[dict]):
        self.folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.processes, self.logs = [], []
        for rank, record in enumerate(jobs):
            file = folder / f"job-{rank}.json"
            file.write_text(json.dumps({**record, "checkpoints": str(folder / "checkpoints")}))
            events = os.open(folder / f"events-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            world = {"RANK": rank, "WORLD_SIZE": len(jobs), "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": len(jobs)}
            variables = {
                **world, "GROUP_RANK": 0, "NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": "False", "OMP_NUM_THREADS": 1, "PYTHONUNBUFFERED": 1,
                "DTRAIN_EVENTS_FD": events, "DTRAIN_TRIAL": "01TEST", "DTRAIN_RUN_DIR": folder,
                "DTRAIN_ENGINE_JOB": file, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{HERE}",
            }
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            log = open(folder / f"log-{rank}", "a")
            self.logs.append(folder / f"log-{rank}")
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *program], env=environment, cwd=folder, pass_fds=[events], stdout=log, stderr=log
                )
            )
            os.close(events)
            log.close()

    def events(self, skip: int = 0) -> dict[int, dict[str, float]]:
        """The reports after the first `skip`, by step; a later report of a figure replaces an earlier one."""
        found: dict[int, dict[str, float]] = {}
        for rank in range(len(self.processes)):
            for line in (self.folder / f"events-{rank}").read_text().splitlines()[skip:]:
                record = json.loads(line)
                found.setdefault(record.pop("step"), {}).update(record)
        return found

    def wait(self) -> list[int]:
        """The exit codes; a rank that takes too long is killed."""
        until = time.monotonic() + LIMIT_SECONDS
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(until - time.monotonic(), 0)))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(process.wait())
        return codes

    def wait_for_step(self, step: int) -> None:
        until = time.monotonic() + LIMIT_SECONDS
        while max(self.events(), default=0) < step:
            if time.monotonic() > until or any(process.poll() for process in self.processes):
                self.kill()
                raise SystemExit(f"step {step} was not reached\n{self.last_words()}")
            time.sleep(0.02)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def last_words(self) -> str:
        return "\n".join(f"{log}:\n" + log.read_text()[-3000:] for log in self.logs)


def differences(found: dict[int, dict[str, float]], wanted: dict[int, dict[str, float]], name: str) -> float:
    """The largest difference of a figure over all steps; infinite if one is missing."""
    pairs = [(found.get(step, {}).get(name), event[name]) for step, event in wanted.items() if name in event]
    return max(abs(own - other) if own is not None else float("inf") for own, other in pairs)


def check(name: str, codes: list[int], found: dict, wanted: dict, log: str, tolerance: float) -> bool:
    largest = {figure: differences(found, wanted, figure) for figure in wanted[STEPS]}
    # The norm of a gradient is larger than a loss is, and so is its error.
    norm = largest["gradient_norm"] / 10
    holds = not any(codes) and max({**largest, "gradient_norm": norm}.values()) <= tolerance
    words = ", ".join(f"{figure} {difference:.1e}" for figure, difference in largest.items())
    print(f"{'ok  ' if holds else 'FAIL'} {name}: {words}", flush=True)
    print("     " + " ".join(f"{found.get(step, {}).get('loss', float('nan')):.5f}" for step in wanted), flush=True)
    if not holds:
        print(f"exit codes {codes}\n{log}")
    return holds


def main() -> None:
    names = sys.argv[1:]
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="engines-"))
    corpus(root)
    for family, config in FAMILIES.items():
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / family)
    references: dict[tuple[str, str], dict] = {}

    def reference(family: str, training: dict) -> dict:
        key = family, training.get("optimizer", "adamw"), str(training.get("context", CONTEXT))
        if key not in references:
            file = root / f"{'-'.join(key)}.json"
            record = job(root, family, {}, {}, {"optimizer": key[1], "context": int(key[2])}, 0)
            file.write_text(json.dumps({**record, "checkpoints": ""}))
            references[key] = plain(file)
            print(f"plain {' '.join(key)}\n     " + " ".join(f"{e['loss']:.5f}" for e in references[key].values()))
        return references[key]

    holds = True
    for index, (name, program, family, layout, arrangement, training) in enumerate(CASES):
        if names and not any(word in name for word in names):
            continue
        folder = root / f"case-{index}"
        folder.mkdir()
        begin = time.monotonic()
        world = math.prod({**LAYOUT, **layout}.values())
        jobs = [job(root, family, layout, arrangement, training, rank) for rank in range(world)]
        ranks = Ranks(folder, program, jobs)
        codes = ranks.wait()
        title = f"{name} ({time.monotonic() - begin:.0f} s)"
        tolerance = TOLERANCE[arrangement.get("precision", "f32")]
        holds &= check(title, codes, ranks.events(), reference(family, training), ranks.last_words(), tolerance)
    for index, (name, program, family, layout, arrangement, training, words) in enumerate(REFUSED):
        if names and not any(word in f"refused {name}" for word in names):
            continue
        folder = root / f"refused-{index}"
        folder.mkdir()
        jobs = [job(root, family, layout, arrangement, training, rank) for rank in range(2)]
        ranks = Ranks(folder, program, jobs)
        codes = ranks.wait()
        lines = [log.read_text().splitlines()[-1] for log in ranks.logs]
        is_named = codes == [1, 1] and all(words in line for line in lines)
        print(f"{'ok  ' if is_named else 'FAIL'} refused {name}: {codes} {lines[0]}", flush=True)
        holds &= is_named
    for name, program, family, recompute in RESTARTED:
        for end, call in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM)):
            title = f"{name}: {end} after step 5, started again"
            if names and not any(word in title for word in names):
                continue
            folder = root / f"{name}-{end}"
            folder.mkdir()
            training, arrangement = {"save_every": 4}, {"zero": "3", "shard": 2, "recompute": recompute}
            jobs = [job(root, family, {"data": 2}, arrangement, training, rank) for rank in range(2)]
            ranks = Ranks(folder, program, jobs)
            ranks.wait_for_step(5)
            if end == "killed":
                ranks.processes[1].send_signal(call)
                ranks.kill()
            else:
                for process in ranks.processes:
                    process.send_signal(call)
                codes = ranks.wait()
                newest = folder / "checkpoints" / f"step-{max(ranks.events())}" / ".metadata"
                holds &= not any(codes) and newest.is_file()
                print(f"     exit codes {codes}; the checkpoint of the last step {'exists' if newest.is_file() else 'is missing'}")
            first = ranks.events()
            before = len((folder / "events-0").read_text().splitlines())
            ranks = Ranks(folder, program, jobs)
            codes = ranks.wait()
            kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
            resumed = min(ranks.events(skip=before))
            print(f"     {max(first)} steps before, then from step {resumed}; checkpoints {' '.join(kept)}")
            holds &= 1 < resumed <= max(first) + 1 and len(kept) == 2
            wanted = reference(family, training)
            holds &= check(title, codes, ranks.events(), wanted, ranks.last_words(), TOLERANCE["f32"])
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
