"""Copies of the files of a checkpoint between hosts, in pieces, over Gloo."""

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist

from .hosts import HostError, Hosts
from .manifest import PARTIAL, PIECE, File, Manifest

ROUNDS = 256  # pieces between two gatherings of all ranks, so that no rank waits longer than for these


@dataclass(frozen=True)
class Transfer:
    """A file that one store sends to another."""

    name: str
    source: int
    to: int


def copy_to_next(hosts: Hosts, folder: Path, manifest: Manifest) -> None:
    """Copies the files that each host wrote to the next host, so that the loss of one host loses none."""
    count = len(hosts.stores)
    sources = {name: hosts.store_of_host[file.host] for name, file in manifest.files.items()}
    transfers = [Transfer(name, source, (source + 1) % count) for name, source in sources.items()]
    if count > 1 and (damaged := exchange(hosts, folder, manifest, transfers)):
        names = ", ".join(sorted(transfer.name for transfer in damaged))
        raise HostError(f"files changed while they were copied to another host: {names}")


def exchange(hosts: Hosts, folder: Path, manifest: Manifest, transfers: Iterable[Transfer]) -> set[Transfer]:
    """Sends files between stores. Returns the transfers of files that arrived damaged; these are not kept.

    All ranks call this with the same transfers. Each store sends to one other and receives from one at a time.
    """
    damaged: set[Transfer] = set()
    count = len(hosts.stores)
    for distance in range(1, count):
        turn = sorted(
            (one for one in transfers if (one.to - one.source) % count == distance), key=lambda one: one.name
        )
        link = _Link(hosts, folder, manifest.files, turn, distance)
        sent = [0] * count
        for one in turn:
            sent[one.source] += len(_offsets(manifest.files[one.name]))
        try:
            for begin in range(0, max(sent), ROUNDS):
                for found in hosts.on_stores(lambda: link.run(begin, begin + ROUNDS)):
                    damaged |= found
        finally:
            link.close()
    return damaged


@dataclass(frozen=True)
class _Piece:
    transfer: Transfer
    offset: int
    length: int
    is_last: bool


class _Link:
    """What a store sends to the store `distance` places on, and receives from the one as many places back."""

    def __init__(self, hosts: Hosts, folder: Path, files: dict[str, File], turn: list[Transfer], distance: int):
        store = hosts.store
        self.hosts, self.folder, self.files = hosts, folder, files
        self.to = hosts.stores[(store + distance) % len(hosts.stores)]
        self.source = hosts.stores[(store - distance) % len(hosts.stores)]
        self.outgoing = [piece for one in turn if one.source == store for piece in _pieces(one, files)]
        self.incoming = [piece for one in turn if one.to == store for piece in _pieces(one, files)]
        self.file: BinaryIO | None = None
        self.crc = 0
        self.error: OSError | None = None

    def run(self, begin: int, end: int) -> set[Transfer]:
        """Sends and receives the pieces from `begin` to `end`. Returns what arrived damaged.

        After a failure to write, it receives all the same, so that the other side does not wait.
        """
        damaged = set()
        for index in range(begin, min(end, max(len(self.outgoing), len(self.incoming)))):
            works, received = [], None
            if index < len(self.outgoing) and self.outgoing[index].length:
                sent = self._read(self.outgoing[index])
                works.append(dist.isend(sent, self.to, group=self.hosts.group))
            if index < len(self.incoming):
                received = torch.empty(self.incoming[index].length, dtype=torch.uint8)
                if len(received):
                    works.append(dist.irecv(received, self.source, group=self.hosts.group))
            for work in works:
                work.wait()
            if received is not None and self.error is None:
                try:
                    if not self._write(self.incoming[index], received):
                        damaged.add(self.incoming[index].transfer)
                except OSError as error:
                    self.error = error
        if self.error:
            raise self.error
        return damaged

    def close(self) -> None:
        """Removes the file that is not complete."""
        if self.file:
            try:
                self.file.close()
            except OSError:
                pass  # what was buffered is of no use
            Path(self.file.name).unlink(missing_ok=True)
            self.file = None

    def _read(self, piece: _Piece) -> torch.Tensor:
        """The bytes of a piece. Where the file is shorter or cannot be read, zeros, which its checksum reveals."""
        read = bytearray(piece.length)
        try:
            with open(self.folder / piece.transfer.name, "rb", buffering=0) as file:
                file.seek(piece.offset)
                view = memoryview(read)
                while view and (count := file.readinto(view)):
                    view = view[count:]
        except OSError:
            pass
        return torch.frombuffer(read, dtype=torch.uint8)

    def _write(self, piece: _Piece, received: torch.Tensor) -> bool:
        """Writes a piece; with the last one, the file gets its name. Returns whether it has its checksum then."""
        if self.file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = open(self.folder / (piece.transfer.name + PARTIAL), "wb")
            self.crc = 0
        data = received.numpy().data
        self.file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        if not piece.is_last:
            return True
        if self.crc != self.files[piece.transfer.name].crc32:
            self.close()
            return False
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        Path(self.file.name).replace(self.folder / piece.transfer.name)
        self.file = None
        return True


def _offsets(file: File) -> range:
    """Where the pieces of a file begin. An empty one has an empty piece, which is not sent."""
    return range(0, file.bytes, PIECE) or range(1)


def _pieces(transfer: Transfer, files: dict[str, File]) -> list[_Piece]:
    file = files[transfer.name]
    return [
        _Piece(transfer, offset, min(PIECE, file.bytes - offset), offset + PIECE >= file.bytes)
        for offset in _offsets(file)
    ]
