"""A head of a causal decoder that computes the loss in chunks of the sequence, so that logits are never whole."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

IGNORED = -100  # the target that cross_entropy leaves out
CHUNKS = 8  # the planner counts an eighth of the logits


class ChunkedHead:
    """Computes the loss of each chunk in the forward pass, and its logits again in the backward pass.

    Must be called within the forward pass of the model, where FSDP has gathered the weights of the head.
    """

    def __init__(self, head: nn.Module):
        self.head = type(head).forward.__get__(head)
        self.targets: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """The sum of the cross-entropy over all tokens, in place of their logits."""
        parts = hidden.flatten(0, 1).chunk(CHUNKS), self.targets.flatten().chunk(CHUNKS)
        sums = [checkpoint(self.loss_sum, *part, use_reentrant=False) for part in zip(*parts)]
        return torch.stack(sums).sum()

    def loss_sum(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy_sum(self.head(hidden), targets)


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the cross-entropy over tokens, in f32. `logits: [tokens, vocab]`, `targets: [tokens]`."""
    return nn.functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def chunk_loss(model: nn.Module) -> None:
    """Lets the head of `model` compute the loss in chunks; the model then returns it as its logits."""
    head = model.get_output_embeddings()
    head.forward = ChunkedHead(head)


def loss_sum(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the cross-entropy over the tokens of a micro-batch. Inputs and targets: `[samples, context]`."""
    head = model.get_output_embeddings().forward
    if isinstance(head, ChunkedHead):
        head.targets = targets
        return model(input_ids=inputs, use_cache=False).logits
    logits = model(input_ids=inputs, use_cache=False).logits
    return cross_entropy_sum(logits.flatten(0, 1), targets.flatten())
