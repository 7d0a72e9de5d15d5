"""Samples in the order of dtrain, from prepared tokens.

The order is that of protocol/src/shuffle.rs, the samples those of worker/src/data/packing.rs.
"""

from collections.abc import Iterator

import numpy as np

from .job import Job, JobError, Segment, TokenSet

WIDTHS = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def shuffled_samples(seed: int, samples: int, cursors: np.ndarray) -> np.ndarray:
    """The samples at the positions `cursors` of an endless shuffled stream over `samples` samples.

    `cursor // samples` is the epoch; each epoch has its own permutation.
    """
    if samples <= 0:
        raise ValueError("a data set has at least one sample")
    cursors = np.asarray(cursors, dtype=np.uint64)
    epochs, places = np.divmod(cursors, np.uint64(samples))
    return _permute(_splitmix64(np.uint64(seed), epochs), samples, places)


def _permute(keys: np.ndarray, samples: int, places: np.ndarray) -> np.ndarray:
    """The images of `places` under bijections of `0..samples`, each chosen by its key.

    A Feistel network of four rounds over the next power of four, repeated for the values that are out of range.
    """
    bits = (max((samples - 1).bit_length(), 2) + 1) // 2
    shift, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    images = places.copy()
    rest = np.arange(len(places))
    while len(rest):
        left, right = images[rest] >> shift, images[rest] & mask
        for turn in range(4):
            left, right = right, left ^ (_splitmix64(keys[rest] ^ np.uint64(turn), right) & mask)
        images[rest] = (left << shift) | right
        rest = rest[images[rest] >= samples]
    return images


def _splitmix64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mixes two words into one with the finalizer of SplitMix64. The arithmetic wraps at 64 bits."""
    golden = np.uint64(0x9E37_79B9_7F4A_7C15)
    with np.errstate(over="ignore"):
        z = a ^ (b * golden + golden)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))


class Tokens:
    """The tokens of a set, its segments joined end to end, mapped into memory."""

    def __init__(self, segments: tuple[Segment, ...]):
        self._parts = [_mapped(segment) for segment in segments]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, count: int) -> np.ndarray:
        """`count` tokens from `begin` on, as 64-bit integers."""
        if begin + count > len(self):
            raise JobError(f"tokens {begin} to {begin + count} were wanted of a set of {len(self)}")
        found = np.empty(count, dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self._ends, begin, side="right"))
        while filled < count:
            offset = begin + filled - (int(self._ends[part]) - len(self._parts[part]))
            piece = self._parts[part][offset : offset + count - filled]
            found[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return found


def _mapped(segment: Segment) -> np.ndarray:
    if segment.width not in WIDTHS:
        raise JobError(f"{segment.path} has tokens of {segment.width} bytes, not of 1, 2 or 4")
    if segment.tokens == 0:
        return np.empty(0, dtype=WIDTHS[segment.width])
    return np.memmap(segment.path, WIDTHS[segment.width], mode="r", offset=segment.begin, shape=(segment.tokens,))


class Samples:
    """The samples of a set: `context` inputs each, and as many targets, which are one token ahead."""

    def __init__(self, tokens: TokenSet, context: int):
        self._tokens = Tokens(tokens.segments)
        self._first = tokens.first
        self._context = context
        self._samples = tokens.samples
        needed = tokens.first + tokens.samples * context + 1
        if tokens.samples and len(self._tokens) < needed:
            raise JobError(f"{tokens.samples} samples take {needed} tokens; there are {len(self._tokens)}")

    def read(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and the targets of `samples`, each of shape [samples, context]."""
        count = self._context + 1
        rows = [self._tokens.read(self._first + int(sample) * self._context, count) for sample in samples]
        windows = np.stack(rows)
        return windows[:, :-1].copy(), windows[:, 1:].copy()


class StepReader:
    """The training samples of one reader, step by step."""

    def __init__(self, job: Job, share: range | None = None):
        """Reads `share` of each batch; by default the share of the job's rank."""
        self._samples = Samples(job.train, job.context)
        self._count, self._seed, self._batch = job.train.samples, job.training["seed"], job.batch
        self._share = job.share if share is None else share
        self._micro_batch = job.micro_batch

    def micro_batches(self, step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The micro-batches of `step`, which counts from 0, as inputs and targets."""
        for begin in range(self._share.start, self._share.stop, self._micro_batch):
            end = min(begin + self._micro_batch, self._share.stop)
            cursors = np.arange(begin, end, dtype=np.uint64) + np.uint64(step * self._batch)
            yield self._samples.read(shuffled_samples(self._seed, self._count, cursors))


def validation_batches(job: Job, size: int, multiple: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """The validation samples of the job's reader in batches of `size`, each with the number of samples that count.

    Every reader gets as many batches, a multiple of `multiple`. Copies of the first sample, which do not count, fill
    the batches where a reader has fewer samples.
    """
    samples = Samples(job.valid, job.context)
    rounds = -(-job.valid_samples // (job.readers * size * multiple)) * multiple
    for turn in range(rounds):
        begin = (turn * job.readers + job.reader) * size
        chosen = np.arange(begin, begin + size)
        counts = chosen < job.valid_samples
        yield *samples.read(np.where(counts, chosen, 0)), int(np.count_nonzero(counts))
