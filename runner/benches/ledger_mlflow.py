"""Keeps points and lists runs with MLflow on SQLite: python ledger_mlflow.py POINTS RUNS. Prints one JSON object."""

import json
import logging
import os
import sys
import tempfile
import time

logging.disable(logging.WARNING)

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

BATCH = 1000


def written():
    with open("/proc/self/io", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def size(folder):
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)


def main():
    points, runs = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
        experiment = client.create_experiment("bench", artifact_location=f"file://{folder}/artifacts")
        run = client.create_run(experiment).info.run_id
        before, wrote, begun = size(folder), written(), time.perf_counter()
        for first in range(0, points, BATCH):
            client.log_batch(run, metrics=[Metric("loss", 1.0 / (i + 1), 1_700_000_000_000 + i, i) for i in range(first, first + BATCH)])
        seconds, wrote = time.perf_counter() - begun, written() - wrote
        after = size(folder)
        for _ in range(runs - 1):
            client.create_run(experiment)
        begun, listed, token = time.perf_counter(), 0, None
        while True:
            page = client.search_runs([experiment], max_results=1000, page_token=token)
            listed, token = listed + len(page), page.token
            if not token:
                break
        listing = time.perf_counter() - begun
        assert listed == runs, (listed, runs)
        print(
            json.dumps(
                {
                    "points_a_second": points / seconds,
                    "bytes_a_point": (after - before) / points,
                    "written_a_point": wrote / points,
                    "listing_ms": 1e3 * listing,
                }
            )
        )


main()
