"""Checkpoints in folders `step-N`, written by torch.distributed.checkpoint (DCP). N counts completed steps."""

import re
import shutil
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader


def folder_of(checkpoints: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps."""
    return checkpoints / f"step-{step}"


def steps_in(checkpoints: Path) -> list[int]:
    """The steps of all checkpoints in a folder, ascending, whether complete or not."""
    if not checkpoints.is_dir():
        return []
    matches = (re.fullmatch(r"step-(\d+)", entry.name) for entry in checkpoints.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def is_complete(folder: Path) -> bool:
    """Whether the folder has the metadata, which are written last, and every file that they name."""
    if not (folder / ".metadata").is_file():
        return False
    pieces = FileSystemReader(folder).read_metadata().storage_data.values()
    lengths: dict[str, int] = {}
    for piece in pieces:
        lengths[piece.relative_path] = max(lengths.get(piece.relative_path, 0), piece.offset + piece.length)
    files = ((folder / name, length) for name, length in lengths.items())
    return all(file.is_file() and file.stat().st_size >= length for file, length in files)


def newest_complete(checkpoints: Path) -> int | None:
    """The step of the newest checkpoint that is complete on every host; `None` without one.

    All ranks call this together. Hosts may have folders of their own, and must not begin at different steps.
    """
    own = [step for step in steps_in(checkpoints) if is_complete(folder_of(checkpoints, step))]
    found: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, own)
    common = set.intersection(*map(set, found))
    return max(common, default=None)


def remove_oldest(checkpoints: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints. One that is gone already is no error."""
    for step in steps_in(checkpoints)[:-keep]:
        shutil.rmtree(folder_of(checkpoints, step), ignore_errors=True)
