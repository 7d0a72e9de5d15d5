"""Parts for torchtitan 0.3: tokens, order, learning rate, reports and checkpoints as dtrain plans them.

A module that dtrain emits builds its `Trainer.Config` of these parts. What they need to know is in the job of the rank,
`JOB`, so their configurations have few fields.
"""

import atexit
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import dtrain
import torch
import torch.distributed as dist
import torchtitan.trainer
from torchtitan.components import dataloader, metrics, optimizer, tokenizer, validate
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.metrics import _get_metrics_rank
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

from . import last_words
from .job import JobError
from .schedule import Schedule
from .titan_checkpoint import CheckpointManager
from .titan_job import JOB
from .tokens import StepReader, validation_batches

INITIAL = str(JOB.initial)
DUMP_FOLDER = os.path.join(os.environ.get("DTRAIN_RUN_DIR", "."), "torchtitan")

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class NoTokenizer(tokenizer.BaseTokenizer):
    """Stands for a tokenizer, as torchtitan wants one: the tokens of a job are prepared."""

    @dataclass(kw_only=True, slots=True)
    class Config(tokenizer.BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any):
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError("the tokens of a job are prepared")

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError("the tokens of a job are prepared")

    def get_vocab_size(self) -> int:
        return JOB.assignment["model"]["vocab"]


class DataLoader(dataloader.BaseDataLoader):
    """The samples of the job: of training, endless and in dtrain's order, or of one validation."""

    @dataclass(kw_only=True, slots=True)
    class Config(dataloader.BaseDataLoader.Config):
        dataset: str = "train"
        """`train` or `valid`."""

        infinite: bool = True
        """Set by torchtitan's validator; a validation ends all the same."""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any):
        if (dp_world_size, dp_rank) != (JOB.readers, JOB.reader):
            raise JobError(
                f"torchtitan reads as {dp_rank} of {dp_world_size} ranks, dtrain planned {JOB.reader} of {JOB.readers}"
            )
        if config.dataset == "train" and local_batch_size != JOB.micro_batch:
            raise JobError(
                f"torchtitan takes {local_batch_size} samples per forward pass, dtrain planned {JOB.micro_batch}"
            )
        self._is_training = config.dataset == "train"
        self._batch_size = local_batch_size
        self._micro_batches = len(JOB.share) // JOB.micro_batch
        self._taken = 0

    def __iter__(self) -> Iterator[Batch]:
        return self._training() if self._is_training else self._validation()

    def _training(self) -> Iterator[Batch]:
        reader = StepReader(JOB)
        while True:
            for inputs, targets in reader.micro_batches(self._taken // self._micro_batches):
                self._taken += 1
                yield _batch(inputs, targets)

    def _validation(self) -> Iterator[Batch]:
        # A pipeline takes all micro-batches of a step at once.
        multiple = self._micro_batches if JOB.degree("pipeline") > 1 else 1
        for inputs, targets, counted in validation_batches(JOB, self._batch_size, multiple):
            batch = _batch(inputs, targets)
            batch[1][counted:] = IGNORE_INDEX
            yield batch

    def state_dict(self) -> dict[str, Any]:
        # Steps, not batches: another layout may have other micro-batches.
        return {"steps": self._taken // self._micro_batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._taken = state_dict["steps"] * self._micro_batches


def _batch(inputs: Any, targets: Any) -> Batch:
    """A batch as torchtitan wants it. A position of 0 begins a document, so attention spans each sample."""
    positions = torch.arange(inputs.shape[1]).expand(inputs.shape)
    return {"input": torch.from_numpy(inputs), "positions": positions}, torch.from_numpy(targets)


class LearningRate(optimizer.LRSchedulersContainer):
    """The learning rate of the job."""

    @dataclass(kw_only=True, slots=True)
    class Config(optimizer.LRSchedulersContainer.Config):
        def build(self, *, optimizers: Any, training_steps: int) -> "LearningRate":
            return LearningRate(optimizers, Schedule.of(JOB.training).factor)


class Metrics(metrics.MetricsProcessor):
    """Reports every step and every validation to dtrain, from the rank that knows the loss."""

    @dataclass(kw_only=True, slots=True)
    class Config(metrics.MetricsProcessor.Config):
        log_freq: int = 1
        disable_color_printing: bool = True

    def __init__(self, config: Config, *, parallel_dims: Any, pp_schedule: str = "1F1B", **kwargs: Any):
        super().__init__(config, parallel_dims=parallel_dims, pp_schedule=pp_schedule, **kwargs)
        rank = _get_metrics_rank(parallel_dims=parallel_dims, pp_schedule=pp_schedule)
        self.knows_the_loss = dist.get_rank() == rank
        self.step_begin = time.perf_counter()

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        memory = self.device_memory_monitor.get_peak_stats().max_reserved_gib
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics)
        if not self.knows_the_loss:
            return
        rates = [value for name, value in (extra_metrics or {}).items() if name.startswith("lr/")]
        dtrain.report(
            step=step,
            loss=global_avg_loss,
            gradient_norm=grad_norm,
            learning_rate=max(rates),
            tokens=JOB.tokens_per_step,
            seconds=time.perf_counter() - self.step_begin,
            memory_gib=memory,
        )

    def log_validation(self, loss: float, step: int, extra_metrics: dict[str, Any] | None = None) -> None:
        super().log_validation(loss, step, extra_metrics)
        if self.knows_the_loss:
            dtrain.report(step=step, valid_loss=loss)


class Validator(validate.Validator):
    """Validates when the job says so, on its validation samples."""

    @dataclass(kw_only=True, slots=True)
    class Config(validate.Validator.Config):
        enable: bool = JOB.valid_samples > 0
        dataloader: DataLoader.Config = field(default_factory=lambda: DataLoader.Config(dataset="valid"))

    def should_validate(self, step: int) -> bool:
        return JOB.validates_after(step)


def check_gradients(parts: list[torch.nn.Module]) -> None:
    """Refuses to go on where a backward pass left weights without gradients: they would not be trained."""
    params = (pair for part in parts for pair in part.named_parameters())
    names = [name for name, param in params if param.requires_grad and param.grad is None]
    if names:
        raise JobError(f"torchtitan computed no gradient of {', '.join(names[:3])} in this layout: choose another")


class Trainer(torchtitan.trainer.Trainer):
    """torchtitan's trainer, which ends after the current step, with a checkpoint, when dtrain asks it to."""

    @dataclass(kw_only=True, slots=True)
    class Config(torchtitan.trainer.Trainer.Config):
        pass

    def __init__(self, config: Config):
        dtrain.should_prune()  # from here on, SIGTERM is heeded after the step
        super().__init__(config)
        self.checkpointer.reports = self.metrics_processor.knows_the_loss

    def train_step(self, data_iterator: Iterator[Batch]) -> None:
        self.metrics_processor.step_begin = time.perf_counter()
        super().train_step(data_iterator)
        check_gradients(self.model_parts)
        asked = torch.tensor(float(dtrain.should_prune()), device=self.device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        if asked.item() and self.step < JOB.steps:
            self.config.training.steps = self.step
            # torchtitan ends as after its last step; dtrain must see that steps are missing.
            atexit.register(os._exit, last_words.STOPPED)


def configured(emitted: torchtitan.trainer.Trainer.Config) -> Trainer.Config:
    """The configuration that dtrain emitted, with the tokens, reports and checkpoints of the job."""
    given = {one.name: getattr(emitted, one.name) for one in fields(emitted)}
    given |= {
        "model_spec": replace(emitted.model_spec, state_dict_adapter=Llama3StateDictAdapter),
        "hf_assets_path": INITIAL,
        "dump_folder": DUMP_FOLDER,
        "tokenizer": NoTokenizer.Config(),
        "dataloader": DataLoader.Config(),
        "metrics": Metrics.Config(),
        "validator": Validator.Config(),
        "lr_scheduler": LearningRate.Config(),
        "checkpoint": CheckpointManager.Config(),
        # A checkpoint may take longer than the 100 seconds of torchtitan.
        "comm": replace(emitted.comm, init_timeout_seconds=1200, train_timeout_seconds=1200),
        "training": replace(
            emitted.training,
            steps=JOB.steps,
            # Graphs are CUDA's.
            disable_cuda_graphs=emitted.training.disable_cuda_graphs or JOB.arrangement["device"] == "cpu",
        ),
    }
    return Trainer.Config(**given)
