"""The manifest of a checkpoint, `manifest.json`: its files on all hosts. A checkpoint without one does not count."""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

NAME = "manifest.json"
PARTIAL = ".partial"  # the end of the name of a file that is being written
PIECE = 4 << 20  # bytes that are read or sent at once
READERS = 8  # files that are read at once


@dataclass(frozen=True)
class File:
    """A file of a checkpoint, and the index of the host that wrote it."""

    bytes: int
    crc32: int
    host: int


@dataclass(frozen=True)
class Manifest:
    """What the checkpoint after `step` steps consists of. `attempt` wrote it, with `world` ranks on `hosts` hosts."""

    step: int
    attempt: int
    engine: str
    world: int
    hosts: int
    files: dict[str, File]

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """The manifest of a checkpoint; `None` if it has none, or a damaged one."""
        try:
            record = json.loads((folder / NAME).read_text(encoding="utf-8"))
            files = {name: File(**file) for name, file in record.pop("files").items()}
            return cls(**record, files=files)
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, folder: Path) -> None:
        """Writes the manifest: whole, or not at all."""
        partial = folder / (NAME + PARTIAL)
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / NAME)

    @property
    def bytes(self) -> int:
        """The size of the checkpoint on all hosts together, without copies."""
        return sum(file.bytes for file in self.files.values())

    def present(self, folder: Path) -> set[str]:
        """The files of this checkpoint that are in a folder with their length."""
        return {name for name, file in self.files.items() if _length(folder / name) == file.bytes}

    def intact(self, folder: Path, names: Iterable[str]) -> set[str]:
        """Those of the files `names` in a folder that can be read and have their checksum."""

        def crc32_or_none(name: str) -> int | None:
            try:
                return crc32_of(folder / name)
            except OSError:
                return None

        names = list(names)
        with ThreadPoolExecutor(READERS) as readers:
            found = zip(names, readers.map(crc32_or_none, names))
        return {name for name, crc32 in found if crc32 == self.files[name].crc32}


def folder_of(checkpoints: Path, step: int) -> Path:
    """The folder of the checkpoint after `step` steps."""
    return checkpoints / f"step-{step}"


def steps_in(checkpoints: Path) -> list[int]:
    """The steps of all checkpoints in a folder, ascending, whether complete or not."""
    if not checkpoints.is_dir():
        return []
    matches = (re.fullmatch(r"step-(\d+)", entry.name) for entry in checkpoints.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def crc32_of(file: Path) -> int:
    """The checksum of a file."""
    crc = 0
    with open(file, "rb") as stream:
        while piece := stream.read(PIECE):
            crc = zlib.crc32(piece, crc)
    return crc


def crc32_of_all(files: Iterable[Path]) -> list[int]:
    """The checksums of files, several of which are read at once."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(crc32_of, files))


def remove_old(checkpoints: Path, step: int, keep: int) -> None:
    """Removes all checkpoints up to `step`, which is complete, but the newest `keep`, and all that have no manifest.

    Later ones stay: files that they lack may come back with their host. Training overwrites them otherwise.
    """
    folders = [folder_of(checkpoints, other) for other in steps_in(checkpoints) if other <= step]
    kept = [folder for folder in folders if (folder / NAME).is_file()][-max(keep, 1) :]
    for folder in folders:
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def _length(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
