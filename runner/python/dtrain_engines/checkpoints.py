"""Checkpoints in folders `step-N`, written by torch.distributed.checkpoint (DCP). N counts completed steps.

Every host has its own files, and copies of those of the host before it. `restore.py` brings together what is needed.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from . import last_words
from .copies import copy_to_next
from .hosts import FULL, HostError, Hosts, disk_full
from .job import Job, JobError
from .manifest import NAME, File, Manifest, crc32_of_all, folder_of, remove_old
from .restore import newest_complete

# PyTorch's writer says this of a write that failed, in place of what the operating system says.
WRITER_FAILED = "inline_container.cc"


class Checkpoints:
    """The checkpoints of a training, on all hosts. All ranks call every method together."""

    def __init__(self, job: Job, engine: str):
        self.folder, self.keep, self.engine = job.checkpoints, job.keep, engine
        self.attempt = job.assignment["attempt"]
        self.hosts = Hosts(job)

    def newest(self) -> int | None:
        """Brings the newest complete checkpoint to every host. Returns its step; `None` without any."""
        return newest_complete(self.hosts)

    def save(self, step: int, write: Callable[[Path], None]) -> int:
        """Saves a checkpoint with `write`, which DCP does; returns its bytes. Removes those beyond the number to keep.

        A checkpoint that cannot be saved on all hosts leaves nothing.
        """
        hosts, folder = self.hosts, folder_of(self.folder, step)
        # Files of an attempt that died while it saved are not of this checkpoint.
        hosts.on_stores(lambda: shutil.rmtree(folder, ignore_errors=True))
        try:
            try:
                write(folder)
            except CheckpointException as error:  # on all ranks
                raise _of(error, self.folder) from error
            files: dict[str, File] = {}
            for found in hosts.on_hosts(lambda: _written(hosts, folder)):
                files |= found
            manifest = Manifest(step, self.attempt, self.engine, len(hosts.of_rank), len(hosts.leaders), files)
            copy_to_next(hosts, folder, manifest)
            hosts.on_stores(lambda: manifest.write(folder))
        except (JobError, HostError):
            hosts.on_stores(lambda: shutil.rmtree(folder, ignore_errors=True))
            raise
        hosts.on_stores(lambda: remove_old(self.folder, step, self.keep))
        return manifest.bytes


def _written(hosts: Hosts, folder: Path) -> dict[str, File]:
    """The files that the ranks of this host wrote. DCP names them by ranks; rank 0 writes the metadata too."""
    written = []
    for file in folder.iterdir():
        rank = re.match(r"__(\d+)_", file.name)
        if file.name != NAME and hosts.of_rank[int(rank[1]) if rank else 0] == hosts.host:
            written.append(file)
    found = zip(written, crc32_of_all(written))
    return {file.name: File(file.stat().st_size, crc32, hosts.host) for file, crc32 in found}


def _of(error: CheckpointException, checkpoints: Path) -> Exception:
    """The error of a save that failed on some ranks."""
    failures = {rank: failure for rank, (failure, _) in sorted(error.failures.items())}
    for rank, failure in failures.items():
        if isinstance(failure, OSError) and failure.errno in FULL:
            return disk_full(f"rank {rank}: {last_words.of(failure)}", checkpoints)
    for rank, failure in failures.items():
        if WRITER_FAILED in str(failure):
            return disk_full(f"rank {rank}: a write failed, most likely: No space left on device", checkpoints)
    rank, failure = next(iter(failures.items()))
    return HostError(f"rank {rank} could not write a checkpoint: {last_words.of(failure)}")
