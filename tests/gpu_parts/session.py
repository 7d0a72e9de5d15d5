"""What a part of `tests/gpu` can ask for: commands with its limit, the examination of the device, a training. What it found is kept."""

import json
import os
import shutil
import time
from pathlib import Path

from . import processes

FORMAT = "dtrain.device/2"


class Skip(Exception):
    """The part cannot be done here, and why."""


class Hung(Exception):
    """A command was not done within the limit."""


class Part:
    """What one part found, while it is at it."""

    def __init__(self, session, name, limit):
        self.session, self.name, self.until = session, name, time.monotonic() + limit
        self.log = session.output / f"{name}.log"
        # Which command was not done within the limit; nothing is run after it.
        self.hung = None
        # Sentences for the page, a list for each kind; tables as (title, columns, rows); and everything that JSON should keep.
        self.held, self.differs, self.failed = [], [], []
        self.tables, self.documents = [], {}

    # ------------------------------------------------------------------------------------------------------------- commands

    def run(self, command, environment=None, limit=None):
        """Runs a command within what is left of the limit. It raises `Hung` where that is over."""
        if self.hung:
            raise Hung(self.hung)
        left = self.until - time.monotonic()
        ended = processes.run(
            command, min(left, limit or left), self.session.work, self.log, self.session.environment(self.name) | (environment or {})
        )
        if ended.is_late:
            self.hung = ended.words()
            raise Hung(self.hung)
        return ended

    def doctor(self, only, *more, device=None, tool=(), label=None, environment=None):
        """What `dtrain doctor --device … --only …` found, and until it hung; `None` where that is nothing."""
        label = label or only
        file = self.session.work / f"{self.name}-{len(self.documents)}.json"
        index = 0 if device == "cpu" else self.session.index
        command = [*tool, self.session.program, "doctor", "--json", "--device", device or self.session.device, "--index", str(index)]
        command += ["--output", str(file), "--only", only, *more]
        try:
            ended = self.run(command, environment)
        except Hung:
            return self.keep(label, file)
        found = self.keep(label, file)
        if found is None:
            self.failed.append(f"{label}: {message(ended.stdout) or ended.words()}")
            return None
        for fault in found["faults"]:
            self.failed.append(f"{fault['part']}: {fault['reason']}")
        if found.get("failure"):
            self.failed.append(f"{label}: {found['failure']}")
        elif ended.code not in (0, 4):
            self.failed.append(f"{label}: {ended.words()}")
        return found

    def keep(self, label, file):
        """Reads what the examination wrote; `None` where that is nothing."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return None
        self.documents[label] = found
        return found if found.get("format") == FORMAT else None

    def train(self, label, settings, environment=None):
        """Losses by step of `dtrain run` of a tiny decoder; `None` where it failed."""
        recipe = self.session.recipe()
        command = [self.session.program, "run", str(recipe), "--json", "--quiet", "--no-sample"]
        # What a recipe calls GPUs of any maker.
        devices = {"wgpu": "gpu"}.get(self.session.device, self.session.device)
        for setting in [f'cluster.devices="{devices}"', *settings]:
            command += ["--set", setting]
        # Speeds that a plan would measure first are of no use here.
        ended = self.run(command, {"DTRAIN_CLUSTER__PROBE": "2 s"} | (environment or {}))
        losses = {}
        for line in ended.stdout.splitlines():
            step = told(line, "event", "event", "step")
            if isinstance(step, dict):
                losses[step["step"]] = step["loss"]
        self.documents[label] = {"settings": settings, "losses": losses}
        if ended.code != 0 or not losses:
            self.failed.append(f"{label}: {message(ended.stdout.splitlines()[-1] if ended.stdout else '') or ended.words()}")
            return None
        return losses

    # -------------------------------------------------------------------------------------------------------------- results

    def compare(self, label, found, wanted, tolerance):
        """Compares two series of losses by step. Returns the largest relative difference."""
        pairs = [(found.get(step), loss) for step, loss in wanted.items()]
        if not pairs or any(one is None for one, _ in pairs):
            self.differs.append(f"{label}: {len(found)} losses instead of {len(wanted)}")
            return None
        worst = max(relative(one, other) for one, other in pairs)
        words = f"{label}: losses of {len(pairs)} steps differ by {worst:.1e}, {tolerance:.0e} allowed"
        # What is no number is not within anything.
        (self.held if worst <= tolerance else self.differs).append(words)
        return worst

    def verdict(self):
        """One word."""
        if self.failed:
            return "failed"
        if self.differs:
            return "differs"
        return "held" if self.held or any(rows for _, _, rows in self.tables) else "skipped"


class Session:
    """Where things lie, and what is known of the device."""

    def __init__(self, arguments, program, output, work):
        self.device, self.index, self.program = arguments.device, arguments.index, program
        self.is_cuda = self.device == "cuda"
        self.output, self.work, self.kernels = output, work, arguments.kernels or output / "kernels"
        self.without_pytorch, self.tuning = arguments.without_pytorch, 0
        self.asked = arguments.only
        # As `dtrain doctor --device` told it first.
        self.found = {"name": None, "devices": 1, "precisions": ["f32", "bf16"] if self.is_cuda else ["f32"]}
        # Decoders whose speed was measured: (name, entry with decoder, parameters, batch, precision, tokens_per_second).
        self.speeds = []
        self.products = []

    def environment(self, part):
        return {
            "DTRAIN_STATE": str(self.work / "state"),
            "XDG_CONFIG_HOME": str(self.work / "config"),
            "DTRAIN_KERNEL_CACHE": str(self.kernels),
            "DTRAIN_TUNING_SECONDS": str(self.tuning),
            "NO_COLOR": "1",
            "TESTS_GPU_PART": part,
        }

    def recipe(self):
        """A tiny decoder on made-up text."""
        recipe = self.work / "recipe.toml"
        if not recipe.exists():
            words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
            lines = (" ".join(words[at * step % 10] for step in range(1, 9)) for at in range(4000))
            (self.work / "text.txt").write_text("\n".join(lines), encoding="utf-8")
            recipe.write_text(RECIPE, encoding="utf-8")
        return recipe

    def tool(self, name):
        """A tool of the CUDA toolkit, where it is."""
        places = [os.environ.get("CUDA_PATH", ""), "/usr/local/cuda", "/opt/cuda"]
        at = [str(Path(place) / "bin" / name) for place in places if place]
        return shutil.which(name) or next((path for path in at if os.access(path, os.X_OK)), None)


RECIPE = """name = "tests-gpu"

[model]
kind = "decoder"
family = "llama"
layers = 4
hidden = 64
heads = 4
context = 64

[data]
train = "text.txt"
valid = "10%"

[objective]
stop = { steps = 12 }

[train]
batch = 8
learning_rate = 3e-3
warmup = "5 steps"
precision = "f32"
seed = 5

[checkpoint]
every = 1000
"""


def for_cuda(part):
    if not part.session.is_cuda:
        raise Skip("it is for NVIDIA's GPUs")


def relative(found, wanted):
    """Relative difference; infinite where one is no number."""
    try:
        difference = abs(float(found) - float(wanted)) / max(abs(float(wanted)), 1e-9)
    except (TypeError, ValueError):
        return float("inf")
    return difference if difference == difference else float("inf")


def told(line, *path):
    """What a line of JSON says at a path of keys; `None` where it says nothing."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def message(text):
    """What an error of `--json` says; `None` where the text is no such error."""
    try:
        error = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(error, dict) or "message" not in error:
        return None
    return ": ".join([error["message"], *error.get("causes", [])])
