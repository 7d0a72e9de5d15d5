"""Optimizers with the update rules of dtrain's worker, and the clipping of gradients, for sharded parameters."""

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .job import JobError


class MomentumOptimizer(torch.optim.Optimizer):
    """An optimizer with one moment and decoupled weight decay: SGD or Lion."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def update(self, gradient: torch.Tensor, moment: torch.Tensor, betas: tuple[float, float]) -> torch.Tensor:
        """Changes the moment in place, and returns the direction of the step."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for param in (param for param in group["params"] if param.grad is not None):
                state = self.state[param]
                if not state:
                    state["moment"] = torch.zeros_like(param)
                direction = self.update(param.grad, state["moment"], group["betas"])
                param.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction * group["lr"])


class Sgd(MomentumOptimizer):
    """Stochastic gradient descent with heavy-ball momentum."""

    def update(self, gradient: torch.Tensor, moment: torch.Tensor, betas: tuple[float, float]) -> torch.Tensor:
        return moment.mul_(betas[0]).add_(gradient)


class Lion(MomentumOptimizer):
    """Lion (Chen et al. 2023): the sign of an interpolated momentum."""

    def update(self, gradient: torch.Tensor, moment: torch.Tensor, betas: tuple[float, float]) -> torch.Tensor:
        direction = (moment * betas[0] + gradient * (1 - betas[0])).sign()
        moment.mul_(betas[1]).add_(gradient * (1 - betas[1]))
        return direction


def build(model: nn.Module, training: dict[str, Any], on_host: bool = False) -> torch.optim.Optimizer:
    """The optimizer of a training. Weight decay applies to matrices, not to norms and biases.

    `on_host` says that the CPU updates the weights of a GPU, with the one kernel that uses all its cores.

    A group holds the parameters of one device mesh, since operations on several tensors need a common one.
    """
    rule = training["optimizer"]
    groups: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for param in model.parameters():
        mesh = param.device_mesh if isinstance(param, DTensor) else None
        groups[mesh, param.dim() > 1].append(param)
    decays = [
        {"params": params, "weight_decay": rule["weight_decay"] if is_matrix else 0.0}
        for (_, is_matrix), params in groups.items()
    ]
    common = {"lr": training["learning_rate"], "betas": (rule["beta1"], rule["beta2"])}
    if rule["kind"] == "adamw":
        return torch.optim.AdamW(decays, eps=rule["epsilon"], fused=on_host or None, **common)
    if rule["kind"] == "sgd":
        return Sgd(decays, **common)
    if rule["kind"] == "lion":
        return Lion(decays, **common)
    raise JobError(f"the engine `fsdp` has no optimizer `{rule['kind']}`: use adamw, sgd or lion")


@torch.no_grad()
def clip(model: nn.Module, limit: float | None) -> float:
    """Scales the gradients by `min(1, limit / norm)`, and returns their global norm from before.

    All ranks call this together.
    """
    gradients = [param.grad for param in model.parameters() if param.grad is not None]
    square = sum(_local(gradient).float().square().sum() / _copies(gradient) for gradient in gradients)
    dist.all_reduce(square)
    norm = square.sqrt().item()
    if limit is not None and norm > limit:
        for gradient in gradients:
            _local(gradient).mul_(limit / norm)
    return norm


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _copies(tensor: torch.Tensor) -> int:
    """The number of ranks that hold the same part of a tensor."""
    parts = 1
    if isinstance(tensor, DTensor):
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements):
            # Not `is_shard`, which is false where FSDP and tensor parallelism split the same dimension.
            parts *= 1 if placement.is_replicate() else size
    return dist.get_world_size() // parts
