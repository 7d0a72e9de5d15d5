"""The learning rate: a linear warm-up, then a decay, as in protocol/src/learning_rate_warmup_and_decay.rs."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a training that ends after a number of steps."""

    kind: str
    peak: float
    final_fraction: float
    warmup: int
    total: int

    @classmethod
    def of(cls, training: dict[str, Any]) -> "Schedule":
        """The schedule of a training with these hyperparameters."""
        return cls(
            kind=training["schedule"],
            peak=training["learning_rate"],
            final_fraction=training["final_fraction"],
            warmup=training["warmup_steps"],
            total=training["schedule_steps"],
        )

    def factor(self, step: int) -> float:
        """The share of the peak at `step`, which counts from 0.

        It rises from `1 / warmup` to 1 at step `warmup - 1`, then falls to `final_fraction` at step `total - 1`.
        """
        if step + 1 <= self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        span = max(self.total - self.warmup - 1, 1)
        fallen = min(max(step - self.warmup, 0) / span, 1.0)
        if self.kind == "linear":
            shape = 1.0 - fallen
        elif self.kind == "cosine":
            shape = 0.5 * (1.0 + math.cos(math.pi * fallen))
        else:
            raise ValueError(f"`{self.kind}` is not a schedule")
        return self.final_fraction + (1.0 - self.final_fraction) * shape

    def rate(self, step: int) -> float:
        """The learning rate of `step`, which counts from 0."""
        return self.peak * self.factor(step)
