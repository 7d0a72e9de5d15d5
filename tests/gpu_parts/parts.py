"""The parts of the examination, in the order in which they run: what must hold first comes first. Those about speed are in `speed`."""

import json
import os
import platform
import re
import sys

from . import speed
from .session import Skip, for_cuda


# Checks of `dtrain doctor` that have nothing to do with devices.
OF_HOSTS = {"state folder", "file system", "free disk", "history", "shared memory", "open files", "git", "clock"}


def machine(part):
    """What machine this is, and whether there is such a device at all."""
    session = part.session
    facts = {"system": platform.platform(), "python": sys.version.split()[0]}
    tools = {name: session.tool(name) for name in ("nvidia-smi", "nvcc", "ncu", "compute-sanitizer")}
    facts |= {name: path or "not found" for name, path in tools.items()}
    if tools["nvidia-smi"]:
        fields = "index,name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit"
        gpus = part.run([tools["nvidia-smi"], f"--query-gpu={fields}", "--format=csv,noheader"], limit=15)
        facts["GPUs"] = "; ".join(gpus.stdout.strip().splitlines()) or gpus.words()
        release = re.search(r"CUDA(?: UMD)? Version: *([0-9.]+)", part.run([tools["nvidia-smi"]], limit=15).stdout)
        facts["CUDA of the driver"] = release[1] if release else "unknown"
    if tools["nvcc"]:
        facts["nvcc"] = (part.run([tools["nvcc"], "--version"], limit=15).stdout.strip().splitlines() or ["says nothing"])[-1]
    checks = part.run([session.program, "doctor", "--json"], limit=30)
    try:
        found = json.loads(checks.stdout)
        part.documents["doctor"] = found
        for check in found.get("checks", []):
            if check["verdict"] == "good" and check["name"] in OF_HOSTS:
                continue
            facts[check["name"]] = check["found"] + ("" if check["verdict"] == "good" else f" ({check['verdict']}: {check.get('fix')})")
    except json.JSONDecodeError:
        part.failed.append(f"dtrain doctor: {checks.words()}")
    found = part.doctor("copies,links", label="the device")
    if found:
        session.found = found
        memory = f"{found['memory_bytes'] / 2**30:.1f} GiB" if found["memory_bytes"] else "unknown"
        part.held.append(f"{found['name']} opens; memory {memory}, driver {found['driver'] or 'unknown'}")
        facts |= {"device": found["name"], "kernels for": found["target"] or "the processor", "products in": ", ".join(found["precisions"])}
        rows = [[f"{one['bytes'] >> 20} MiB", f"{one['to_device']:.1f}", f"{one['to_host']:.1f}"] for one in found["copies"]]
        if rows:
            part.tables.append(("copies, GB/s", ["size", "to the device", "to the host"], rows))
    part.tables.insert(0, ("machine", ["", ""], [[name, value] for name, value in facts.items()]))


def tiny(part):
    """Twenty steps of a tiny llama in each precision, beside the same ones on the host in f32."""
    steps = ["--model", "tiny", "--steps", "20"]
    host = part.doctor("steps", *steps, "--precision", "f32", device="cpu", label="host f32")
    wanted = losses(host)
    rows = []
    for precision in [one for one in ("f32", "bf16") if one in part.session.found["precisions"]]:
        found = losses(part.doctor("steps", *steps, "--precision", precision, label=precision))
        if wanted and found:
            allowed = 2e-2 if precision == "bf16" else 2e-3
            part.compare(f"tiny llama in {precision}", found, wanted, allowed)
            rows += [[precision, step, f"{found[step]:.5f}", f"{wanted[step]:.5f}"] for step in (1, 2, 5, 10, 20) if step in found]
    if rows:
        part.tables.append(("losses", ["products", "step", "device", "host"], rows))


def losses(found):
    """Losses by step of a part `steps`."""
    series = ((found or {}).get("steps") or {"series": []})["series"]
    return {at + 1: step["loss"] for at, step in enumerate(series)}


def memcheck(part):
    """Three steps under NVIDIA's checker of memory accesses."""
    for_cuda(part)
    tool = part.session.tool("compute-sanitizer")
    if not tool:
        raise Skip("there is no compute-sanitizer; the CUDA toolkit has it")
    log = part.session.output / "memcheck.txt"
    command = [tool, "--tool", "memcheck", "--target-processes", "all", "--log-file", str(log)]
    part.doctor("steps", "--model", "tiny", "--steps", "3", tool=command, label="under memcheck")
    told = log.read_text(errors="replace") if log.exists() else ""
    counts = [int(count) for count in re.findall(r"ERROR SUMMARY: (\d+) error", told)]
    if not counts or "Device not supported" in told:
        words = next((line.replace("=", "").strip() for line in told.splitlines() if "rror" in line), "it wrote no summary")
        part.failed.clear()
        raise Skip(f"compute-sanitizer does not work here: {words}")
    if sum(counts):
        first = next((line.replace("=", "").strip() for line in told.splitlines() if "Invalid" in line or "Error" in line), "see memcheck.txt")
        part.failed.append(f"compute-sanitizer found {sum(counts)} errors; the first: {first}")
    else:
        part.held.append("compute-sanitizer found no error in three steps")


def parity(part):
    """Every family, precision and shape beside the host."""
    rows = []
    found = part.doctor("parity") or {"parity": []}
    for one in found["parity"]:
        is_within = one["loss_difference"] <= one["loss_tolerance"] and one["gradient_difference"] <= one["gradient_tolerance"]
        shown = [number(one[key]) for key in ("loss_difference", "loss_tolerance", "gradient_difference", "gradient_tolerance")]
        words = f"{one['family']} in {one['precision']}: losses {shown[0]} ({shown[1]} allowed), gradients {shown[2]} ({shown[3]})"
        (part.held if is_within else part.differs).append(words + ("" if is_within else f", most in {one['parameter']}"))
        rows.append([one["family"], one["precision"], "agrees" if is_within else "DIFFERS", *shown, one["parameter"]])
    if rows:
        titles = ["family", "products", "", "losses", "allowed", "gradients", "allowed", "most in"]
        part.tables.append(("compared with the host", titles, rows))


def number(value):
    return f"{value:.1e}" if value < 1e300 else "not a number"


def nccl(part):
    """Every call of NCCL by one rank, and the end of its communicator."""
    for_cuda(part)
    found = part.doctor("nccl")
    rows = []
    for call in (found or {}).get("nccl", []):
        rows.append([call["call"], "agrees" if call["agrees"] else "DIFFERS", f"{call['values']:,}", f"{call['seconds'] * 1e3:.2f} ms"])
        if not call["agrees"]:
            part.differs.append(f"{call['call']}: {call['detail'] or 'took too long'}")
    if rows:
        part.tables.append(("NCCL with one rank", ["call", "", "values", "time"], rows))
        part.held.append(f"{sum(row[1] == 'agrees' for row in rows)} of {len(rows)} calls of NCCL")


def two_gpus(part):
    """Two ranks with a GPU each, which exchange gradients, and by NCCL where it is there."""
    for_cuda(part)
    devices = part.session.found["devices"]
    if devices < 2:
        raise Skip(f"there is {devices} GPU")
    trainings(part, {"data": ["layout.data=2"], "tensor": ["layout.tensor=2"], "pipeline": ["layout.pipeline=2"]}, {})


def two_ranks(part):
    """Two ranks that share the GPU, without NCCL, which refuses that."""
    layouts = {"zero": ["layout.data=2", "layout.zero=1", "layout.shard=2"], "pipeline": ["layout.pipeline=2"]}
    # Where the processor is the device, ranks have cores of their own; Mesa's device counts as one GPU here.
    environment = {"DTRAIN_NCCL": "off"}
    if part.session.is_cuda:
        environment["CUDA_VISIBLE_DEVICES"] = visible(part.session.index)
    trainings(part, layouts, environment)


def visible(index):
    """The GPU of this index among those that are visible."""
    named = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return named[index] if index < len(named) else str(index)


def trainings(part, layouts, environment):
    """Trains with one rank and with two in each layout, and compares the losses."""
    alone = part.train("one rank", ["cluster.ranks=1"], environment)
    for name, settings in layouts.items():
        found = part.train(f"two ranks, {name}", ["cluster.ranks=2", "layout.micro_batch=2", *settings], environment)
        if alone and found:
            part.compare(f"two ranks, {name}, beside one rank", found, alone, 1e-4 if part.session.device == "cpu" else 1e-3)


# Name, seconds of it in a run of seven minutes at most, whether kernels are tuned, and the work.
ALL = [
    ("machine", 30, False, machine),
    ("tiny", 45, False, tiny),
    ("memcheck", 75, False, memcheck),
    ("parity", 60, False, parity),
    ("nccl", 25, False, nccl),
    ("two-gpus", 45, False, two_gpus),
    ("gpt2", 75, True, speed.speed_of("gpt2", 20, True)),
    ("llama-1b", 75, True, speed.speed_of("llama-1b", 10, False)),
    ("training", 60, True, speed.training),
    ("profile", 100, True, speed.profile),
    ("products", 55, True, speed.products),
    ("attention", 55, True, speed.attention),
    ("memory", 45, False, speed.memory),
    ("pytorch", 140, True, speed.pytorch),
    ("two-ranks", 50, False, two_ranks),
]
NAMES = [name for name, *_ in ALL]
