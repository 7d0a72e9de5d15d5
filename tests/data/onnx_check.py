#!/usr/bin/env python3
"""Compares the logits of an ONNX file that `dtrain model export` wrote with those of `dtrain model predict --json`.

    onnx_check.py MODEL DATA TARGET PREDICTIONS

DATA is an IDX file of images, or a CSV file whose column TARGET is no input. PREDICTIONS are JSON lines with all classes of
each sample. Prints the number of samples and the largest difference.

Needs onnx, onnxruntime and numpy, which `tests/run interop` installs.
"""

import csv
import datetime
import json
import sys

import numpy
import onnx
import onnxruntime


def days(text):
    time = datetime.datetime.fromisoformat(text)
    time = time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)
    return time.timestamp() / 86400


EMPTY = {"", "na", "n/a", "nan", "null", "none", "?"}


def inputs(row, columns, separator):
    """What the model reads of a row of a table, as docs/using-models.md says."""
    numbers = []
    for column in columns:
        cell = row[column["name"]].strip()
        if "categories" in column:
            numbers += [float(cell == category) for category in column["categories"]]
        elif cell.lower() in EMPTY:
            numbers.append(0.0)
        else:
            cell = cell if separator == "," else cell.replace(",", ".")
            value = days(cell) if column.get("date") else float(cell)
            numbers.append((value - column["mean"]) / column["deviation"])
    return numbers


def samples(path, target, preprocessing):
    """What the model reads, one row for each sample."""
    if path.endswith(".csv"):
        with open(path, newline="", encoding="utf-8-sig") as file:
            separator = ";" if ";" in file.readline() else ","
            file.seek(0)
            rows = list(csv.DictReader(file, delimiter=separator))
        columns = preprocessing["columns"]
        assert target not in [column["name"] for column in columns]
        values = [inputs(row, columns, separator) for row in rows]
        return numpy.array(values, dtype=numpy.float32)
    with open(path, "rb") as file:
        head = file.read(4)
        sides = numpy.frombuffer(file.read(4 * head[3]), dtype=">u4").astype(int)
        pixels = numpy.frombuffer(file.read(), dtype=numpy.uint8)
    return (pixels.reshape(sides[0], -1) / preprocessing["divide_by"]).astype(numpy.float32)


def main(model, data, target, predictions):
    onnx.checker.check_model(onnx.load(model), full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    names = json.loads(metadata["classes"]) if "classes" in metadata else None
    values = samples(data, target, json.loads(metadata["preprocessing"]))
    (wanted,) = session.get_inputs()
    assert wanted.name == "input" and isinstance(wanted.shape[0], str), (wanted.name, wanted.shape)
    values = values.reshape(-1, *wanted.shape[1:])
    (found,) = session.run(["logits"], {"input": values})
    alone = session.run(["logits"], {"input": values[:1]})[0]
    assert numpy.allclose(alone, found[:1], atol=1e-5), "a batch of one gives the same"
    with open(predictions) as file:
        lines = [json.loads(line) for line in file]
    assert len(lines) == len(found), f"{len(lines)} predictions for {len(found)} samples"
    largest = 0.0
    for line, logits in zip(lines, found):
        assert len(line["classes"]) == len(logits), line
        for one in line["classes"]:
            place = names.index(one["class"]) if names else int(one["class"])
            largest = max(largest, abs(float(logits[place]) - one["logit"]))
    print(len(found), largest)


if __name__ == "__main__":
    main(*sys.argv[1:])
