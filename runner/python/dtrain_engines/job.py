"""The job of a rank: what to train, on which tokens, and where to keep checkpoints."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AXES = ("tensor", "context", "expert", "data", "pipeline")
# The state of an arrangement that says nothing about it, as in recipes/src/state.rs.
PLAIN_STATE = {"weights": "f32", "gradients": None, "moments": "f32", "offload": "none", "loss": "plain"}


class JobError(Exception):
    """The engine cannot run the job. The message says what it found and what it needs."""


@dataclass(frozen=True)
class Segment:
    """A run of `tokens` little-endian unsigned numbers of `width` bytes each, from byte `begin` of a file."""

    path: Path
    begin: int
    tokens: int
    width: int


@dataclass(frozen=True)
class TokenSet:
    """Samples of equal length, packed without gaps into the joined tokens of `segments` from token `first` on."""

    segments: tuple[Segment, ...]
    first: int
    samples: int

    @classmethod
    def of(cls, record: dict[str, Any]) -> "TokenSet":
        segments = tuple(Segment(Path(s["path"]), s["begin"], s["tokens"], s["width"]) for s in record["segments"])
        return cls(segments, record["first"], record["samples"])


@dataclass(frozen=True)
class Job:
    """A job as dtrain writes it. `assignment` is the record of protocol/src/assignment.rs, as JSON."""

    assignment: dict[str, Any]
    train: TokenSet
    valid: TokenSet
    initial: Path
    keep: int
    checkpoints: Path

    @classmethod
    def read(cls, path: str | os.PathLike | None = None) -> "Job":
        """Reads the job of this process, or the one at `path`."""
        path = path or os.environ.get("DTRAIN_ENGINE_JOB")
        if not path:
            raise JobError("DTRAIN_ENGINE_JOB is not set: dtrain starts this program, it does not run by itself")
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(
            assignment=record["assignment"],
            train=TokenSet.of(record["train"]),
            valid=TokenSet.of(record["valid"]),
            initial=Path(record["initial"]),
            keep=record["keep"],
            checkpoints=Path(record["checkpoints"]),
        )

    @property
    def training(self) -> dict[str, Any]:
        """The hyperparameters."""
        return self.assignment["training"]

    @property
    def arrangement(self) -> dict[str, Any]:
        """The arrangement of a step among the ranks."""
        return self.assignment["arrangement"]

    def state(self, key: str) -> str | None:
        """A setting of the training state: `weights`, `gradients`, `moments`, `offload` or `loss`."""
        return {**PLAIN_STATE, **self.arrangement.get("state", {})}[key]

    def degree(self, axis: str) -> int:
        """The degree of parallelism along an axis: one of `AXES`."""
        return self.arrangement["layout"][axis]

    @property
    def zero(self) -> int:
        """The ZeRO stage, 0 to 3."""
        return int(self.arrangement["zero"])

    @property
    def shard(self) -> int:
        """The number of neighbouring replicas that share one copy of the state; 1 without ZeRO."""
        return self.arrangement.get("shard", 1) if self.zero else 1

    @property
    def context(self) -> int:
        """Tokens per sample."""
        return self.assignment["model"]["context"]

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint that dtrain knows of; 0 if none was saved."""
        return (self.assignment.get("engine") or {}).get("saved_step", 0)

    @property
    def batch(self) -> int:
        """Samples per step, over all ranks."""
        return self.training["batch"]

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step, over all ranks."""
        return self.batch * self.context

    @property
    def share(self) -> range:
        """The part of each batch that this rank reads."""
        return range(self.training["share"]["start"], self.training["share"]["end"])

    @property
    def micro_batch(self) -> int:
        """Samples per forward pass of this rank."""
        return self.training["micro_batch"]

    @property
    def readers(self) -> int:
        """The number of ranks, or groups of ranks, that read different samples."""
        return self.batch // len(self.share)

    @property
    def reader(self) -> int:
        """The index of this rank among the readers."""
        return self.share.start // len(self.share)

    @property
    def steps(self) -> int:
        """The step after which training is complete."""
        until = self.assignment["until"]
        if until.get("steps") is None:
            raise JobError("the job has no number of steps: set objective.stop.steps")
        return until["steps"]

    @property
    def valid_samples(self) -> int:
        """Samples per validation."""
        return min(self.assignment["validate_samples"], self.valid.samples)

    def validates_after(self, step: int) -> bool:
        """Whether a validation follows `step`, which counts from 1."""
        return self.valid_samples > 0 and (step % self.assignment["validate_every"] == 0 or step == self.steps)

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint follows `step`, which counts from 1."""
        return step % self.assignment["save_every"] == 0 or step == self.steps
