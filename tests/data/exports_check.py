"""Reads exports back with the packages they are for, and compares every point with what `dtrain show --json --series all` says.

    exports_check.py FOLDER    FOLDER: shown.json and one export in each format, of one trial

Values have to be equal bit for bit; those of TensorBoard are the nearest 32-bit floats. Prints a line for each format.
"""

import csv
import json
import math
import os
import pathlib
import struct
import sys

folder = pathlib.Path(sys.argv[1])
shown = json.loads((folder / "shown.json").read_text())
trial = shown["trial"]
label, uid = trial["row"]["label"], trial["row"]["id"]
params = {param["path"]: param["value"] for param in trial["params"]}
series = {
    (one["key"], one["rank"]): [(point["step"], point["at_ms"], float(point["value"])) for point in one["points"]]
    for one in shown["series"]
}
assert any(math.isnan(value) for points in series.values() for _, _, value in points)


def bits(value):
    return "nan" if math.isnan(value) else struct.pack("<d", value)


def same(found, wanted, of):
    found, wanted = ([(*point[:-1], bits(point[-1])) for point in points] for points in (found, wanted))
    assert found == wanted, f"{of}: {found[:3]} … is not {wanted[:3]} …"


def name(key, rank):
    return key if rank == 0 else f"{key}/rank_{rank}"


def single(value):
    """The nearest 32-bit float; infinity where there is none."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    read = EventAccumulator(str(folder / "runs" / label), size_guidance={"scalars": 0}).Reload()
    assert sorted(read.Tags()["scalars"]) == sorted(name(*of) for of in series)
    for of, points in series.items():
        found = [(event.step, round(event.wall_time * 1000), event.value) for event in read.Scalars(name(*of))]
        same(found, [(step, at_ms, single(value)) for step, at_ms, value in points], of)
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    told = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert told == {name: value for name, value in params.items() if isinstance(value, (bool, int, float, str))}
    content = read.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info.status == 1
    assert b"a note" in read.Tensors("dtrain/notes")[0].tensor_proto.string_val[0]


def mlflow():
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    [experiment] = [one for one in client.search_experiments() if one.name == trial["row"]["recipe"]]
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == (label, "FINISHED")
    assert (run.info.start_time, run.info.end_time) == (trial["row"]["started_ms"], trial["row"]["ended_ms"])
    assert sorted(run.data.metrics) == sorted(name(*of) for of in series)
    for of, points in series.items():
        found = client.get_metric_history(run.info.run_id, name(*of))
        same(sorted((one.step, one.timestamp, one.value) for one in found), points, of)
        assert bits(run.data.metrics[name(*of)]) == bits(points[-1][2]), of
    told = run.data.params.items()
    assert {key: text if isinstance(params[key], str) else json.loads(text) for key, text in told} == params
    tags = run.data.tags
    assert (tags["keep"], tags["dtrain.trial"], tags["mlflow.note.content"]) == ("yes", uid, "a note")


def wandb():
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    [path] = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    records = []
    while (data := store.scan_data()) is not None:
        records.append(Record.FromString(data))
    assert [record.num for record in records] == list(range(1, len(records) + 1))
    assert [records[0].WhichOneof("record_type"), records[-1].WhichOneof("record_type")] == ["header", "exit"]
    run, end = records[1].run, records[-1].exit
    assert (run.run_id, run.display_name, run.project) == (uid.lower(), label, trial["row"]["recipe"])
    assert (run.notes, list(run.tags), end.exit_code) == ("a note", ["keep"], 0)
    config = {".".join(item.nested_key): json.loads(item.value_json) for item in run.config.update}
    assert {key: config[key] for key in params} == params
    found, before = {}, -1
    for record in records:
        if record.WhichOneof("record_type") != "history":
            continue
        row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        assert row["_step"] == record.history.step.num > before and row["_timestamp"] > 1.7e9
        before = row["_step"]
        for key, value in row.items():
            found.setdefault(key, []).append((before, float(value)))
    for of, points in series.items():
        same(found[name(*of)], [(step, value) for step, _, value in points], of)


def table(rows):
    """Rows of the last attempt that has a step, by series; there is one trial."""
    found = {}
    for of, key, rank, attempt, step, at_ms, value in rows:
        assert of == uid
        found.setdefault((key, rank), {})[step] = (attempt, step, at_ms, value)
    assert found.keys() == series.keys()
    for of, points in series.items():
        same([row[1:] for _, row in sorted(found[of].items())], points, of)
    assert {row[0] for row in found["val/f1", 0].values()} == {1, 2}


def csv_():
    with open(folder / "all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table([(r["trial"], r["key"], *(int(r[c]) for c in ("rank", "attempt", "step", "at_ms")), float(r["value"])) for r in rows])
    # Every attempt is there, also what the last one did once more.
    assert [int(r["attempt"]) for r in rows if r["key"] == "val/f1"] == [1] * 7 + [2] * 5


def jsonl():
    lines = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
    about = lines.pop(0)
    assert (about["record"], about["label"], about["params"], about["tags"]) == ("trial", label, params, {"keep": "yes"})
    table([(*(one[c] for c in ("trial", "key", "rank", "attempt", "step", "at_ms")), float(one["value"])) for one in lines])


def parquet():
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(folder / "all.parquet")
    columns = file.read().to_pydict()
    assert list(columns) == ["trial", "key", "rank", "attempt", "step", "at_ms", "value"]
    table(list(zip(*columns.values())))
    [about] = json.loads(file.metadata.metadata[b"dtrain.trials"])
    assert (about["label"], about["params"], about["status"]) == (label, params, "completed")


def prometheus():
    from prometheus_client.parser import text_string_to_metric_families

    families = {family.name: family for family in text_string_to_metric_families((folder / "page.prom").read_text())}
    assert all(family.documentation and family.type in ("gauge", "counter") for family in families.values())
    found = {(one.labels["key"], int(one.labels["rank"])): one.value for one in families["dtrain_metric"].samples}
    assert found.keys() == series.keys()
    for of, points in series.items():
        assert bits(found[of]) == bits(points[-1][2]), of
    of_trial = {"trial": label}
    assert [one.labels["rank"] for one in families["dtrain_rank_memory_bytes"].samples] == ["0", "1"]
    [step] = families["dtrain_trial_step"].samples
    assert (step.labels, step.value) == (of_trial, float(trial["row"]["step"]))
    status = {one.labels["status"]: one.value for one in families["dtrain_trial_status"].samples}
    assert status.pop("completed") == 1 and set(status.values()) == {0}
    assert families["dtrain_trial_attempts"].samples[0].value == len(trial["attempts"])


for check in (tensorboard, mlflow, wandb, csv_, jsonl, parquet, prometheus):
    check()
    print(f"{check.__name__.strip('_')} ok", flush=True)
