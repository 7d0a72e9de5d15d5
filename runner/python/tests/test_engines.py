"""Tests of what the engines share: `python -m unittest discover -s runner/python/tests`. Needs numpy alone."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

PACKAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PACKAGES))

from dtrain_engines.job import Job, JobError, Segment, TokenSet  # noqa: E402
from dtrain_engines.schedule import Schedule  # noqa: E402
from dtrain_engines.tokens import Samples, StepReader, Tokens, shuffled_samples, validation_batches  # noqa: E402

WORD = (1 << 64) - 1


def splitmix64(a: int, b: int) -> int:
    """protocol/src/shuffle.rs, word for word."""
    z = a ^ ((b * 0x9E37_79B9_7F4A_7C15 + 0x9E37_79B9_7F4A_7C15) & WORD)
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & WORD
    return z ^ (z >> 31)


def shuffled_sample(seed: int, samples: int, cursor: int) -> int:
    """protocol/src/shuffle.rs, word for word."""
    key, x = splitmix64(seed, cursor // samples), cursor % samples
    bits = (max((samples - 1).bit_length(), 2) + 1) // 2
    mask = (1 << bits) - 1
    while True:
        left, right = x >> bits, x & mask
        for turn in range(4):
            left, right = right, left ^ (splitmix64(key ^ turn, right) & mask)
        x = (left << bits) | right
        if x < samples:
            return x


def job(folder: Path, **training: object) -> Job:
    """A job over 101 tokens in three segments: 7 samples of 10 tokens, then 2 of validation."""
    tokens = np.arange(101)
    (folder / "a").write_bytes(b"..." + tokens[:40].astype("<u2").tobytes())
    (folder / "b").write_bytes(tokens[40:41].astype("u1").tobytes() + tokens[41:].astype("<u4").tobytes())
    segments = [
        {"path": str(folder / "a"), "begin": 3, "tokens": 40, "width": 2},
        {"path": str(folder / "b"), "begin": 0, "tokens": 1, "width": 1},
        {"path": str(folder / "b"), "begin": 1, "tokens": 60, "width": 4},
    ]
    record = {
        "assignment": {
            "attempt": 1,
            "model": {"kind": "decoder", "context": 10},
            "arrangement": {"zero": "0", "layout": {"data": 2}},
            "training": {"batch": 4, "share": {"start": 0, "end": 2}, "micro_batch": 1, "seed": 7, **training},
            "until": {"steps": 8},
            "validate_every": 3,
            "validate_samples": 5,
            "save_every": 5,
        },
        "train": {"segments": segments, "first": 0, "samples": 7},
        "valid": {"segments": segments, "first": 70, "samples": 3},
        "initial": str(folder),
        "keep": 2,
        "checkpoints": str(folder / "checkpoints"),
    }
    file = folder / "job.json"
    file.write_text(json.dumps(record))
    return Job.read(file)


class Order(unittest.TestCase):
    def test_the_order_is_that_of_the_worker(self):
        for seed in (0, 7, 1 << 63, WORD):
            for samples in (1, 2, 3, 4, 5, 16, 17, 1000, 65_537):
                cursors = np.array([0, 1, samples - 1, samples, 3 * samples + samples // 2, 10**12], dtype=np.uint64)
                wanted = [shuffled_sample(seed, samples, int(cursor)) for cursor in cursors]
                self.assertEqual(shuffled_samples(seed, samples, cursors).tolist(), wanted, (seed, samples))

    def test_fixed_positions(self):
        for (seed, samples, begin), wanted in VECTORS.items():
            cursors = np.arange(begin, begin + len(wanted), dtype=np.uint64)
            self.assertEqual(shuffled_samples(seed, samples, cursors).tolist(), wanted, (seed, samples, begin))

    def test_an_epoch_visits_every_sample_once(self):
        for samples in (1, 2, 5, 64, 1000):
            for epoch in range(3):
                order = shuffled_samples(7, samples, np.arange(samples, dtype=np.uint64) + np.uint64(epoch * samples))
                self.assertEqual(sorted(order.tolist()), list(range(samples)))

    def test_no_sample_is_an_error(self):
        with self.assertRaises(ValueError):
            shuffled_samples(7, 0, np.array([0]))


# Seed, samples and first cursor, with the samples from there on.
VECTORS = {
    (7, 1000, 0): [395, 114, 82, 709, 312, 39],
    (7, 1000, 1000): [440, 635, 745, 784, 49, 59],
    (0, 3, 0): [1, 0, 2, 2, 0, 1],
    (18446744073709551615, 12345678, 1000000000000): [8076576, 12332920, 5850126, 11522557, 6553623, 10065419],
    (42, 8589934592, 17179869184): [7449070485, 8494410668, 2115780629, 6758559460, 5088601374, 945373807],
}


class Reading(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.job = job(Path(self.folder.name))

    def test_segments_are_joined_end_to_end(self):
        tokens = Tokens(self.job.train.segments)
        self.assertEqual(len(tokens), 101)
        for begin, count in ((0, 101), (35, 20), (39, 3), (40, 1), (41, 60), (100, 1), (50, 0)):
            self.assertEqual(tokens.read(begin, count).tolist(), list(range(begin, begin + count)))
        with self.assertRaises(JobError):
            tokens.read(100, 2)

    def test_targets_are_one_token_ahead(self):
        inputs, targets = Samples(self.job.valid, 10).read(np.array([2, 0]))
        self.assertEqual(inputs.tolist(), [list(range(90, 100)), list(range(70, 80))])
        self.assertEqual(targets.tolist(), [list(range(91, 101)), list(range(71, 81))])
        targets[:] = -100
        self.assertEqual(inputs[0, 1], 91, "targets can be changed without inputs")

    def test_too_few_tokens_are_an_error(self):
        few = TokenSet(self.job.valid.segments, 71, 3)
        with self.assertRaisesRegex(JobError, "3 samples take 102 tokens; there are 101"):
            Samples(few, 10)

    def test_a_token_of_three_bytes_is_an_error(self):
        with self.assertRaisesRegex(JobError, "3 bytes"):
            Tokens((Segment(Path("x"), 0, 1, 3),))

    def test_readers_share_a_batch_at_any_step(self):
        for step in (0, 1, 5, 1000):
            found = []
            for share in (range(0, 2), range(2, 4)):
                for inputs, targets in StepReader(self.job, share).micro_batches(step):
                    self.assertEqual(inputs.shape, (1, 10))
                    self.assertEqual(targets[0, 0], inputs[0, 0] + 1)
                    found.append(int(inputs[0, 0]) // 10)
            self.assertEqual(found, [shuffled_sample(7, 7, step * 4 + place) for place in range(4)])

    def test_validation_takes_every_sample_once_and_all_readers_as_many_batches(self):
        self.assertEqual(self.job.valid_samples, 3)
        for size, multiple in ((1, 1), (2, 1), (4, 1), (1, 4)):
            counted, batches = [], []
            for start in (0, 2):
                reader = job(Path(self.folder.name), share={"start": start, "end": start + 2})
                taken = list(validation_batches(reader, size, multiple))
                batches.append(len(taken))
                for inputs, _, count in taken:
                    self.assertEqual(len(inputs), size)
                    counted += [int(row[0]) for row in inputs[:count]]
            self.assertEqual(sorted(counted), [70, 80, 90])
            self.assertEqual(batches[0], batches[1])
            self.assertEqual(batches[0] % multiple, 0)


class Jobs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.job = job(Path(folder.name))

    def test_the_last_step_validates_and_saves(self):
        self.assertEqual([step for step in range(1, 9) if self.job.validates_after(step)], [3, 6, 8])
        self.assertEqual([step for step in range(1, 9) if self.job.saves_after(step)], [5, 8])

    def test_a_reader_knows_its_place(self):
        self.assertEqual((self.job.reader, self.job.readers), (0, 2))

    def test_a_job_without_steps_is_refused(self):
        self.job.assignment["until"]["steps"] = None
        with self.assertRaisesRegex(JobError, "objective.stop.steps"):
            _ = self.job.steps


class LearningRate(unittest.TestCase):
    def test_it_rises_to_the_peak_and_falls_to_the_final_fraction(self):
        for kind in ("cosine", "linear"):
            schedule = Schedule(kind, peak=2.0, final_fraction=0.1, warmup=10, total=100)
            rates = [schedule.rate(step) for step in range(101)]
            for step, rate in ((0, 0.2), (9, 2.0), (10, 2.0), (99, 0.2), (100, 0.2)):
                self.assertAlmostEqual(rates[step], rate, places=12)
            self.assertTrue(all(rates[step] > rates[step + 1] for step in range(10, 99)))

    def test_fixed_points(self):
        # By the formula of protocol/src/learning_rate_warmup_and_decay.rs.
        cosine = Schedule("cosine", peak=1.0, final_fraction=0.1, warmup=10, total=100)
        self.assertAlmostEqual(cosine.rate(54), 0.557941816289, places=9)
        linear = Schedule("linear", peak=1.0, final_fraction=0.0, warmup=0, total=5)
        self.assertEqual([linear.rate(step) for step in range(6)], [1.0, 0.75, 0.5, 0.25, 0.0, 0.0])

    def test_a_constant_rate_stays_at_the_peak_after_the_warm_up(self):
        schedule = Schedule("constant", peak=3.0, final_fraction=0.1, warmup=2, total=4)
        self.assertEqual([schedule.rate(step) for step in (0, 1, 2, 9)], [1.5, 3.0, 3.0, 3.0])

    def test_a_schedule_shorter_than_its_warm_up(self):
        schedule = Schedule("cosine", peak=1.0, final_fraction=0.1, warmup=1, total=1)
        self.assertEqual(schedule.rate(0), 1.0)
        self.assertAlmostEqual(schedule.rate(2), 0.1)


class LastWords(unittest.TestCase):
    def test_the_last_line_names_the_error(self):
        # torch.distributed wraps the hook as this program does, and drops what is left in its buffer.
        program = """
import io, sys
from dtrain_engines import job, last_words
last_words.install()
hook = sys.excepthook
def wrapped(*error):
    sys.stderr = io.StringIO()
    hook(*error)
sys.excepthook = wrapped
raise {}
"""
        cases = {
            "RuntimeError('CUDA out of memory.\\n  Tried')": "RuntimeError: CUDA out of memory. Tried",
            "job.JobError('use adamw')": "use adamw",
            "ValueError(500 * 'a' + 500 * 'b')": f"ValueError: {300 * 'a'} … {300 * 'b'}",
            "RuntimeError(\"can't allocate memory\")": "out of memory: can't allocate memory",
        }
        for error, words in cases.items():
            environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
            command = [sys.executable, "-c", program.format(error)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            # dtrain does not start a rank again that cannot run its job.
            self.assertEqual(done.returncode, 126 if "JobError" in error else 1)
            self.assertEqual(done.stderr.splitlines()[-1], words)


if __name__ == "__main__":
    unittest.main()
