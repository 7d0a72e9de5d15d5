"""Collectives of Gloo between two processes: python collectives_gloo.py SECONDS. Rank 0 prints a JSON object for each operation."""

import json
import os
import socket
import subprocess
import sys
import time

LENGTHS = [1, 16, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
RANKS = 2


def rank(number, seconds):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    for length in LENGTHS:
        values = torch.zeros(length)
        # Gloo gathers and scatters equal parts; one value cannot be halved.
        part = torch.zeros(max(1, length // RANKS))
        whole = torch.zeros(len(part) * RANKS)
        operations = {
            "all-reduce": lambda: dist.all_reduce(values),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        }
        for name, call in operations.items():
            try:
                warm = min(timed(call) for _ in range(3))
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            repeats = torch.tensor([min(20_000, max(5, int(seconds / max(warm, 1e-7))))])
            dist.broadcast(repeats, 0)
            times = [timed(call) for _ in range(int(repeats))]
            if number == 0:
                print(json.dumps({"operation": name, "bytes": 4 * length, "seconds": times}), flush=True)
    dist.destroy_process_group()


def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main():
    if len(sys.argv) == 3:
        rank(int(sys.argv[2]), float(sys.argv[1]))
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(number)], env=environment) for number in range(RANKS)]
    sys.exit(max(abs(process.wait()) for process in ranks))


main()
