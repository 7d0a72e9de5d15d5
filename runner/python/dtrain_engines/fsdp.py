"""Trains a causal decoder of transformers with PyTorch's FSDP2: `python -m dtrain_engines.fsdp`, once per rank."""

import math
import os
import sys
import time
from datetime import timedelta

import dtrain
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from . import chunked_loss, fsdp_model, last_words, optimizers
from .checkpoints import Checkpoints
from .job import Job, JobError
from .manifest import folder_of
from .schedule import Schedule
from .tokens import StepReader, validation_batches

# The state of the optimizer by names of parameters, so that another layout can load it.
STATE = StateDictOptions(flatten_optimizer_state_dict=True)


class Training:
    """A training on one rank: the model, its optimizer and the number of completed steps."""

    def __init__(self, job: Job):
        fsdp_model.check(job)
        self.job, self.step = job, 0
        self.device = torch.device("cpu")
        if job.arrangement["device"] == "cuda":
            if not torch.cuda.is_available():
                raise JobError("PyTorch finds no CUDA device on this host")
            # A rank may see its own GPU only.
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
            torch.set_float32_matmul_precision("high")
        dist.init_process_group(
            "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl",
            timeout=timedelta(seconds=job.assignment["waits"]["idle_seconds"]),
        )
        self.checkpoints = Checkpoints(job, "fsdp")
        torch.manual_seed(job.training["seed"])
        self.model = fsdp_model.build(job, self.device)
        self.optimizer = optimizers.build(self.model, job.training, on_host=job.state("offload") == "all")
        self.schedule = Schedule.of(job.training)
        self.reader = StepReader(job)

    def run(self) -> None:
        """Trains from the newest checkpoint to the last step, or until dtrain asks to stop."""
        newest = self.checkpoints.newest()
        if newest is not None:
            self.load(newest)
        while self.step < self.job.steps:
            self.train_step()
            is_to_stop = self.is_to_stop()
            if is_to_stop or self.job.saves_after(self.step):
                self.save()
            if is_to_stop:
                break
            if self.job.validates_after(self.step):
                self.validate()

    def train_step(self) -> None:
        """Takes one optimizer step, and reports it."""
        begin = time.perf_counter()
        self.model.train()
        batches = list(self.reader.micro_batches(self.step))
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            is_last = index == len(batches) - 1
            # From ZeRO 2 on, gradients are kept in shards; below, they are reduced once per step.
            self.model.set_requires_gradient_sync(is_last or self.job.zero >= 2)
            self.model.set_requires_all_reduce(is_last)
            loss = self.loss_sum(*batch) / self.job.tokens_per_step
            loss.backward()
            total += loss.detach()
        rate = self.schedule.rate(self.step)
        norm = optimizers.clip(self.model, self.job.training["clip"])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        figures = {"loss": self.sum_over_readers(total), "gradient_norm": norm, "learning_rate": rate}
        if self.device.type == "cuda":
            figures["memory_gib"] = torch.cuda.max_memory_reserved() / 2**30
        self.report(**figures, tokens=self.job.tokens_per_step, seconds=time.perf_counter() - begin)
        if not math.isfinite(figures["loss"]):
            raise FloatingPointError(f"the loss of step {self.step} is {figures['loss']}")

    @torch.no_grad()
    def validate(self) -> None:
        """Reports the mean loss over the validation samples."""
        self.model.eval()
        total = torch.zeros((), device=self.device)
        for inputs, targets, counted in validation_batches(self.job, self.job.micro_batch):
            targets[counted:] = chunked_loss.IGNORED
            total += self.loss_sum(inputs, targets)
        # Without a backward pass, weights would stay whole, and old after the next optimizer step.
        for module in fsdp_model.sharded_modules(self.model):
            module.reshard()
        self.report(valid_loss=self.sum_over_readers(total) / (self.job.valid_samples * self.job.context))

    def loss_sum(self, inputs: np.ndarray, targets: np.ndarray) -> torch.Tensor:
        """The sum of the cross-entropy over the tokens of a micro-batch."""
        tokens = (torch.from_numpy(part).to(self.device) for part in (inputs, targets))
        return chunked_loss.loss_sum(self.model, *tokens)

    def sum_over_readers(self, value: torch.Tensor) -> float:
        """The sum over all ranks that read different samples. Ranks that split the same matrices read the same."""
        dist.all_reduce(value)
        return value.item() / self.job.degree("tensor")

    def report(self, **figures: float) -> None:
        if dist.get_rank() == 0:
            dtrain.report(step=self.step, **figures)

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=STATE)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def save(self) -> None:
        """Saves a checkpoint of the completed step, and reports its size."""
        begin = time.perf_counter()
        state = self.state()
        size = self.checkpoints.save(self.step, lambda folder: dcp.save(state, checkpoint_id=folder))
        self.report(checkpoint_bytes=size, checkpoint_seconds=time.perf_counter() - begin)

    def load(self, step: int) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=folder_of(self.job.checkpoints, step))
        parts = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **parts, options=STATE)
        self.step = state["step"]

    def is_to_stop(self) -> bool:
        """Whether dtrain asked any rank to stop. All ranks agree."""
        asked = torch.tensor(float(dtrain.should_prune()), device=self.device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked.item())


def main() -> None:
    last_words.install()
    dtrain.should_prune()  # from here on, SIGTERM waits for the end of the step
    job = Job.read()
    training = Training(job)
    training.run()
    dist.destroy_process_group()
    if training.step < job.steps:
        sys.exit(last_words.STOPPED)


if __name__ == "__main__":
    main()
