"""The checkpoints of torchtitan 0.3, in the folder of the job."""

import time
from dataclasses import dataclass
from typing import Any

import dtrain
from torchtitan.components import checkpoint

from .checkpoints import Checkpoints
from .titan_job import JOB


class CheckpointManager(checkpoint.CheckpointManager):
    """torchtitan's checkpoints in the folder of the job; at first the weights of the job's Hugging Face folder."""

    @dataclass(kw_only=True, slots=True)
    class Config(checkpoint.CheckpointManager.Config):
        enable: bool = True
        folder: str = str(JOB.checkpoints)
        interval: int = JOB.assignment["save_every"]
        keep_latest_k: int = 0  # those that are complete are counted by `Checkpoints`
        initial_load_path: str | None = str(JOB.initial)
        initial_load_in_hf: bool = True
        last_save_model_only: bool = False

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(config, **kwargs)
        self._checkpoints = Checkpoints(JOB, "torchtitan")
        self.reports = False  # set on the rank that reports to dtrain

    def _find_load_step(self, folder: str = "") -> int:
        newest = self._checkpoints.newest()
        return -1 if newest is None else newest

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if not self._should_save(curr_step, last_step):
            return False
        begin = time.perf_counter()
        # torchtitan names the folder as dtrain does.
        save = super()._save
        size = self._checkpoints.save(curr_step, lambda _: save(curr_step, last_step))
        if self.reports:
            dtrain.report(step=curr_step, checkpoint_bytes=size, checkpoint_seconds=time.perf_counter() - begin)
        return True
