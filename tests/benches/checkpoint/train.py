"""A perceptron trained by PyTorch DDP and saved every ten steps, as a person would write it for torchrun.

    torchrun --standalone --nproc-per-node 2 train.py FOLDER WAY WIDTH BATCH STEPS

WAY is one of `torch.save`, `dcp.save` and `dcp.async_save`. After every step each rank prints `step RANK STEPS MILLISECONDS`, and
after every call that saves, `saved RANK STEPS SECONDS` with the time that it took from training. When its part of a checkpoint is
written, it prints `complete RANK STEPS MILLISECONDS`.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel

INPUTS, CLASSES, SAMPLES = 64, 10, 4096


def tell(line):
    # One write for each line, as two threads of two processes have lines for the same pipe.
    os.write(1, f"{line}\n".encode())


def complete(rank, step):
    tell(f"complete {rank} {step} {time.time_ns() // 1_000_000}")


def main():
    folder, way = sys.argv[1:3]
    width, batch, steps = map(int, sys.argv[3:])
    dist.init_process_group("cpu:gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    inputs, classes = torch.randn(SAMPLES, INPUTS), torch.randint(CLASSES, (SAMPLES,))
    sides = [INPUTS, width, width, width, width]
    layers = [part for a, b in zip(sides, sides[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(width, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # What is written beside training needs a group of its own, or its messages meet those of the gradients.
    group = dist.new_group(backend="gloo")
    writing = None
    for step in range(1, steps + 1):
        mine = torch.arange(batch // world) * world + rank + step * batch
        loss = nn.functional.cross_entropy(model(inputs[mine % SAMPLES]), classes[mine % SAMPLES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(f"step {rank} {step} {time.time_ns() // 1_000_000}")
        if step % 10:
            continue
        began, path = time.monotonic(), os.path.join(folder, f"step-{step}")
        if way == "torch.save":
            if rank == 0:
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, path + ".new")
                os.replace(path + ".new", path)
            dist.barrier()
        else:
            if writing is not None:
                writing.result()
            net_state, optimizer_state = get_state_dict(net, optimizer)
            state = {"net": net_state, "optimizer": optimizer_state}
            if way == "dcp.save":
                dcp.save(state, checkpoint_id=path)
            else:
                writing = dcp.async_save(state, checkpoint_id=path, process_group=group)
                writing.add_done_callback(lambda _, step=step: complete(rank, step))
        tell(f"saved {rank} {step} {time.monotonic() - began}")
        if way != "dcp.async_save":
            complete(rank, step)
    if writing is not None:
        writing.result()
    dist.destroy_process_group()


main()
