"""A cluster of processes on this machine: each host has a folder of its own, and ranks that talk over Gloo."""

import json
import multiprocessing
import os
import queue
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DCP imports it in every rank otherwise, which takes seconds
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

PACKAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGES))

from dtrain_engines.checkpoints import Checkpoints  # noqa: E402
from dtrain_engines.job import Job, TokenSet  # noqa: E402

LIMIT_SECONDS = 300  # of a busy machine
DIES = 77
NO_TOKENS = TokenSet((), 0, 0)


class Rank:
    """A rank of the cluster, as the work of a test sees it."""

    def __init__(self, rank: int, host: int, folder: Path, keep: int):
        self.rank, self.host, self.folder = rank, host, folder
        assignment = {"attempt": 1, "placement": {"host": host}, "waits": {"idle_seconds": 120.0}}
        self.job = Job(assignment, NO_TOKENS, NO_TOKENS, folder, keep, folder)
        self.checkpoints = Checkpoints(self.job, "fsdp")

    def state(self, step: int) -> dict[str, Any]:
        """A matrix of which every rank has a part, and a number."""
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        whole = torch.arange(24 * SIZE).reshape(24, SIZE) * float(step)
        return {"model": {"whole": distribute_tensor(whole, mesh, [Shard(0)])}, "step": step}

    def save(self, step: int) -> int:
        return self.checkpoints.save(step, lambda folder: dcp.save(self.state(step), checkpoint_id=folder))

    def load(self) -> int | None:
        """The step of the newest checkpoint, after a look at what was loaded."""
        step = self.checkpoints.newest()
        if step is not None:
            found = self.state(-1)
            dcp.load(found, checkpoint_id=self.folder / f"step-{step}")
            own, wanted = found["model"]["whole"].to_local(), self.state(step)["model"]["whole"].to_local()
            assert found["step"] == step and torch.equal(own, wanted), "what was loaded is not what was saved"
        return step


SIZE = 1000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(folders: list[Path], ranks_per_host: int, work: Callable[[Rank], Any], keep: int = 2) -> list[Any]:
    """What `work` returns on each rank, or the words of the exception that it raises.

    `folders` are those of the hosts, in order.
    """

    def on_rank(rank: int, world: int, port: int) -> Any:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        host = rank // ranks_per_host
        return work(Rank(rank, host, folders[host], keep))

    return run_processes(len(folders) * ranks_per_host, on_rank)


def run_processes(world: int, work: Callable[[int, int, int], Any]) -> list[Any]:
    """What `work` returns in each process for its rank, the number of ranks and a port, or its exception as words.

    Of a process that ends with the code `DIES`, it is `None`.
    """
    context = multiprocessing.get_context("fork")
    results, port = context.Queue(), free_port()
    processes = [context.Process(target=_rank, args=(work, rank, world, port, results)) for rank in range(world)]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    until = time.monotonic() + LIMIT_SECONDS
    try:
        while len(found) < world and time.monotonic() < until:
            try:
                found.update([results.get(timeout=0.2)])
            except queue.Empty:
                dead = {rank for rank, process in enumerate(processes) if process.exitcode == DIES}
                found.update((rank, None) for rank in dead - found.keys())
    finally:
        for process in processes:
            process.kill()
            process.join()
    if len(found) < world:
        raise AssertionError(f"ranks {sorted(set(range(world)) - set(found))} hang; others: {found}")
    return [found[rank] for rank in range(world)]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def _rank(work: Callable[[int, int, int], Any], rank: int, world: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.stdout = open(os.devnull, "w")
    try:
        results.put((rank, work(rank, world, port)))
    except BaseException as error:
        results.put((rank, f"{type(error).__name__}: {error}"))
    results.close()
    results.join_thread()
    os._exit(0)
