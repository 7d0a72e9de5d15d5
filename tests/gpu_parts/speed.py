"""The parts about speed and memory, each beside what the device could do."""

import csv
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

from . import roofline
from .session import Hung, Skip, for_cuda

# Seconds that kernels may be tuned in all, in each process of a part that measures speed.
TUNING = 25


def for_a_fast_device(part, name):
    """On other devices than CUDA's a decoder of that size would take all the time; whoever names the part has a reason."""
    if not part.session.is_cuda and name not in part.session.asked:
        raise Skip(f"it is for NVIDIA's GPUs; `--only {name}` tries it")


def steps(part, model, precision, count, *more, label=None):
    """Steps of a named decoder; its speed for the page."""
    label = label or f"{model} in {precision}"
    found = part.doctor("steps", "--model", model, "--precision", precision, "--steps", str(count), *more, label=label)
    series = (found or {}).get("steps")
    if not series or not series["series"]:
        return None
    taken = series["series"]
    values = [step["loss"] for step in taken]
    if any(not math.isfinite(value) or value > 1e300 for value in values):
        part.differs.append(f"{label}: the loss is no number")
    elif len(values) > 2 and min(values[1:]) >= values[0]:
        part.differs.append(f"{label}: the loss does not fall: {values[0]:.3f} to {values[-1]:.3f}")
    else:
        part.held.append(f"{label}: {series['tokens_per_second']:,.0f} tokens/s, loss {values[0]:.3f} to {values[-1]:.3f}")
    return series


def speed_row(session, label, series):
    """A row of the table of speeds, with the share of what the device could do."""
    peaks = roofline.peak(session.found["name"], session.products)
    shape, batch, precision = series["decoder"], series["batch"], series["precision"]
    seconds = batch * shape["context"] / series["tokens_per_second"]
    rate = roofline.rate(peaks, precision)
    used = roofline.step_flops(shape, series["parameters"], batch) / seconds / rate if rate else None
    bound = roofline.step_seconds(peaks, shape, series["parameters"], batch, precision)
    held = series["series"][-1]["memory_reserved_bytes"]
    return [
        label, precision, f"{series['tokens_per_second']:,.0f}", f"{seconds * 1e3:.1f} ms",
        f"{bound * 1e3:.1f} ms" if bound else "", f"{100 * used:.1f} %" if used else "",
        f"{series['series'][0]['seconds']:.1f} s", f"{held / 2**30:.2f} GiB" if held else "",
    ]


SPEED_TITLES = ["decoder", "products", "tokens/s", "step", "at least", "of the peak", "first step", "held"]


def speed_of(model, count, untuned):
    def work(part):
        for_a_fast_device(part, model)
        session, rows = part.session, []
        precision = "bf16" if "bf16" in session.found["precisions"] else "f32"
        # What was measured stays on the page where a later command hangs.
        part.tables.append((f"training of {model}", SPEED_TITLES, rows))
        for tuning in [0, TUNING] if untuned else [TUNING]:
            session.tuning = tuning
            label = f"{model}, {'tuned' if tuning else 'not tuned'}"
            series = steps(part, model, precision, count if tuning else max(3, count // 4), label=label)
            if (chosen := (part.documents.get(label) or {}).get("tuning")) and chosen["tuned"] + chosen["untuned"]:
                part.held.append(
                    f"{label}: kernels chosen for {chosen['tuned']} products in {chosen['seconds']:.1f} s, "
                    f"{chosen['known']} known, {chosen['untuned']} without as time was over"
                )
            if series:
                rows.append(speed_row(session, label, series))
                others = [one for one in session.speeds if one["name"] != model]
                session.speeds = [*others, {"name": model, **{key: series[key] for key in KEPT}}]

    work.__doc__ = f"Steps of {model}: tokens a second, memory, and the share of the peak."
    return work


KEPT = ["decoder", "parameters", "batch", "precision", "tokens_per_second"]


def training(part):
    """The largest of some decoders that the device has room and time for."""
    if part.session.is_cuda and "training" not in part.session.asked:
        raise Skip("gpt2 and llama-1b are trained")
    found = part.doctor("training")
    rows = []
    for one in (found or {}).get("training", []):
        label = f"llama of {one['parameters'] / 1e6:.1f} M"
        rows.append([label, one["precision"], f"{one['tokens_per_second']:,.0f}", f"{one['step_seconds'] * 1e3:.1f} ms"])
        part.session.speeds.append({"name": label, **{key: one[key] for key in KEPT}})
    if rows:
        part.tables.append(("training", ["decoder", "products", "tokens/s", "step"], rows))


def profile(part):
    """Time and bytes of every kernel of one step, by Nsight Compute."""
    for_cuda(part)
    tool = part.session.tool("ncu")
    if not tool:
        raise Skip("there is no ncu; the CUDA toolkit has it")
    file = part.session.output / "kernels.csv"
    command = [tool, "--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none", "--print-units", "base"]
    command += ["--metrics", "gpu__time_duration.sum,dram__bytes.sum", "--csv", "--log-file", str(file)]
    try:
        part.doctor("steps", "--model", "gpt2", "--steps", "3", "--profile", tool=command, label="gpt2 under ncu")
    finally:
        kernels = by_kernel(file)
        total = sum(time for _, time, _ in kernels.values())
        rows = []
        for name, (count, time, moved) in sorted(kernels.items(), key=lambda item: -item[1][1])[:20]:
            speed = f"{moved / time / 1e3:.2f}" if time else ""
            rows.append([name, count, f"{time / 1e6:.2f} ms", f"{100 * time / total:.1f} %", f"{moved / 1e9:.2f} GB", speed])
        if rows:
            launches = sum(count for count, _, _ in kernels.values())
            title = f"kernels of a step of gpt2: {launches} launches, {total / 1e6:.1f} ms of the device"
            part.tables.append((title, ["kernel", "launches", "time", "", "moved", "TB/s"], rows))
    if not kernels:
        words = file.read_text(errors="replace") if file.exists() else ""
        reason = next((line.replace("=", "").strip() for line in words.splitlines() if "ERR" in line or "rror" in line), "it wrote no kernels")
        part.failed.clear()
        raise Skip(f"ncu does not work here: {reason}")


def by_kernel(file):
    """Launches, nanoseconds and bytes by the name of a kernel, without its types and numbers."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    begin = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    kernels = defaultdict(lambda: [0, 0.0, 0.0])
    for row in csv.DictReader(lines[begin:]) if begin is not None else []:
        name = re.split(r"_kernel|_entry|_c_|_f_|_i_|_t_", row.get("Kernel Name") or "?")[0][:48]
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        if row.get("Metric Name") == "gpu__time_duration.sum":
            kernels[name][0] += 1
            kernels[name][1] += value
        else:
            kernels[name][2] += value
    return dict(kernels)


def products(part):
    """Matrix products beside what the device could do."""
    found = (part.doctor("products") or {}).get("products", [])
    part.session.products = found
    peaks, rows = roofline.peak(part.session.found["name"], found), []
    for one in found:
        bound = roofline.product_seconds(peaks, one["size"], one["precision"])
        share = f"{100 * bound / one['seconds']:.0f} %" if bound else ""
        rows.append([one["precision"], one["size"], f"{one['gflops'] / 1e3:.2f}", f"{one['seconds'] * 1e6:.0f} µs", share])
    if rows:
        part.tables.append((f"matrix products; peak of {peaks['of']}", ["products", "side", "TFLOP/s", "time", "of the peak"], rows))


def attention(part):
    """Attention beside what the device could do."""
    found = (part.doctor("attention") or {}).get("attention", [])
    peaks, rows = roofline.peak(part.session.found["name"], part.session.products), []
    for one in found:
        bound = roofline.attention_seconds(peaks, one)
        share = f"{100 * bound / one['both_seconds']:.0f} %" if bound else ""
        both = f"{one['both_seconds'] * 1e6:.0f} µs"
        rows.append([one["precision"], one["length"], f"{one['gflops'] / 1e3:.2f}", f"{one['forward_seconds'] * 1e6:.0f} µs", both, share])
    if rows:
        titles = ["products", "tokens", "TFLOP/s", "forward", "both ways", "of the peak"]
        part.tables.append((f"attention of {found[0]['heads']} heads; peak of {peaks['of']}", titles, rows))


def memory(part):
    """Whether memory grows from step to step."""
    model = "gpt2" if part.session.is_cuda else "tiny"
    precision = "bf16" if "bf16" in part.session.found["precisions"] else "f32"
    series = steps(part, model, precision, 60, "--batch", "2", label="60 steps")
    part.held.clear()
    taken = (series or {"series": []})["series"]
    rows = [[at + 1, *[gibibytes(taken[at][key]) for key in MEMORY]] for at in (0, 1, 9, 29, 59) if at < len(taken)]
    if not taken or taken[-1][MEMORY[0]] is None:
        if not part.failed:
            raise Skip("the device does not tell its memory")
        return
    part.tables.append((f"memory over steps of {model}", ["step", "used", "held"], rows))
    for key, word in zip(MEMORY, ("used", "held")):
        early, late = taken[min(9, len(taken) - 1)][key], taken[-1][key]
        words = f"memory {word} after step 10 is {gibibytes(early)}, after step {len(taken)} {gibibytes(late)}"
        # A page more is no leak.
        (part.held if late <= 1.02 * early + 2**21 else part.differs).append(words)


MEMORY = ["memory_used_bytes", "memory_reserved_bytes"]


def gibibytes(size):
    return "" if size is None else f"{size / 2**30:.3f} GiB"


def pytorch(part):
    """The decoders that dtrain trained, in PyTorch on the same device, eager and compiled."""
    session = part.session
    if session.without_pytorch:
        raise Skip("it was not asked for")
    asked = [one for one in session.speeds if one["precision"] in ("f32", "bf16")]
    if not asked:
        raise Skip("dtrain measured no training")
    if session.device == "wgpu":
        raise Skip("PyTorch computes on no device of Vulkan")
    device = f"cuda:{session.index}" if session.is_cuda else "cpu"
    script = Path(__file__).with_name("pytorch.py")
    try:
        ended = part.run([sys.executable, str(script), device, json.dumps(asked)])
        said, failure = ended.stdout, ended.words() if ended.code else None
    except Hung:
        said, failure = part.log.read_text(errors="replace"), None
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"')]
    part.documents["pytorch"] = lines
    absent = next((line["absent"] for line in lines if "absent" in line), None)
    if absent:
        raise Skip(absent)
    rows = []
    for line in [line for line in lines if "how" in line]:
        own = next(one for one in asked if (one["name"], one["precision"]) == (line["name"], line["precision"]))
        speed = line.get("tokens_per_second")
        ratio = f"{own['tokens_per_second'] / speed:.2f}" if speed else line.get("failure", "")
        memory = gibibytes(line.get("memory_peak_bytes"))
        rows.append([line["name"], line["precision"], line["how"], f"{speed:,.0f}" if speed else "", ratio, memory])
    if rows:
        version = next((f"PyTorch {line['version']} on {line['device']}" for line in lines if "version" in line), "PyTorch")
        part.tables.append((version, ["decoder", "products", "", "tokens/s", "dtrain/PyTorch", "memory"], rows))
    if failure:
        part.failed.append(f"PyTorch: {failure}")
