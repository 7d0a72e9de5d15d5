"""Writes the weights of a checkpoint as a folder of Hugging Face transformers.

    python -m dtrain_engines.export JOB_FILE STEP_FOLDER TO_FOLDER

One process reads the whole model, on a CPU. All files of the checkpoint must be in STEP_FOLDER.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from . import last_words
from .job import Job, JobError
from .manifest import PARTIAL, Manifest

Weights = dict[str, torch.Tensor]

USAGE = "usage: python -m dtrain_engines.export JOB_FILE STEP_FOLDER TO_FOLDER"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
# What transformers reads beside the weights, where the initial folder has it.
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
)
# What torchtitan saves beside the weights, which it does not put into a part of their own.
NO_WEIGHTS = ("optimizer", "lr_scheduler", "dataloader", "train_state")


def export(job: Job, folder: Path, to: Path) -> None:
    """Writes the weights in `folder`, a checkpoint of the job, to a folder that transformers loads."""
    manifest = _complete(folder)
    if manifest.engine == "fsdp":
        weights = _of_transformers(job, _read(folder, manifest.engine))
    elif manifest.engine == "torchtitan":
        weights = _of_torchtitan(job, _read(folder, manifest.engine))
    else:
        raise JobError(f"{folder} is a checkpoint of the engine `{manifest.engine}`, which cannot be exported")
    try:
        to.mkdir(parents=True, exist_ok=True)
        _write_config(job.initial / CONFIG, to / CONFIG)
        for name in COPIED:
            if (job.initial / name).is_file():
                shutil.copyfile(job.initial / name, to / name)
        partial = to / (WEIGHTS + PARTIAL)
        try:
            save_file(weights, partial, metadata={"format": "pt"})
            partial.replace(to / WEIGHTS)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise JobError(f"the weights cannot be written to {to}: {error}") from error


def _complete(folder: Path) -> Manifest:
    """The manifest of a checkpoint of which every file is there and whole."""
    manifest = Manifest.read(folder)
    if manifest is None:
        raise JobError(f"{folder} has no manifest.json: it is no checkpoint, or not a complete one")
    present = manifest.present(folder)
    for names, lack in (
        (manifest.files.keys() - present, "is not in"),
        (present - manifest.intact(folder, present), "is damaged in"),
    ):
        if names:
            name = min(names)
            raise JobError(
                f"{name} of the checkpoint {lack} {folder}: copy it from host {manifest.files[name].host}, "
                "or from the next one"
            )
    return manifest


def _read(folder: Path, engine: str) -> Weights:
    """The weights of a checkpoint by the engine's names, without its optimizer."""
    reader = FileSystemReader(folder)
    keys = reader.read_metadata().state_dict_metadata
    if engine == "fsdp":
        wanted = {key for key in keys if key.startswith("model.")}
    else:
        wanted = {key for key in keys if key.split(".")[0] not in NO_WEIGHTS}
    state: dict[str, Any] = {}
    _load_state_dict(state, reader, no_dist=True, planner=_EmptyStateDictLoadPlanner(keys=wanted))
    return {
        name: value.to(torch.float32).contiguous()
        for name, value in (state["model"] if engine == "fsdp" else state).items()
        if isinstance(value, torch.Tensor)
    }


def _of_transformers(job: Job, weights: Weights) -> Weights:
    """The weights of `fsdp`, whose names are those of transformers, once each."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job.initial))
    # Of weights that are tied, the first name.
    first = {id(value): name for name, value in reversed(model.state_dict(keep_vars=True).items())}
    _check({name: value.shape for name, value in model.state_dict().items()}, weights)
    return {name: weights[name] for name in first.values()}


def _of_torchtitan(job: Job, weights: Weights) -> Weights:
    """The weights of torchtitan's Llama by the names of transformers, and in its order of rows."""
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

    model = job.assignment["model"]
    width = model.get("head_width") or model["hidden"] // model["heads"]
    attention = SimpleNamespace(n_heads=model["heads"], n_kv_heads=model["kv_heads"], head_dim=width)
    layers = [SimpleNamespace(attention=attention)] * model["layers"]
    config = SimpleNamespace(dim=model["hidden"], layers=layers, enable_weight_tying=model["tied"])
    adapter = Llama3StateDictAdapter(config, None)
    expected = {}
    for name, own in adapter.from_hf_map.items():
        for layer in range(model["layers"] if "{}" in name else 1):
            if own and not (model["tied"] and own == "lm_head.weight"):
                expected[name.format(layer)] = own.format(layer)
    lacking = set(expected.values()) - set(weights)
    if lacking:
        raise JobError(f"the checkpoint has no weights `{min(lacking)}` of a Llama model")
    found = adapter.to_hf(weights)
    return {name: found[name].contiguous() for name in expected}


def _check(shapes: dict[str, torch.Size], weights: Weights) -> None:
    """Refuses weights that are not those of the model."""
    for name in sorted(shapes.keys() | weights.keys()):
        if name not in weights:
            raise JobError(f"the checkpoint has no weights `{name}`, which the model has")
        if name not in shapes:
            raise JobError(f"the checkpoint has weights `{name}`, which the model does not have")
        if weights[name].shape != shapes[name]:
            raise JobError(f"the weights `{name}` have the shape {weights[name].shape}, not {shapes[name]}")


def _write_config(source: Path, to: Path) -> None:
    """Copies the configuration of the initial model. The weights are those of the training, of 32 bits."""
    config = json.loads(source.read_text(encoding="utf-8"))
    for key in ("torch_dtype", "dtype"):
        if key in config:
            config[key] = "float32"
    to.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    last_words.install()
    if len(sys.argv) != 4:
        raise JobError(USAGE)
    job_file, folder, to = (Path(argument) for argument in sys.argv[1:])
    if not job_file.is_file():
        raise JobError(f"there is no file {job_file} with the job of the checkpoint")
    export(Job.read(job_file), folder, to)


if __name__ == "__main__":
    main()
