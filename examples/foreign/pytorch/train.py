"""A line fitted by two processes with PyTorch DDP, as for torchrun: torchrun --nproc-per-node 2 train.py"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = torch.arange(8.0).unsqueeze(1)
    for step in range(1, 101):
        inputs = torch.randn(32, 8, generator=generator)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if rank == 0:
            print(f"step {step} loss {loss.item() / world:.6f}")
    dist.destroy_process_group()


main()
