"""The package for a machine that has nothing but Python and a driver: program, compiled kernels, and the script."""

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from . import processes

# The largest package, and the name of the folder in it.
LARGEST, NAME = 50 << 20, "dtrain-gpu"

# Seconds that one filling of the kernels may take, and those of them in which the candidates for matrix products are compiled.
FILLING, CANDIDATES = 900, 600

# What is examined on the stand-in: the arguments of `dtrain doctor --device cuda`.
FILLED = [
    ["--only", "steps", "--model", "tiny", "--precision", "f32", "--steps", "2"],
    ["--only", "steps", "--model", "tiny", "--precision", "bf16", "--steps", "2"],
    ["--only", "parity"],
    ["--only", "steps", "--model", "gpt2", "--precision", "bf16", "--steps", "2"],
    ["--only", "steps", "--model", "llama-1b", "--precision", "bf16", "--steps", "1"],
    ["--only", "products"],
    ["--only", "attention"],
]


def write(file, program, kernels, capability, here, say):
    """Writes the package. Returns the exit code."""
    processes.adopt()
    with tempfile.TemporaryDirectory(prefix="dtrain-package-") as folder:
        work = Path(folder)
        small = work / "dtrain"
        shutil.copy(program, small)
        if not shutil.which("strip"):
            say("there is no `strip`; the program travels with the names of its functions")
        elif subprocess.run(["strip", str(small)], stderr=subprocess.DEVNULL).returncode:
            # What is no program, but a script that starts one, is packed as it is.
            shutil.copy(program, small)
        if kernels is None:
            kernels = work / "kernels"
            kernels.mkdir()
            fill(kernels, program, capability, here, work, say)
        size = sum(file.stat().st_size for file in kernels.rglob("*") if file.is_file())
        say(f"packing a program of {small.stat().st_size / 2**20:.1f} MiB and {size / 2**20:.1f} MiB of kernels")
        beside = file.with_name(file.name + ".new")
        with tarfile.open(beside, "w:xz", preset=9) as archive:
            archive.add(small, f"{NAME}/dtrain")
            archive.add(here / "gpu", f"{NAME}/gpu")
            for module in sorted((here / "gpu_parts").glob("*.py")):
                archive.add(module, f"{NAME}/gpu_parts/{module.name}")
            archive.add(kernels, f"{NAME}/kernels")
        size = beside.stat().st_size
        if size >= LARGEST:
            beside.unlink()
            say(f"the package would have {size / 2**20:.1f} MiB, and {LARGEST >> 20} are allowed")
            return 1
        os.replace(beside, file)
    say(f"{file} has {size / 2**20:.1f} MiB; there: tar xf {file.name} && {NAME}/gpu --minutes 7")
    return 0


def fill(kernels, program, capability, here, work, say):
    """Compiles kernels by NVRTC on the stand-in for a driver, where the repository has both; nothing is computed.

    Every candidate for a matrix product is compiled, and what the stand-in chose among them is thrown away."""
    source = here / "data/cuda/driver.c"
    toolkits = sorted((here.parent / "target/test-data/cuda/lib").glob("*/site-packages/nvidia/cu13"))
    toolkits = [folder for folder in toolkits if (folder / "lib/libnvrtc.so.13").exists()]
    if not source.exists() or not toolkits or not shutil.which("cc"):
        say("kernels are not compiled: this needs cc, and NVRTC, which `TESTS_CARGO_OPTIONS='--features cuda' tests/run cuda` installs")
        return
    driver = work / "driver"
    driver.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(driver / "libcuda.so"), str(source)], check=True)
    (driver / "libnvrtc.so").symlink_to(toolkits[0] / "lib/libnvrtc.so.13")
    smi = driver / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 81920\n", encoding="utf-8")
    smi.chmod(0o700)

    def before(variable, *folders):
        return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(variable)])])

    environment = {
        "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", driver, toolkits[0] / "lib"), "PATH": before("PATH", driver),
        "CUDA_PATH": str(toolkits[0]), "STAND_IN_SM": str(capability), "DTRAIN_TUNING_SECONDS": str(CANDIDATES),
        "DTRAIN_KERNEL_CACHE": str(kernels), "DTRAIN_STATE": str(work / "state"), "XDG_CONFIG_HOME": str(work / "config"),
    }
    for arguments in FILLED:
        output = work / "found.json"
        command = [program, "doctor", "--json", "--device", "cuda", "--output", str(output), *arguments]
        ended = processes.run(command, FILLING, work, work / "log", environment)
        size = sum(file.stat().st_size for file in kernels.rglob("*") if file.is_file())
        # Values are wrong there: 4 is what an examination that compares them ends with.
        how = "done" if ended.code in (0, 4) else ended.words()
        say(f"compiling kernels of `{' '.join(arguments)}`: {how}; {ended.seconds:.0f} s, {size / 2**20:.1f} MiB so far")
    for choices in kernels.glob("products-*.json"):
        choices.unlink()
