"""Trains the same small decoder in every engine and layout, and compares the figures with a plain PyTorch loop.

    python tests/data/engines/compare.py [WORD …]

Needs torch, transformers and torchtitan; no GPU. Starts the ranks of a case as dtrain does, and takes 15 to 40 s for
each. A WORD selects the cases with it in their names. Ends with 1 if a figure is wrong at any step.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

HERE = Path(__file__).resolve().parent
PACKAGES = HERE.parents[2] / "runner/python"
sys.path.insert(0, str(PACKAGES))

from dtrain_engines import last_words  # noqa: E402
from dtrain_engines.job import Job  # noqa: E402
from dtrain_engines.schedule import Schedule  # noqa: E402
from dtrain_engines.tokens import Samples, StepReader  # noqa: E402

STEPS, CONTEXT, LONGEST_CONTEXT, VOCAB, BATCH, VALID_SAMPLES = 10, 64, 256, 256, 8, 5
# Largest differences from the plain loop.
TOLERANCES = {
    "f32": {"loss": 1e-3, "valid_loss": 1e-3, "gradient_norm": 1e-2, "learning_rate": 1e-12, "tokens": 0},
    "bf16": {"loss": 5e-2, "valid_loss": 5e-2, "gradient_norm": 5e-1, "learning_rate": 1e-12, "tokens": 0},
}
LIMIT_SECONDS = 300
ALONE = {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 1}
FSDP = ["-m", "dtrain_engines.fsdp"]
TITAN = [str(HERE / "cpu_shim.py"), "--module", "sample_config", "--config", "train"]
ZERO_1, ZERO_2, ZERO_3 = ({"zero": zero, "shard": 2} for zero in "123")
SPLIT_2 = {**ZERO_2, "schedule": "zero_bubble"}
CHUNKED = {"state": {"loss": "chunked"}}
BF16_WEIGHTS = {"precision": "bf16", "state": {"weights": "bf16", "moments": "bf16"}}
BF16_ON_HOST = {"precision": "bf16", "state": {**BF16_WEIGHTS["state"], "offload": "all", "loss": "chunked"}}
INTERLEAVED = {"schedule": "interleaved", "chunks": 2}


@dataclass
class Case:
    """A training: its engine, and what differs from a plain one."""

    name: str
    layout: dict[str, int]
    arrangement: dict[str, object] = field(default_factory=dict)
    family: str = "llama"
    optimizer: str = "adamw"
    context: int = CONTEXT
    micro_batch: int | None = None
    save_every: int = 100
    attention: str | None = None

    @property
    def program(self) -> list[str]:
        return TITAN if self.name.startswith("torchtitan") else FSDP

    @property
    def reference(self) -> "Case":
        """The training by the plain loop that gives the same figures."""
        return Case("plain", {}, {}, self.family, self.optimizer, self.context)


CASES = [
    Case("fsdp: data 2", {"data": 2}),
    Case("fsdp: data 2, zero 1, 2 micro-batches", {"data": 2}, ZERO_1, micro_batch=2),
    Case("fsdp: data 2, zero 2, 2 micro-batches", {"data": 2}, ZERO_2, micro_batch=2),
    Case("fsdp: data 2, zero 3", {"data": 2}, ZERO_3),
    Case("fsdp: data 2, zero 3, recompute", {"data": 2}, {**ZERO_3, "recompute": "full"}),
    Case("fsdp: data 2, zero 3, bf16", {"data": 2}, {**ZERO_3, "precision": "bf16"}),
    Case("fsdp: data 2, zero 3, gpt2", {"data": 2}, ZERO_3, "gpt2"),
    Case("fsdp: data 2, zero 3, tied", {"data": 2}, ZERO_3, "tied"),
    Case("fsdp: data 2, zero 3, lion", {"data": 2}, ZERO_3, optimizer="lion"),
    Case("fsdp: tensor 2", {"tensor": 2}),
    Case("fsdp: tensor 2, sgd", {"tensor": 2}, optimizer="sgd"),
    Case("fsdp: data 4 in shards of 2, zero 3, 2 micro-batches", {"data": 4}, ZERO_3, micro_batch=1),
    Case("fsdp: data 2, tensor 2, zero 3", {"data": 2, "tensor": 2}, ZERO_3),
    Case("fsdp: data 2, zero 3, all state on the host", {"data": 2}, {**ZERO_3, "state": {"offload": "all"}}),
    Case("fsdp: data 2, all state on the host, bf16", {"data": 2}, {"precision": "bf16", "state": {"offload": "all"}}),
    Case("fsdp: data 2, zero 3, loss in chunks", {"data": 2}, {**ZERO_3, **CHUNKED}, micro_batch=2),
    Case("fsdp: data 2, loss in chunks, tied", {"data": 2}, CHUNKED, "tied"),
    Case("fsdp: tensor 2, loss in chunks, recompute", {"tensor": 2}, {**CHUNKED, "recompute": "full"}),
    Case("fsdp: data 2, zero 3, loss in chunks, gpt2, eager", {"data": 2}, {**ZERO_3, **CHUNKED}, "gpt2", attention="eager"),
    Case("fsdp: data 2, zero 3, bf16 weights", {"data": 2}, {**ZERO_3, **BF16_WEIGHTS}),
    Case("fsdp: data 2, bf16 weights and all on the host", {"data": 2}, BF16_ON_HOST),
    Case("torchtitan: data 2", {"data": 2}),
    Case("torchtitan: data 2, zero 2, 2 micro-batches", {"data": 2}, ZERO_2, micro_batch=2),
    Case("torchtitan: data 2, zero 3", {"data": 2}, ZERO_3),
    Case("torchtitan: data 2, zero 3, recompute", {"data": 2}, {**ZERO_3, "recompute": "full"}),
    Case("torchtitan: data 2, zero 3, bf16", {"data": 2}, {**ZERO_3, "precision": "bf16"}),
    Case("torchtitan: data 2, zero 3, tied", {"data": 2}, ZERO_3, "tied"),
    Case("torchtitan: tensor 2", {"tensor": 2}),
    Case("torchtitan: tensor 2, sequence", {"tensor": 2}, {"sequence": True}),
    Case("torchtitan: data 2, tensor 2, zero 3", {"data": 2, "tensor": 2}, ZERO_3),
    Case("torchtitan: pipeline 2", {"pipeline": 2}, micro_batch=2),
    Case("torchtitan: pipeline 2, gpipe", {"pipeline": 2}, {"schedule": "gpipe"}, micro_batch=2),
    Case("torchtitan: pipeline 2, zero bubble", {"pipeline": 2}, {"schedule": "zero_bubble"}, micro_batch=2),
    Case("torchtitan: pipeline 2, interleaved", {"pipeline": 2}, INTERLEAVED, "deep", micro_batch=2),
    # It splits sequences into blocks of 128 tokens.
    Case("torchtitan: context 2", {"context": 2}, context=256),
    Case("torchtitan: context 2, zero 2", {"context": 2}, ZERO_2, context=256),
    Case("torchtitan: data 4 in shards of 2, zero 3", {"data": 4}, ZERO_3),
    Case("torchtitan: data 2, pipeline 2, zero 3", {"data": 2, "pipeline": 2}, ZERO_3, micro_batch=2),
    Case("torchtitan: data 2, pipeline 2, zero 2, zero bubble", {"data": 2, "pipeline": 2}, SPLIT_2, micro_batch=2),
]
# Trainings of which a rank is killed, or that are stopped, and the layout in which they continue.
RESTARTED = [
    (signal.SIGKILL, Case("fsdp", {"data": 2}, ZERO_3, save_every=4), {"data": 2}),
    (signal.SIGTERM, Case("fsdp", {"data": 2}, ZERO_3, save_every=4), {"data": 2}),
    (signal.SIGKILL, Case("fsdp", {"data": 2}, ZERO_3, save_every=4), {"tensor": 2}),
    (signal.SIGTERM, Case("fsdp gpt2", {"data": 2}, {**ZERO_3, "recompute": "full"}, "gpt2", save_every=4), {"data": 2}),
    (signal.SIGKILL, Case("torchtitan", {"data": 2}, ZERO_3, save_every=4), {"data": 2}),
    (signal.SIGTERM, Case("torchtitan", {"data": 2}, ZERO_3, save_every=4), {"data": 2}),
    (signal.SIGKILL, Case("torchtitan", {"data": 2}, ZERO_3, save_every=4), {"tensor": 2}),
]
# Trainings that an engine refuses, with words of the last line of every rank.
REFUSED = {
    "cannot split along the axis `pipeline`": Case("fsdp refuses: pipeline 2", {"pipeline": 2}),
    "cannot split a model of type `gpt2`": Case("fsdp refuses: tensor 2, gpt2", {"tensor": 2}, family="gpt2"),
    "has no optimizer `lamb`": Case("fsdp refuses: lamb", {"data": 2}, optimizer="lamb"),
    "has no train.state.offload = 'optimizer'": Case(
        "fsdp refuses: optimizer on the host", {"data": 2}, {"state": {"offload": "optimizer"}}
    ),
    "has weights in bf16 for products in bf16 only": Case(
        "fsdp refuses: bf16 weights, f32", {"data": 2}, {**BF16_WEIGHTS, "precision": "f32"}
    ),
    "has no attention `flash`": Case("fsdp refuses: flash", {"data": 2}, attention="flash"),
    "NotImplementedError: Q_LEN 64": Case("torchtitan refuses: context 2 of 64 tokens", {"context": 2}),
}


def llama(is_tied: bool = False, layers: int = 2) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST_CONTEXT,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=is_tied,
        bos_token_id=None,
        eos_token_id=None,
    )


def gpt2() -> GPT2Config:
    return GPT2Config(
        vocab_size=VOCAB,
        n_embd=64,
        n_inner=256,
        n_layer=2,
        n_head=4,
        n_positions=LONGEST_CONTEXT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def prepare(root: Path) -> None:
    """Writes the initial models, and two files of tokens: of 2 bytes behind a header, and of 1 byte."""
    models = {"llama": llama(), "tied": llama(is_tied=True), "deep": llama(layers=4), "gpt2": gpt2()}
    for family, config in models.items():
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / family)
    random = np.random.default_rng(1)
    tokens = (np.cumsum(random.integers(0, 3, 24_000)) + random.integers(0, 2, 24_000)) % VOCAB
    (root / "a.bin").write_bytes(b"head" + tokens[:4000].astype("<u2").tobytes())
    (root / "b.bin").write_bytes(tokens[4000:].astype("u1").tobytes())


def job(root: Path, case: Case, rank: int, checkpoints: Path) -> dict:
    """The job of a rank, as dtrain writes it."""
    degrees = {**ALONE, **case.layout}
    share = BATCH // degrees["data"]
    reader = rank // (degrees["tensor"] * degrees["context"]) % degrees["data"]
    micro_batch = case.micro_batch or share
    segments = [
        {"path": str(root / "a.bin"), "begin": 4, "tokens": 4000, "width": 2},
        {"path": str(root / "b.bin"), "begin": 0, "tokens": 20_000, "width": 1},
    ]
    arrangement = {"zero": "0", "shard": 1, "sequence": False, "recompute": "none", "precision": "f32", "device": "cpu"}
    arrangement |= {"schedule": "1f1b", "chunks": 1}
    training = {
        "batch": BATCH,
        "share": {"start": reader * share, "end": (reader + 1) * share},
        "micro_batch": micro_batch,
        "micro_batches": share // micro_batch,
        "optimizer": {
            "kind": case.optimizer,
            "beta1": 0.9,
            "beta2": 0.95,
            "epsilon": 1e-8,
            "weight_decay": 0.1,
        },
        # A step of Lion is as long as its rate, whatever the gradient.
        "learning_rate": 1e-3 if case.optimizer == "lion" else 1e-2,
        "warmup_steps": 2,
        "schedule_steps": STEPS,
        "schedule": "cosine",
        "final_fraction": 0.1,
        "clip": 1.0,
        "z_loss": 0.0,
        "seed": 7,
        **({"attention": case.attention} if case.attention else {}),
    }
    return {
        "assignment": {
            "attempt": 1,
            "rank": rank,
            "placement": {"host": 0},
            "model": {"kind": "decoder", "context": case.context, "vocab": VOCAB, "tied": case.family == "tied"},
            "arrangement": {"layout": degrees, **arrangement, **case.arrangement},
            "training": training,
            "until": {"steps": STEPS},
            "waits": {"silence_seconds": 60.0, "idle_seconds": 1200.0, "step_seconds": None},
            "validate_every": 5,
            "validate_samples": VALID_SAMPLES,
            "save_every": case.save_every,
        },
        # Fewer samples than the steps take, so that epochs change.
        "train": {"segments": segments, "first": 0, "samples": 70},
        "valid": {"segments": segments, "first": 18_000, "samples": 8},
        "initial": str(root / case.family),
        "keep": 2,
        "checkpoints": str(checkpoints),
    }


def plain(job: Job) -> dict[int, dict[str, float]]:
    """The figures of each step by a plain loop on one process, which takes whole batches."""
    training, rule = job.training, job.training["optimizer"]
    model = AutoModelForCausalLM.from_pretrained(job.initial, dtype=torch.float32)
    params = list(model.parameters())
    decays = [rule["weight_decay"] if param.dim() > 1 else 0.0 for param in params]
    moments = [(torch.zeros_like(param), torch.zeros_like(param)) for param in params]
    reader, schedule = StepReader(job), Schedule.of(training)
    valid = Samples(job.valid, job.context)

    def loss_of(inputs: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        logits = model(input_ids=torch.from_numpy(inputs)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())

    events = {}
    for step in range(job.steps):
        (batch,) = reader.micro_batches(step)
        loss = loss_of(*batch)
        gradients = torch.autograd.grad(loss, params)
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients)).item()
        scale, rate = min(1.0, training["clip"] / norm), schedule.rate(step)
        b1, b2 = rule["beta1"], rule["beta2"]
        with torch.no_grad():
            for param, gradient, decay, (m, v) in zip(params, gradients, decays, moments):
                gradient = gradient * scale
                if rule["kind"] == "adamw":
                    m.mul_(b1).add_(gradient * (1 - b1))
                    v.mul_(b2).add_(gradient * gradient * (1 - b2))
                    root = (v / (1 - b2 ** (step + 1))).sqrt()
                    direction = m / (1 - b1 ** (step + 1)) / (root + rule["epsilon"])
                elif rule["kind"] == "lion":
                    direction = (m * b1 + gradient * (1 - b1)).sign()
                    m.mul_(b2).add_(gradient * (1 - b2))
                else:
                    direction = m.mul_(b1).add_(gradient)
                param.mul_(1 - rate * decay).sub_(direction * rate)
        figures = {"loss": loss.item(), "gradient_norm": norm, "learning_rate": rate, "tokens": job.tokens_per_step}
        if job.validates_after(step + 1):
            with torch.no_grad():
                figures["valid_loss"] = loss_of(*valid.read(np.arange(job.valid_samples))).item()
        events[step + 1] = figures
    return events


class Ranks:
    """The processes of a training, with the variables that dtrain sets, and what they report."""

    def __init__(self, root: Path, folder: Path, case: Case):
        world = math.prod({**ALONE, **case.layout}.values())
        self.events_files = [folder / f"events-{rank}" for rank in range(world)]
        self.logs = [folder / f"log-{rank}" for rank in range(world)]
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.processes = []
        for rank in range(world):
            job_file = folder / f"job-{rank}.json"
            job_file.write_text(json.dumps(job(root, case, rank, folder / "checkpoints")))
            with open(self.events_files[rank], "a") as events, open(self.logs[rank], "a") as log:
                variables = {
                    "RANK": rank,
                    "WORLD_SIZE": world,
                    "LOCAL_RANK": rank,
                    "LOCAL_WORLD_SIZE": world,
                    "GROUP_RANK": 0,
                    "NODE_RANK": 0,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "TORCHELASTIC_USE_AGENT_STORE": "False",
                    "OMP_NUM_THREADS": 1,
                    "PYTHONUNBUFFERED": 1,
                    "PYTHONPATH": f"{PACKAGES}{os.pathsep}{HERE}",
                    "DTRAIN_TRIAL": "01TEST",
                    "DTRAIN_RUN_DIR": folder,
                    "DTRAIN_ENGINE_JOB": job_file,
                    "DTRAIN_EVENTS_FD": events.fileno(),
                }
                process = subprocess.Popen(
                    [sys.executable, *case.program],
                    env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                    cwd=folder,
                    pass_fds=[events.fileno()],
                    stdout=log,
                    stderr=log,
                )
            self.processes.append(process)

    def lines(self) -> list[dict[str, float]]:
        """All reports so far. A training has one rank that reports."""
        return [json.loads(line) for file in self.events_files for line in file.read_text().splitlines()]

    def events(self) -> dict[int, dict[str, float]]:
        """The reported figures of each step; of a figure that is reported twice, the later one."""
        found: dict[int, dict[str, float]] = {}
        for line in self.lines():
            found.setdefault(int(line["step"]), {}).update(line)
        return found

    def wait(self) -> list[int]:
        """The exit codes. A rank that takes too long is killed."""
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
        return "\n".join(f"{log}:\n{log.read_text()[-3000:]}" for log in self.logs)


class Comparison:
    """The cases that ran, in a folder, and whether all of them hold."""

    def __init__(self, words: list[str]):
        self.words = words
        self.root = Path(tempfile.mkdtemp(prefix="engines-"))
        self.holds = True
        self.references: dict[str, dict[int, dict[str, float]]] = {}
        prepare(self.root)

    def is_selected(self, name: str) -> bool:
        return not self.words or any(word in name for word in self.words)

    def folder(self, name: str) -> Path:
        folder = self.root / "".join(letter if letter.isalnum() else "-" for letter in name)
        folder.mkdir()
        return folder

    def reference(self, case: Case) -> dict[int, dict[str, float]]:
        """The figures by the plain loop."""
        key = str(case.reference)
        if key not in self.references:
            file = self.root / "plain.json"
            file.write_text(json.dumps(job(self.root, case.reference, 0, self.root)))
            self.references[key] = plain(Job.read(file))
            losses = " ".join(f"{event['loss']:.5f}" for event in self.references[key].values())
            print(f"     {losses} plain: {case.family}, {case.optimizer}, context {case.context}", flush=True)
        return self.references[key]

    def tell(self, holds: bool, words: str, details: str = "") -> None:
        self.holds &= holds
        print(f"{'ok  ' if holds else 'FAIL'} {words}", flush=True)
        if not holds:
            print(details, flush=True)

    def compare(self, case: Case, name: str, ranks: Ranks, codes: list[int]) -> None:
        """Compares the reported figures with the reference, step by step."""
        wanted, found = self.reference(case), ranks.events()
        tolerances = TOLERANCES[case.arrangement.get("precision", "f32")]
        differences = {figure: [] for figure in tolerances}
        for step, figures in wanted.items():
            for figure, value in figures.items():
                own = found.get(step, {}).get(figure, math.inf)
                differences[figure].append(abs(own - value))
        largest = {figure: max(values) for figure, values in differences.items()}
        holds = not any(codes) and all(largest[figure] <= limit for figure, limit in tolerances.items())
        words = ", ".join(f"{figure} {largest[figure]:.1e}" for figure in ("loss", "valid_loss", "gradient_norm"))
        losses = " ".join(f"{figures.get('loss', math.nan):.5f}" for figures in found.values())
        print(f"     {losses}", flush=True)
        self.tell(holds, f"{name}: {words}", f"exit codes {codes}, {largest}\n{ranks.last_words()}")

    def train(self, case: Case) -> None:
        begin = time.monotonic()
        ranks = Ranks(self.root, self.folder(case.name), case)
        codes = ranks.wait()
        self.compare(case, f"{case.name} ({time.monotonic() - begin:.0f} s)", ranks, codes)

    def refuse(self, case: Case, words: str) -> None:
        ranks = Ranks(self.root, self.folder(case.name), case)
        codes = ranks.wait()
        lines = [log.read_text().splitlines()[-1] for log in ranks.logs]
        # What `fsdp` cannot run is found before it starts; torchtitan fails in its first step.
        code = last_words.REFUSED if case.name.startswith("fsdp") else 1
        holds = codes == [code, code] and all(words in line for line in lines)
        self.tell(holds, f"{case.name}: {lines[0]}", ranks.last_words())

    def restart(self, call: signal.Signals, case: Case, layout: dict[str, int]) -> None:
        """Kills one rank, or stops all, after step 5, and starts all again, perhaps in another layout."""
        name = f"{case.name}: {call.name} after step 5, and started again with {layout}"
        if not self.is_selected(name):
            return
        folder = self.folder(name)
        ranks = Ranks(self.root, folder, case)
        ranks.wait_for_step(5)
        if call == signal.SIGKILL:
            ranks.processes[1].send_signal(call)
            ranks.kill()
            first = case.save_every + 1
        else:
            for process in ranks.processes:
                process.send_signal(call)
            self.tell(set(ranks.wait()) == {last_words.STOPPED}, f"{name}: exit codes", ranks.last_words())
            first = max(ranks.events()) + 1
        before = len(ranks.lines())
        if layout != case.layout:
            case = replace(case, layout=layout, arrangement={})
        ranks = Ranks(self.root, folder, case)
        codes = ranks.wait()
        resumed = int(ranks.lines()[before]["step"])
        self.tell(resumed == first, f"{name}: step {resumed} is the first again, step {first} was wanted")
        kept = sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())
        newest = sorted({4, 8, STEPS, first - 1})[-2:]
        self.tell(kept == newest, f"{name}: checkpoints of steps {kept} are kept, {newest} were wanted")
        self.compare(case, name, ranks, codes)


def main() -> None:
    torch.set_num_threads(1)
    comparison = Comparison(sys.argv[1:])
    for case in CASES:
        if comparison.is_selected(case.name):
            comparison.train(case)
    for words, case in REFUSED.items():
        if comparison.is_selected(case.name):
            comparison.refuse(case, words)
    for call, case, layout in RESTARTED:
        comparison.restart(call, case, layout)
    raise SystemExit(0 if comparison.holds else 1)


if __name__ == "__main__":
    main()
