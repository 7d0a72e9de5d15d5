"""Checks files that `dtrain plan --emit` wrote, with the parsers that read them.

    python tests/data/emit_check.py FOLDER …

Needs Python and bash only. With PyYAML it also reads YAML, and with an engine installed it hands the engine its file; what is
missing is said in a line that begins with `left out:`. Ends with 1 when something is wrong.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # beside the sources

from emit_report import check, installed, left_out, wrong
from emit_state import adapters, quantization, training_below_accelerate, training_optimizer

NAMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines.json")


def torchtitan(path, text):
    """Every name is one that torchtitan has, every keyword one that it takes."""
    with open(NAMES, encoding="utf-8") as file:
        names = json.load(file)["torchtitan"]["names"]
    module = ast.parse(text)
    origins = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("torchtitan"):
            origins.update({alias.name: node.module for alias in node.names})
    for name, origin in origins.items():
        is_known = any(known.split(".Config")[0] == f"{origin}:{name}" for known in names)
        check(is_known, path, f"torchtitan has no {origin}:{name}")
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    count = 0
    for node in calls:
        called = ast.unparse(node.func)
        origin = origins.get(called.split(".")[0])
        if origin is None:
            continue
        accepted = names.get(f"{origin}:{called}")
        check(accepted is not None, path, f"{origin}:{called} is not known")
        for keyword in node.keywords:
            count += 1
            check(keyword.arg in (accepted or []), path, f"{called} takes no `{keyword.arg}`")
    check(count > 40, path, f"only {count} keywords were checked")


class Texts:
    """Stands for a data set of the package `datasets`."""

    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(self.columns["text"])

    from_dict = classmethod(lambda cls, columns: cls(columns))


def torchtitan_documents(path, text):
    """Every rank that reads gets a document, from one file as from many, and no text is lost."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    found = next(node for node in functions if node.name == "documents")
    source = ast.unparse(found)
    readers = int(re.search(r"^READERS = (\d+)$", text, re.MULTILINE)[1])
    for files in (["all work and no play"], ["one", "a longer file"], [str(place) for place in range(readers + 1)]):
        names = {"READERS": readers, "FILES": files, "Dataset": Texts}
        names["load_dataset"] = lambda path, data_files, sample_by, split: Texts({"text": list(data_files)})
        exec(source, names)
        read = names["documents"]("text")["text"]
        check(len(read) >= readers, path, f"{len(read)} documents for {readers} ranks")
        check(len(read) >= len(files) and "".join(read) == "".join(files), path, f"of {files} it read {read}")
    datasets = installed("datasets")
    if datasets is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "one.txt")
        with open(name, "w", encoding="utf-8") as file:
            file.write("all work and no play makes a dull day\n" * 9)
        names = {"READERS": readers, "FILES": [name], "Dataset": datasets.Dataset}
        names["load_dataset"] = lambda *given, **more: datasets.load_dataset(*given, **more, cache_dir=folder)
        exec(source, names)
        read = names["documents"]("text")
        distributed = installed("datasets.distributed")
        for rank in range(readers):
            own = distributed.split_dataset_by_node(read, rank, readers)
            check(len(own[0]["text"]) > 0, path, f"rank {rank} reads nothing")


def torchtitan_itself(path):
    """torchtitan's own manager reads the module and builds its configuration."""
    if installed("torchtitan.config.manager") is None:
        return
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if "torchtitan.components.quantization" in text and installed("torchao") is None:
        return
    program = (
        "import sys; from torchtitan.config.manager import ConfigManager;"
        "c = ConfigManager().parse_args(['--module', 'dtrain_config', '--config', 'train']);"
        "c.model_spec.model.update_from_config(config=c); print(c.training.steps);"
        "a = c.model_spec.state_dict_adapter;"
        "print(a and a(c.model_spec.model, None).__class__.__name__)"
    )
    folder = os.path.dirname(path)
    environment = {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    check(done.returncode == 0, path, done.stderr[-1500:])
    adapter = "Llama3StateDictAdapter" if "Llama3Model" in text else "None"
    check(done.stdout.split()[-1:] == [adapter], path, f"its adapter of weights is {done.stdout}")


def deepspeed(path, text):
    config = json.loads(text)
    micro, passes = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    check(config["train_batch_size"] % (micro * passes) == 0, path, "the batch is no multiple of its parts")
    reader = installed("deepspeed.runtime.config")
    if reader is not None:
        # One process stands for all readers here.
        alone = {**config, "train_batch_size": micro * passes}
        read = reader.DeepSpeedConfig(alone)
        check(read.zero_optimization_stage == config["zero_optimization"]["stage"], path, "another stage was read")
        # Below accelerate, optimizer and schedule are those of transformers.
        scheduler = config.get("scheduler", {}).get("type")
        check(read.scheduler_name == scheduler, path, "another scheduler was read")
        for place in ("offload_optimizer", "offload_param"):
            told = config["zero_optimization"].get(place, {}).get("device", "none")
            found = getattr(read.zero_config, place)
            check((found.device if found else "none") == told, path, f"another {place} was read")
        bf16 = config.get("bf16", {})
        for key, value in bf16.items():
            check(getattr(read.bfloat16_config, key) == value, path, f"another bf16.{key} was read")
        gradients = config.get("data_types", {}).get("grad_accum_dtype")
        check(read.grad_accum_dtype == gradients, path, "another precision of gradients was read")
        is_forced = config.get("zero_force_ds_cpu_optimizer", True)
        check(read.zero_force_ds_cpu_optimizer == is_forced, path, "another CPU optimizer was read")


def accelerate(path, config):
    check(config["num_processes"] >= 1, path, "it has no processes")
    sizes = config.get("parallelism_config", {})
    product = 1
    for key, value in sizes.items():
        product *= value if key.endswith("_size") else 1
    check(not sizes or product == config["num_processes"], path, f"its sizes make {product}")
    reader = installed("accelerate.commands.config.config_args")
    if reader is not None:
        read = reader.ClusterConfig.from_yaml_file(path)
        check(read.num_processes == config["num_processes"], path, "other processes were read")
        is_below = config["distributed_type"] == "DEEPSPEED"
        check(read.distributed_type.value == config["distributed_type"], path, "another kind of start was read")
        check(bool(read.deepspeed_config) == is_below, path, "another configuration of DeepSpeed was read")


def training_arguments(path, arguments):
    for key in ("learning_rate", "adam_epsilon", "weight_decay", "max_grad_norm"):
        check(isinstance(arguments.get(key, 0.0), (int, float)), path, f"{key} is no number")
    transformers = installed("transformers")
    if transformers is not None and installed("accelerate") is not None:
        # A machine without a GPU refuses these two, and they are only switches.
        own = {**arguments, "bf16": False, "fp16": False, "output_dir": tempfile.gettempdir()}
        read = transformers.HfArgumentParser((transformers.TrainingArguments,)).parse_dict(own)[0]
        check(read.max_steps == arguments["max_steps"], path, "other steps were read")
        is_liger = arguments.get("use_liger_kernel", False)
        check(read.use_liger_kernel == is_liger, path, "another loss was read")
        training_optimizer(path, read)
        training_below_accelerate(path, read)


def maxtext(path, config):
    """Its own parser takes the configuration, for as many processors as there would be GPUs."""
    axes = ("pipeline", "data", "fsdp", "expert", "context", "tensor_sequence")
    devices = 1
    for axis in axes:
        devices *= config[f"ici_{axis}_parallelism"]
    passed = config["per_device_batch_size"] * devices
    check(abs(passed - round(passed)) < 1e-6 and round(passed) >= 1, path, f"a pass has {passed} samples")
    if installed("maxtext.configs.pyconfig") is None:
        return
    program = (
        "import sys, omegaconf; from maxtext.configs import pyconfig, types;"
        "raw = omegaconf.OmegaConf.to_container(pyconfig._load_config(sys.argv[1]), resolve=True);"
        "c = types.MaxTextConfig(**pyconfig._prepare_for_pydantic(raw));"
        "print(c.num_target_devices, c.micro_batch_size_to_train_on)"
    )
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program, path], env=environment, capture_output=True, text=True)
    check(done.returncode == 0, path, done.stderr[-1500:])
    check(done.stdout.split()[-2:] == [str(devices), str(round(passed))], path, f"it read {done.stdout}")


def model(path, text):
    config = json.loads(text)
    transformers = installed("transformers")
    if transformers is not None:
        read = transformers.AutoConfig.from_pretrained(os.path.dirname(path))
        check(read.model_type == config["model_type"], path, "another model was read")
        check(read.vocab_size == config["vocab_size"], path, "another vocabulary was read")
        check(str(read.dtype).removeprefix("torch.") == config["dtype"], path, "another precision was read")
        attention = config.get("attn_implementation")
        check(read._attn_implementation == attention, path, "another attention was read")


def kubernetes(path, documents):
    kinds = [document["kind"] for document in documents]
    check(kinds == ["Service", "Job"], path, f"its documents are {kinds}")
    service, job = documents
    pod = job["spec"]["template"]["spec"]
    name = job["metadata"]["name"]
    check(service["metadata"]["name"] == pod["subdomain"] == name, path, "the pods do not find each other")
    check(service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}, path, "the service finds no pods")
    container = pod["containers"][0]
    check(all(isinstance(word, str) for word in container["command"]), path, "a word of the command is no text")
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    check(mounts == {volume["name"] for volume in pod["volumes"]}, path, "a volume is missing")


def megatron_itself(path):
    """Megatron-LM's own parser takes the arguments that the script gives to torchrun."""
    if installed("megatron.training.arguments") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        stand_in = os.path.join(folder, "torchrun")
        with open(stand_in, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\nprintf '%s\\n' \"$@\"\n")
        os.chmod(stand_in, 0o755)
        environment = {**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]}
        done = subprocess.run(["bash", path], env=environment, capture_output=True, text=True)
    words = done.stdout.splitlines()
    program = (
        "import argparse, sys; from megatron.training.arguments import add_megatron_arguments;"
        "p = argparse.ArgumentParser(allow_abbrev=False); add_megatron_arguments(p); p.parse_args(sys.argv[1:])"
    )
    arguments = words[words.index("pretrain_gpt.py") + 1 :]
    done = subprocess.run([sys.executable, "-c", program] + arguments, capture_output=True, text=True)
    check(done.returncode == 0, path, done.stderr[-1500:])


def megatron_data(path, text):
    """`megatron.sh data` gives the tools the recipe's text, with a tokenizer where its tokens are bytes."""
    is_of_bytes = "PreTrainedTokenizerFast" in text
    transformers = installed("transformers") if is_of_bytes else None
    if is_of_bytes and transformers is None:
        return
    written = {"a.txt": "play\r\n\tā €\n", "b.txt": "no play, no work"}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in written.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
                file.write(words)
        program = os.path.join(folder, "python3")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/usr/bin/env bash\n[[ $1 != - ]] || exec {sys.executable} "$@"\nprintf "%s\\n" "$@"\n')
        os.chmod(program, 0o755)
        script = os.path.join(folder, "here.sh")
        files = json.dumps([os.path.join(folder, "*.txt")])
        with open(script, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^FILES = .*$", lambda _: f"FILES = {files}", text, flags=re.MULTILINE))
        environment = {**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]}
        command = ["bash", script, "data"]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        check(done.returncode == 0, path, done.stderr[-1500:])
        words = done.stdout.splitlines()
        given = dict(zip(words[1:], words[2:]))
        check(words[:1] == ["tools/preprocess_data.py"], path, f"it ran {words}")
        check(given.get("--output-prefix") == "corpus" and "--append-eod" in given, path, f"it ran {words}")
        with open(os.path.join(folder, given.get("--input", "")), encoding="utf-8") as file:
            read = [json.loads(line)["text"] for line in file]
        check(read == list(written.values()), path, f"it wrote {read}")
        if transformers is None:
            return
        tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(folder, given["--tokenizer-model"]))
        check(len(tokenizer) == 256 and tokenizer.eos_token_id == 0, path, f"its tokenizer is {tokenizer}")
        for words in read:
            tokens = tokenizer(words).input_ids
            check(tokens == list(words.encode()), path, f"{words!r} is {tokens}")


def shell(path):
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    check(done.returncode == 0, path, done.stderr)


def look(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    name = os.path.basename(path)
    if name.endswith(".sh"):
        shell(path)
        if name == "megatron.sh":
            megatron_itself(path)
            megatron_data(path, text)
    elif name == "dtrain_config.py":
        torchtitan(path, text)
        torchtitan_documents(path, text)
        torchtitan_itself(path)
    elif name == "ds_config.json":
        deepspeed(path, text)
    elif name == "config.json":
        model(path, text)
    elif name == "adapter_config.json":
        adapters(path, text)
    elif name == "quantization_config.json":
        quantization(path, text)
    elif name.endswith((".yaml", ".yml")):
        yaml = installed("yaml")
        if yaml is None:
            return
        documents = list(yaml.safe_load_all(text))
        if name == "kubernetes.yaml":
            kubernetes(path, documents)
        elif name == "accelerate.yaml":
            accelerate(path, documents[0])
        elif name == "maxtext.yml":
            maxtext(path, documents[0])
        else:
            training_arguments(path, documents[0])
    else:
        wrong.append(f"{path}: nobody reads such a file")


def main():
    paths = [os.path.join(given, name) for given in sys.argv[1:] for name in sorted(os.listdir(given))]
    for path in paths:
        look(path)
    for line in sorted(left_out):
        print(line)
    print(f"{len(paths)} files read, {len(wrong)} faults")
    for line in wrong:
        print(line)
    sys.exit(1 if wrong or not paths else 0)


if __name__ == "__main__":
    main()
