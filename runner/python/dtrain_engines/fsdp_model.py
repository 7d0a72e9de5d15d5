"""The model of the engine `fsdp`: a causal decoder of transformers, split and sharded as a job plans it."""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM

from .chunked_loss import chunk_loss
from .job import AXES, Job, JobError

# Tensor parallelism as in Megatron-LM: by columns, then by rows. Llama, Mistral and Qwen 2 have these layers.
SPLIT_LAYERS = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}
# The training state that this engine can hold; `None` is its own.
STATE = {
    "weights": ["f32", "bf16"],
    "gradients": [None],
    "moments": ["f32", "bf16"],
    "offload": ["none", "all"],
    "loss": ["plain", "chunked"],
}
ATTENTION = [None, "eager", "sdpa"]


def check(job: Job) -> None:
    """Refuses a job that this engine would not train as planned."""
    arrangement, model = job.arrangement, job.assignment["model"]
    if model["kind"] != "decoder":
        raise JobError("the engine `fsdp` trains decoders only")
    if (model.get("experts") or {}).get("balance"):
        raise JobError("the engine `fsdp` has no load-balancing loss: set model.balance = 0")
    for axis in AXES:
        if axis not in ("data", "tensor") and job.degree(axis) > 1:
            raise JobError(f"the engine `fsdp` cannot split along the axis `{axis}`: set layout.{axis} = 1")
    if arrangement.get("sequence"):
        raise JobError("the engine `fsdp` has no sequence parallelism: plan without it")
    if arrangement["precision"] not in ("f32", "bf16"):
        raise JobError(f"the engine `fsdp` has no precision `{arrangement['precision']}`: use f32 or bf16")
    if arrangement["recompute"] == "selective":
        raise JobError("the engine `fsdp` has no selective recomputation: use none or full")
    if arrangement["device"] == "wgpu":
        raise JobError("PyTorch has no device `wgpu`: use cuda or cpu")
    if arrangement.get("sync"):
        raise JobError("the engine `fsdp` synchronises replicas exactly: plan without approximations")
    if job.training.get("z_loss"):
        raise JobError("the engine `fsdp` has no z-loss: set it to 0")
    if model.get("lora"):
        raise JobError("the engine `fsdp` trains no adapters: remove model.lora")
    check_state(job)


def check_state(job: Job) -> None:
    """Refuses training state that this engine cannot hold."""
    for key, known in STATE.items():
        if job.state(key) not in known:
            raise JobError(f"the engine `fsdp` has no train.state.{key} = {job.state(key)!r}: use one of {known}")
    if job.training.get("attention") not in ATTENTION:
        raise JobError(f"the engine `fsdp` has no attention `{job.training['attention']}`: use eager or sdpa")
    if job.state("weights") != job.state("moments"):
        raise JobError("the engine `fsdp` keeps moments in the precision of weights: set both to bf16 or to f32")
    if job.state("weights") == "bf16" and job.arrangement["precision"] != "bf16":
        raise JobError("the engine `fsdp` has weights in bf16 for products in bf16 only: set train.precision = bf16")


def build(job: Job, device: torch.device) -> nn.Module:
    """The model with its initial weights, split and sharded. All ranks call this together."""
    tensor, shard = job.degree("tensor"), job.shard
    shape = (job.degree("data") // shard, shard, tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard", "tensor"))
    # Blocks move to the device one by one, when they are sharded: the whole model may not fit.
    attention = job.training.get("attention")
    model = AutoModelForCausalLM.from_pretrained(
        job.initial,
        dtype=torch.bfloat16 if job.state("weights") == "bf16" else torch.float32,
        **({"attn_implementation": attention} if attention else {}),
    )
    if job.state("loss") == "chunked":
        chunk_loss(model)
    arrangement = job.arrangement
    policy = MixedPrecisionPolicy()
    if arrangement["precision"] == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh["replicate", "shard"], "mp_policy": policy}
    if job.state("offload") == "all":
        # Pinned memory needs a GPU, which copies from it.
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type != "cpu")
    blocks = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for index, block in enumerate(blocks):
        if tensor > 1:
            _split(block, mesh["tensor"], model.config)
        if arrangement["recompute"] == "full" and index % arrangement.get("recompute_every", 1) == 0:
            blocks[index] = block = checkpoint_wrapper(block)
        fully_shard(block, reshard_after_forward=job.zero == 3, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    for module in sharded_modules(model):
        # The loss is divided by the number of tokens already, and Gloo cannot scale while it sums.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(device.type == "cpu")
    return model


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules that FSDP shards as a unit."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _split(block: nn.Module, mesh: DeviceMesh, config) -> None:
    """Splits the matrices of a block among the ranks of `mesh`."""
    names = {name for name, module in block.named_modules() if isinstance(module, nn.Linear)}
    if names != set(SPLIT_LAYERS) or hasattr(block.self_attn, "q_norm"):
        raise JobError(f"the engine `fsdp` cannot split a model of type `{config.model_type}`: set layout.tensor = 1")
    if config.num_key_value_heads % mesh.size():
        raise JobError(
            f"{config.num_key_value_heads} heads of keys and values do not split into {mesh.size()} parts: "
            "lower layout.tensor"
        )
    parallelize_module(block, mesh, {name: style() for name, style in SPLIT_LAYERS.items()})
