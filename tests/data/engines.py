"""Writes tests/data/engines.json: the names that other engines accept, read from the sources of their releases.

    python tests/data/engines.py [FOLDER]

Downloads the newest releases from PyPI without what they depend on (about 20 MB) into FOLDER, or into a temporary one, and
reads them with `ast`: nothing of them is imported. `dtrain plan --emit` is checked against these names.
"""

import ast
import glob
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGES = {
    "megatron-core": ["--python-version", "3.12", "--only-binary=:all:"],
    "torchtitan": [],
    "deepspeed": ["--no-binary=:all:", "--no-build-isolation"],
    "accelerate": [],
    "transformers": [],
    "peft": [],
    "maxtext": ["--python-version", "3.12", "--only-binary=:all:"],
}

# What an emitted module for torchtitan names.
NAMES = [
    "torchtitan.components.checkpoint:CheckpointManager.Config",
    "torchtitan.components.loss:ChunkedLossWrapper.Config",
    "torchtitan.components.loss:CrossEntropyLoss.Config",
    "torchtitan.components.optimizer:LRSchedulersContainer.Config",
    "torchtitan.components.optimizer:OptimizersContainer.Config",
    "torchtitan.components.optimizer:ParamGroupConfig",
    "torchtitan.components.optimizer:register_moe_load_balancing_hook",
    "torchtitan.components.quantization:Float8GroupedExpertsConverter.Config",
    "torchtitan.components.quantization:Float8LinearConverter.Config",
    "torchtitan.components.quantization:MXFP8GroupedExpertsConverter.Config",
    "torchtitan.components.quantization:MXFP8LinearConverter.Config",
    "torchtitan.config:CompileConfig",
    "torchtitan.config:DebugConfig",
    "torchtitan.config:ParallelismConfig",
    "torchtitan.config:TrainingConfig",
    "torchtitan.distributed.activation_checkpoint:FullAC.Config",
    "torchtitan.distributed.activation_checkpoint:SelectiveAC.Config",
    "torchtitan.distributed.pipeline_parallel:pipeline_llm",
    "torchtitan.hf_datasets:DatasetConfig",
    "torchtitan.hf_datasets.text_datasets:DATASETS",
    "torchtitan.hf_datasets.text_datasets:HuggingFaceTextDataLoader.Config",
    "torchtitan.models.common:ComplexRoPE.Config",
    "torchtitan.models.common:CosSinRoPE.Config",
    "torchtitan.models.common:Embedding.Config",
    "torchtitan.models.common:Linear.Config",
    "torchtitan.models.common:RMSNorm.Config",
    "torchtitan.models.common.config_utils:get_attention_config",
    "torchtitan.models.common.config_utils:make_ffn_config",
    "torchtitan.models.common.config_utils:make_gqa_config",
    "torchtitan.models.common.config_utils:make_moe_config",
    "torchtitan.models.common.config_utils:make_routed_experts_config",
    "torchtitan.models.common.config_utils:make_router_config",
    "torchtitan.models.common.param_init:skip_param_init",
    "torchtitan.models.llama3.model:Llama3Model.Config",
    "torchtitan.models.llama3.model:Llama3TransformerBlock.Config",
    "torchtitan.models.llama3.parallelize:parallelize_llama",
    "torchtitan.models.llama3.state_dict_adapter:Llama3StateDictAdapter",
    "torchtitan.models.qwen3.model:Qwen3Model.Config",
    "torchtitan.models.qwen3.model:Qwen3TransformerBlock.Config",
    "torchtitan.models.qwen3.parallelize:parallelize_qwen3",
    "torchtitan.protocols.model_spec:ModelSpec",
    "torchtitan.trainer:Trainer.Config",
]


def download(folder, package, options):
    """The unpacked release and its version."""
    place = os.path.join(folder, package)
    if not os.path.isdir(place):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place + ".download"]
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run(command + options + [package], check=True, env=environment)
        (archive,) = glob.glob(os.path.join(place + ".download", "*"))
        if archive.endswith(".whl"):
            zipfile.ZipFile(archive).extractall(place)
        else:
            tarfile.open(archive).extractall(place, filter="data")
    (archive,) = glob.glob(os.path.join(place + ".download", "*"))
    version = re.match(r"[A-Za-z_]+(?:-core)?-(\d[\d.]*\d)", os.path.basename(archive)).group(1)
    return place, version


def tree(*parts):
    (path,) = glob.glob(os.path.join(*parts))
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())


def classes(module, outer=""):
    """Every class of a module by its dotted name."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            name = f"{outer}{node.name}"
            yield name, node
            yield from classes(node, f"{name}.")


def fields(node):
    """The annotated fields of a class, with their values."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id, item.value


def parameters(node):
    """The parameters of a function, `self` aside."""
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return [a.arg for a in arguments if a.arg != "self"]


def texts(node):
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def calls(module, name):
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def megatron(place):
    """Arguments that are added by name, and those that are made of the fields of configuration classes."""
    names = set()
    module = tree(place, "megatron/training/arguments.py")
    for call in calls(module, "add_argument"):
        names.update(text for text in texts(call) if text.startswith("--"))
    sources = glob.glob(os.path.join(place, "megatron/training/config/*.py"))
    sources += glob.glob(os.path.join(place, "megatron/core/transformer/transformer_config.py"))
    sources += glob.glob(os.path.join(place, "megatron/core/model_parallel_config.py"))
    for path in sources:
        for _, node in classes(tree(path)):
            for field, value in fields(node):
                names.update(argument_names(field, value))
    return {"arguments": sorted(names)}


def argument_names(field, value):
    """As Megatron-LM's ArgumentGroupFactory names them: what is on by itself is switched off by `--no-` or `--disable-`."""
    given = [text for text in texts(value) if text.startswith("--")] if value is not None else []
    if given:
        return given
    word = field.replace("_", "-")
    default = value
    if isinstance(value, ast.Call):
        default = next((k.value for k in value.keywords if k.arg == "default"), None)
    if isinstance(default, ast.Constant) and default.value is True:
        return [f"--no-{word}", f"--disable-{word}"]
    return [f"--{word}"]


def deepspeed(place):
    root = os.path.join(place, "deepspeed-*/deepspeed")
    top = set(texts(tree(root, "runtime/constants.py"))) | {"bf16", "fp16", "zero_optimization", "tensor_parallel"}
    top |= set(texts(tree(root, "runtime/config.py")))
    zero = {k for _, node in classes(tree(root, "runtime/zero/config.py")) for k, _ in fields(node)}
    schedules = {}
    for name, node in classes(tree(root, "runtime/lr_schedules.py")):
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                schedules[name] = parameters(item)
    tensor = {k for _, node in classes(tree(root, "runtime/tensor_parallel/config.py")) for k, _ in fields(node)}
    experts = set()
    for call in calls(tree(root, "module_inject/auto_ep_config.py"), "get"):
        experts.update(texts(call))
    precision = {k for _, node in classes(tree(root, "runtime/precision_config.py")) for k, _ in fields(node)}
    offload = dict(classes(tree(root, "runtime/zero/offload_config.py")))
    words = re.compile(r"[a-z][a-z0-9_]*$")
    return {
        "keys": sorted(t for t in top if words.match(t)),
        "zero_optimization": sorted(zero),
        "scheduler": schedules,
        "tensor_parallel": sorted(tensor),
        "expert_parallel": sorted(e for e in experts if words.match(e)),
        "precision": sorted(precision),
        "data_types": [t for t in sorted(top) if t == "grad_accum_dtype"],
        "offload_optimizer": sorted(k for k, _ in fields(offload["DeepSpeedZeroOffloadOptimizerConfig"])),
        "offload_param": sorted(k for k, _ in fields(offload["DeepSpeedZeroOffloadParamConfig"])),
    }


def accelerate(place):
    configuration = dict(classes(tree(place, "accelerate/commands/config/config_args.py")))
    keys = {k for name in ("BaseConfig", "ClusterConfig") for k, _ in fields(configuration[name])}
    launch = tree(place, "accelerate/commands/launch.py")
    arguments = {t[2:] for call in calls(launch, "add_argument") for t in texts(call) if t.startswith("--")}
    return {
        "keys": sorted(keys),
        "fsdp_config": sorted(a for a in arguments if a.startswith("fsdp_")),
        "parallelism_config": sorted(a for a in arguments if a.startswith("parallelism_config_")),
        "deepspeed_config": sorted(a for a in arguments if "deepspeed" in a or "zero3" in a),
    }


def transformers(place):
    arguments = dict(classes(tree(place, "transformers/training_args.py")))["TrainingArguments"]
    out = {"training_arguments": sorted(k for k, _ in fields(arguments))}
    arguments = dict(classes(tree(place, "transformers/training_args.py")))["OptimizerNames"]
    out["optimizers"] = sorted(constants(arguments))
    quantization = dict(classes(tree(place, "transformers/utils/quantization_config.py")))["BitsAndBytesConfig"]
    (made,) = (item for item in quantization.body if getattr(item, "name", "") == "__init__")
    out["quantization_config"] = sorted(parameters(made) + ["quant_method"])
    configuration = tree(place, "transformers/configuration_utils.py")
    shared = {k for _, node in classes(configuration) for k, _ in fields(node)}
    # It is no field of the class, but one of the keywords that each configuration takes.
    shared |= {text for text in texts(configuration) if text == "attn_implementation"}
    for family in ("gpt2", "llama", "mixtral"):
        own = classes(tree(place, f"transformers/models/{family}/configuration_{family}.py"))
        out[family] = sorted(shared | {k for _, node in own for k, _ in fields(node)})
    return out


def peft(place):
    """The fields of the adapters' configuration, those that it inherits included."""
    inherited = tree(place, "peft/config.py")
    modules = [inherited, tree(place, "peft/tuners/lora/config.py")]
    owners = ("PeftConfigMixin", "PeftConfig", "LoraConfig")
    names = {k for module in modules for name, node in classes(module) if name in owners for k, _ in fields(node)}
    return {"adapter_config": sorted(names)}


def maxtext(place):
    """Keys of its configuration, and the values of those that are one of a list."""
    module = dict(classes(tree(place, "maxtext/configs/types.py")))
    blocks = dict(classes(tree(place, "maxtext/common/common_types.py")))["DecoderBlockType"]
    keys = {k for _, node in module.items() for k, _ in fields(node)} | {"base_config"}
    values = {name: constants(module[name]) for name in ("LearningRateScheduleType", "RematPolicy", "WsdDecayStyle")}
    return {"keys": sorted(keys), "values": {**values, "DecoderBlockType": constants(blocks)}}


def constants(node):
    """The values of an enumeration."""
    return [item.value.value for item in node.body if isinstance(item, ast.Assign)]


def torchtitan(place):
    """The keywords of what the emitted module calls: parameters of functions, fields of configurations."""
    modules = {}
    for path in glob.glob(os.path.join(place, "torchtitan/**/*.py"), recursive=True):
        dotted = os.path.relpath(path, place)[: -len(".py")].replace(os.sep, ".")
        is_package = dotted.endswith(".__init__")
        dotted = dotted.removesuffix(".__init__")
        modules[dotted] = exports(tree(glob.escape(path)), dotted.split("."), is_package)
    return {"names": {name: keywords(modules, *name.split(":")) for name in NAMES}}


def keywords(modules, module, name):
    """Keywords of a name that a module defines or takes from another."""
    found = modules[module][name.split(".")[0]]
    if isinstance(found, str):
        module, other = found.split(":")
        return keywords(modules, module, ".".join([other] + name.split(".")[1:]))
    found = modules[module][name]
    if not isinstance(found, dict):
        return found
    inherited = [keywords(modules, module, base) for base in found["bases"] if base.split(".")[0] in modules[module]]
    return found["fields"] + [k for fields in inherited for k in fields or [] if k not in found["fields"]]


def exports(module, path, is_package):
    """What a module defines, and from where it takes what it imports."""
    out = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            out[node.name] = parameters(node)
        elif isinstance(node, ast.Assign):
            out.update({target.id: None for target in node.targets if isinstance(target, ast.Name)})
        elif isinstance(node, ast.AnnAssign):
            out[node.target.id] = None
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = path[: len(path) - up] if node.level else []
            package = ".".join(base + ([node.module] if node.module else []))
            if package.startswith("torchtitan"):
                out.update({alias.asname or alias.name: f"{package}:{alias.name}" for alias in node.names})
    for name, node in classes(module):
        bases = [ast.unparse(base) for base in node.bases]
        out[name] = {"bases": bases, "fields": [k for k, _ in fields(node)]}
    return out


def compact(value, indent=0):
    """JSON with a line for each list."""
    if not isinstance(value, dict):
        return json.dumps(value)
    inner = " " * (indent + 1)
    rows = [f"{inner}{json.dumps(key)}: {compact(value[key], indent + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    readers = {
        "megatron-core": megatron,
        "torchtitan": torchtitan,
        "deepspeed": deepspeed,
        "accelerate": accelerate,
        "transformers": transformers,
        "peft": peft,
        "maxtext": maxtext,
    }
    out = {}
    for package, options in PACKAGES.items():
        place, version = download(folder, package, options)
        source = f"https://pypi.org/project/{package}/{version}/"
        out[package] = {"version": version, "source": source, **readers[package](place)}
    target = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines.json")
    with open(target + ".partial", "w", encoding="utf-8") as file:
        file.write(compact(out) + "\n")
    os.replace(target + ".partial", target)


if __name__ == "__main__":
    main()
