"""The hosts of a training, and what their ranks do together over Gloo, whatever backend the training uses."""

import errno
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from . import last_words
from .job import Job, JobError

FULL = (errno.ENOSPC, errno.EDQUOT)


class HostError(Exception):
    """A host failed at what all do together. All ranks raise it."""


class Hosts:
    """The hosts of a training, as each rank knows them. All ranks call every method together.

    Hosts that see the same folder of checkpoints, as on a network file system, are one store.
    """

    def __init__(self, job: Job):
        timeout = timedelta(seconds=job.assignment["waits"]["idle_seconds"])
        self.group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank, self.checkpoints, self.saved_step = dist.get_rank(), job.checkpoints, job.saved_step
        self.of_rank: list[int] = self.gather(job.assignment.get("placement", {}).get("host", 0))
        self.host = self.of_rank[self.rank]
        # Of each host, its first rank acts for it.
        self.leaders = {host: self.of_rank.index(host) for host in sorted(set(self.of_rank))}
        self.store_of_host = self._find_stores()
        # Of each store, the rank that acts for it.
        self.stores = [
            next(self.leaders[host] for host, own in self.store_of_host.items() if own == store)
            for store in sorted(set(self.store_of_host.values()))
        ]

    @property
    def leads_host(self) -> bool:
        return self.leaders[self.host] == self.rank

    @property
    def leads_store(self) -> bool:
        return self.rank in self.stores

    @property
    def store(self) -> int:
        """The index of the store that this rank sees."""
        return self.store_of_host[self.host]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self.group)
        return values

    def on(self, acts: bool, work: Callable[[], Any]) -> list[Any]:
        """Does `work` on the ranks for which `acts` holds; its results by rank. If one fails, all ranks raise."""
        result, failure = None, None
        try:
            result = work() if acts else None
        except Exception as error:
            is_full = isinstance(error, OSError) and error.errno in FULL
            failure = (is_full, f"host {self.host}: {last_words.of(error)}")
        found = self.gather((result, failure))
        failures = [failure for _, failure in found if failure]
        if failures:
            is_full, words = max(failures)
            raise disk_full(words, self.checkpoints) if is_full else HostError(words)
        return [result for result, _ in found]

    def on_hosts(self, work: Callable[[], Any]) -> list[Any]:
        """Does `work` once per host. Returns the results of the hosts, in their order."""
        results = self.on(self.leads_host, work)
        return [results[rank] for rank in self.leaders.values()]

    def on_stores(self, work: Callable[[], Any]) -> list[Any]:
        """Does `work` once per store. Returns the results of the stores, in their order."""
        results = self.on(self.leads_store, work)
        return [results[rank] for rank in self.stores]

    def _find_stores(self) -> dict[int, int]:
        """The index of each host's store. Each host leaves a mark; hosts that see it share the folder."""
        mark = self.checkpoints / f".{uuid.uuid4()}"

        def leave() -> str:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            mark.touch()
            return mark.name

        hosts = list(self.leaders)
        if len(hosts) == 1:
            self.on_hosts(lambda: self.checkpoints.mkdir(parents=True, exist_ok=True))
            return {hosts[0]: 0}
        marks = self.on_hosts(leave)
        seen = self.on_hosts(lambda: [(self.checkpoints / name).exists() for name in marks])
        self.on_hosts(lambda: mark.unlink(missing_ok=True))
        first = [hosts[found.index(True)] for found in seen]
        order = sorted(set(first))
        return {host: order.index(other) for host, other in zip(hosts, first)}


def disk_full(words: str, checkpoints: Path) -> JobError:
    """The error of a checkpoint for which a host has no room."""
    advice = "free space there, or keep fewer with checkpoint.keep"
    return JobError(f"a checkpoint cannot be written to {checkpoints}: {words}: {advice}")
