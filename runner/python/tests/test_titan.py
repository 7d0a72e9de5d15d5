"""Tests of the parts for torchtitan. They need torchtitan; no accelerator."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_engines import job  # noqa: E402

PROGRAM = """
import torch
from dtrain_engines import titan
norm, head = torch.nn.LayerNorm(4), torch.nn.Linear(4, 2, bias=False)
parts = [torch.nn.ModuleDict({"norm": norm}), torch.nn.ModuleDict({"lm_head": head})]
head(norm(torch.ones(3, 4))).sum().backward()
titan.check_gradients(parts)
norm.bias.requires_grad_(False).grad = None
titan.check_gradients(parts)
norm.weight.grad = None
titan.check_gradients(parts)
"""


class Gradients(unittest.TestCase):
    def test_a_weight_without_a_gradient_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            job(Path(folder))
            variables = {"PYTHONPATH": str(PACKAGES), "DTRAIN_ENGINE_JOB": str(Path(folder) / "job.json")}
            command = [sys.executable, "-c", PROGRAM]
            done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        self.assertEqual(done.returncode, 126, done.stderr)
        last = done.stderr.splitlines()[-1]
        self.assertEqual(last, "torchtitan computed no gradient of norm.weight in this layout: choose another")


if __name__ == "__main__":
    unittest.main()
