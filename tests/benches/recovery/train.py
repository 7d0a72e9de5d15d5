"""A perceptron trained by PyTorch DDP, saved every ten steps, as a person would write it for torchrun.

    torchrun --standalone --nproc-per-node 2 train.py FOLDER

After every step each rank prints `step RANK PROCESS STEPS MILLISECONDS`.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

INPUTS, HIDDEN, CLASSES, SAMPLES, BATCH = 64, 1024, 10, 2048, 128


def main():
    path = os.path.join(sys.argv[1], "checkpoint.pt")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    inputs, classes = torch.randn(SAMPLES, INPUTS), torch.randint(CLASSES, (SAMPLES,))
    net = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(path):
        state = torch.load(path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while True:
        mine = torch.arange(BATCH // world) * world + rank + step * BATCH
        loss = nn.functional.cross_entropy(model(inputs[mine % SAMPLES]), classes[mine % SAMPLES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {rank} {os.getpid()} {step} {time.time_ns() // 1_000_000}", flush=True)
        if step % 10 == 0:
            if os.environ["LOCAL_RANK"] == "0":
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
                os.replace(path + ".new", path)
            dist.barrier()


main()
