"""Runs torchtitan on CPU ranks, for tests: `python cpu_shim.py --module … --config …`.

torchtitan expects an accelerator. This gives `torch.cpu` the functions of `torch.cuda` that it calls, replaces
FlexAttention, which has no backward pass on CPUs, by dense attention with the same mask, and lets Gloo sum gradients
without scaling them, which Gloo cannot do.
"""

import os
import resource
import runpy
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import BlockMask, create_mask


def memory_stats(*_: object) -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": used, "reserved_bytes.all.peak": used, "num_alloc_retries": 0, "num_ooms": 0}


def device_properties(*_: object) -> SimpleNamespace:
    return SimpleNamespace(name="CPU", total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    block_mask: BlockMask,
    scale: float | None,
    enable_gqa: bool,
    **_: object,
) -> tuple[torch.Tensor, None]:
    mask = create_mask(block_mask.mask_mod, block_mask.shape[0], 1, q.shape[2], k.shape[2], device="cpu")
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None


def act_as_accelerator() -> None:
    """Changes torch, before torchtitan is imported."""
    functions = {
        "current_device": lambda: 0,
        "empty_cache": lambda: None,
        "get_device_name": lambda *_: "CPU",
        "get_device_properties": device_properties,
        "max_memory_allocated": lambda *_: 0,
        "memory_stats": memory_stats,
        "reset_peak_memory_stats": lambda *_: None,
        "set_device": lambda *_: None,
    }
    for name, function in functions.items():
        setattr(torch.cpu, name, function)
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda kind: getattr(torch, kind)

    set_divide_factor = FSDPModule.set_gradient_divide_factor

    def set_divide_factor_and_sum(module: FSDPModule, factor: float) -> None:
        set_divide_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_divide_factor_and_sum


if __name__ == "__main__":
    act_as_accelerator()
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention.compiled_flex_attn = staticmethod(dense_attention)
    runpy.run_module("torchtitan.train", run_name="__main__")
