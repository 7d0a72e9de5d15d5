"""Tests of the way from Hugging Face weights through an engine and back. They need torch, transformers, torchtitan."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if not all(importlib.util.find_spec(name) for name in ("torch", "torchtitan", "transformers")):
    raise unittest.SkipTest("torch, torchtitan and transformers are not installed")

import cluster
import numpy as np
import torch
from dtrain_engines import fsdp
from dtrain_engines.export import export
from dtrain_engines.job import Job, JobError
from dtrain_engines.tokens import Samples, StepReader
from safetensors import safe_open
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

SHIM = Path(__file__).resolve().parents[3] / "tests/data/engines"
VOCAB, HIDDEN, HEADS, KV_HEADS, FFN, CONTEXT, BATCH, STEPS, VALID_SAMPLES = 256, 64, 4, 2, 128, 64, 8, 3, 4
SAME = 1e-4
TITANS = ("llama", "tied")
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]


def initial_model(folder: Path, family: str) -> None:
    """A model of which no weight has a value that another initialization would give it."""
    if family == "gpt2":
        sizes = {"n_embd": HIDDEN, "n_inner": FFN, "n_layer": 2, "n_head": HEADS, "n_positions": CONTEXT}
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(vocab_size=VOCAB, bos_token_id=None, eos_token_id=None, **sizes, **dropout)
    else:
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=FFN,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=256,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=family == "tied",
            bos_token_id=None,
            eos_token_id=None,
        )
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.05)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def job(root: Path, folder: Path, family: str, layout: dict[str, int], rank: int) -> dict:
    segments = [{"path": str(root / "tokens"), "begin": 0, "tokens": 20_000, "width": 1}]
    share = BATCH // layout.get("data", 1)
    reader = rank // layout.get("tensor", 1)
    return {
        "assignment": {
            "attempt": 1,
            "placement": {"host": 0},
            "model": {
                "kind": "decoder",
                "layers": 2,
                "hidden": HIDDEN,
                "heads": HEADS,
                "kv_heads": KV_HEADS,
                "ffn": FFN,
                "vocab": VOCAB,
                "context": CONTEXT,
                "tied": family != "llama",
            },
            "arrangement": {
                "layout": {"tensor": 1, "context": 1, "expert": 1, "data": 1, "pipeline": 1, **layout},
                "chunks": 1,
                "schedule": "1f1b",
                "zero": "3" if "data" in layout else "0",
                "shard": layout.get("data", 1),
                "sequence": False,
                "recompute": "full" if "data" in layout else "none",
                "precision": "f32",
                "device": "cpu",
            },
            "training": {
                "batch": BATCH,
                "share": {"start": reader * share, "end": (reader + 1) * share},
                "micro_batch": share,
                "micro_batches": 1,
                "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
                "learning_rate": 1e-2,
                "warmup_steps": 1,
                "schedule_steps": STEPS,
                "schedule": "cosine",
                "final_fraction": 0.1,
                "clip": 1.0,
                "z_loss": 0.0,
                "seed": 7,
            },
            "until": {"steps": STEPS},
            "waits": {"idle_seconds": 60.0},
            "validate_every": STEPS,
            "validate_samples": VALID_SAMPLES,
            "save_every": 100,
        },
        "train": {"segments": segments, "first": 0, "samples": 100},
        "valid": {"segments": segments, "first": 18_000, "samples": VALID_SAMPLES},
        "initial": str(root / family),
        "keep": 2,
        "checkpoints": str(folder / "checkpoints"),
    }


def loss_of(model: torch.nn.Module, inputs: np.ndarray, targets: np.ndarray) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(inputs)).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten()).item()


class RoundTrips(unittest.TestCase):
    """Weights that go into an engine, are trained, and come out."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        random = np.random.default_rng(1)
        tokens = (np.cumsum(random.integers(0, 3, 20_000)) + random.integers(0, 2, 20_000)) % VOCAB
        (cls.root / "tokens").write_bytes(tokens.astype("u1").tobytes())
        for family in ("llama", "tied", "gpt2"):
            initial_model(cls.root / family, family)
        # They take longest, and run meanwhile.
        cls.torchtitan = {family: cls.start_torchtitan(cls.jobs(f"titan-{family}", family, {})) for family in TITANS}

    @classmethod
    def jobs(cls, name: str, family: str, layout: dict[str, int]) -> list[Path]:
        """The files with the jobs of all ranks, in a folder of their own."""
        folder = cls.root / name
        folder.mkdir()
        files = [folder / f"job-{rank}.json" for rank in range(max(layout.values(), default=1))]
        for rank, file in enumerate(files):
            file.write_text(json.dumps(job(cls.root, folder, family, layout, rank)))
        return files

    def train_with_fsdp(self, jobs: list[Path]) -> None:
        events = jobs[0].with_name("events")

        def train(rank: int, world: int, port: int) -> int:
            with open(events, "a") as file:
                os.environ.update(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(world),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    DTRAIN_ENGINE_JOB=str(jobs[rank]),
                    DTRAIN_EVENTS_FD=str(file.fileno()),
                )
                training = fsdp.Training(Job.read())
                training.run()
                return training.step

        self.assertEqual(cluster.run_processes(len(jobs), train), len(jobs) * [STEPS])

    @classmethod
    def start_torchtitan(cls, jobs: list[Path]) -> tuple[list[Path], subprocess.Popen]:
        """Starts a training on one rank."""
        folder = jobs[0].parent
        with open(folder / "events", "a") as events, open(folder / "log", "w") as log:
            variables = {
                "RANK": "0",
                "WORLD_SIZE": "1",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(cluster.free_port()),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join([str(cluster.PACKAGES), str(SHIM)]),
                "DTRAIN_RUN_DIR": str(folder),
                "DTRAIN_ENGINE_JOB": str(jobs[0]),
                "DTRAIN_EVENTS_FD": str(events.fileno()),
            }
            process = subprocess.Popen(
                [sys.executable, str(SHIM / "cpu_shim.py"), "--module", "sample_config", "--config", "train"],
                env={**os.environ, **variables},
                cwd=folder,
                pass_fds=[events.fileno()],
                stdout=log,
                stderr=log,
            )
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.kill)
        return jobs, process

    def trained_by_torchtitan(self, family: str) -> list[Path]:
        jobs, process = self.torchtitan[family]
        self.assertEqual(process.wait(cluster.LIMIT_SECONDS), 0, jobs[0].with_name("log").read_text()[-3000:])
        return jobs

    def check(self, jobs: list[Path], family: str, by_command: bool = False) -> None:
        """Compares the losses of the first step and after the last one with those that transformers computes."""
        read = Job.read(jobs[0])
        events: dict[int, dict[str, float]] = {}
        for line in jobs[0].with_name("events").read_text().splitlines():
            record = json.loads(line)
            events.setdefault(record["step"], {}).update(record)
        batches = [batch for file in jobs for batch in StepReader(Job.read(file)).micro_batches(0)]
        inputs, targets = (np.concatenate(parts) for parts in zip(*batches))
        initial = AutoModelForCausalLM.from_pretrained(self.root / family)
        self.assertAlmostEqual(events[1]["loss"], loss_of(initial, inputs[:BATCH], targets[:BATCH]), delta=SAME)
        step_folder, to = read.checkpoints / f"step-{STEPS}", jobs[0].with_name("exported")
        manifest = cluster.manifest(step_folder)
        size = sum(file["bytes"] for file in manifest["files"].values())
        self.assertEqual(events[STEPS]["checkpoint_bytes"], size)
        self.assertGreater(events[STEPS]["checkpoint_seconds"], 0)
        if by_command:
            command = [sys.executable, "-m", "dtrain_engines.export", str(jobs[0]), str(step_folder), str(to)]
            environment = {**os.environ, "PYTHONPATH": str(cluster.PACKAGES)}
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        else:
            export(read, step_folder, to)
        exported, loading = AutoModelForCausalLM.from_pretrained(to, output_loading_info=True)
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(loading[problem], loading)
        valid = Samples(read.valid, CONTEXT).read(np.arange(VALID_SAMPLES))
        self.assertAlmostEqual(events[STEPS]["valid_loss"], loss_of(exported, *valid), delta=SAME)
        self.assertGreater(abs(loss_of(initial, *valid) - events[STEPS]["valid_loss"]), 0.05, "it did learn")
        self.assertEqual(sorted(file.name for file in to.iterdir()), FILES)
        old_file = self.root / family / "model.safetensors"
        with safe_open(to / "model.safetensors", "pt") as file, safe_open(old_file, "pt") as old:
            self.assertEqual(file.metadata(), {"format": "pt"})
            self.assertEqual(sorted(file.keys()), sorted(old.keys()))
            self.assertEqual({str(file.get_tensor(name).dtype) for name in file.keys()}, {"torch.float32"})

    def test_torchtitan_and_the_command(self):
        self.check(self.trained_by_torchtitan("llama"), "llama", by_command=True)

    def test_torchtitan_with_tied_embeddings(self):
        self.check(self.trained_by_torchtitan("tied"), "tied")

    def test_fsdp(self):
        for family, layout in (
            ("llama", {"data": 2}),
            ("tied", {"data": 2}),
            ("gpt2", {"data": 2}),
            ("llama", {"tensor": 2}),
        ):
            with self.subTest(family=family, layout=layout):
                jobs = self.jobs(f"fsdp-{family}-{len(layout)}-{next(iter(layout))}", family, layout)
                self.train_with_fsdp(jobs)
                self.check(jobs, family)

    def test_what_cannot_be_exported_is_told(self):
        (job_file,) = self.jobs("refused", "tied", {})
        self.train_with_fsdp([job_file])
        read, to = Job.read(job_file), job_file.with_name("exported")
        folder = read.checkpoints / f"step-{STEPS}"
        config = json.loads((read.initial / "config.json").read_text())

        def refused(words: str) -> None:
            with self.assertRaisesRegex(JobError, words):
                export(read, folder, to)
            self.assertFalse((to / "model.safetensors").exists())

        to.mkdir()
        (to / "config.json").mkdir()
        refused("the weights cannot be written to .*: .*Is a directory")
        (to / "config.json").rmdir()
        (read.initial / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
        refused("the checkpoint has no weights `model.layers.2.*`, which the model has")
        (read.initial / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
        refused("have the shape")
        (read.initial / "config.json").write_text(json.dumps(config))
        file = folder / "__0_0.distcp"
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        refused("__0_0.distcp of the checkpoint is damaged in")
        file.unlink()
        refused("__0_0.distcp of the checkpoint is not in .*: copy it from host 0")
        record = cluster.manifest(folder)
        (folder / "manifest.json").write_text(json.dumps({**record, "files": {}, "engine": "other"}))
        refused("of the engine `other`, which cannot be exported")
        (folder / "manifest.json").write_text("{")
        refused("has no manifest.json")


if __name__ == "__main__":
    unittest.main()
