"""Checks of the training state in emitted files: optimizers, state in host memory, adapters and quantized weights."""

import json
import os
import unittest.mock

from emit_report import check, installed


def training_optimizer(path, read):
    """transformers have the optimizer, and it takes a step."""
    packages = {"adamw_bnb_8bit": "bitsandbytes", "adamw_torch_8bit": "torchao"}
    package = packages.get(read.optim)
    if package is None or installed(package) is None:
        return
    torch, trainer = installed("torch"), installed("transformers")
    if torch is None:
        return
    made, keywords = trainer.Trainer.get_optimizer_cls_and_kwargs(read)
    layer = torch.nn.Linear(64, 64)
    optimizer = made(layer.parameters(), **keywords)
    layer(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    moments = [value for value in optimizer.state[layer.weight].values() if torch.is_tensor(value)]
    small = [getattr(value, "codes", value).dtype == torch.uint8 for value in moments]
    check(sum(small) >= 2, path, f"the moments of {read.optim} have other precisions: {moments}")


def training_below_accelerate(path, read):
    """Batch, clipping and precision are those of DeepSpeed's file, which transformers compare."""
    name = os.path.join(os.path.dirname(path), "ds_config.json")
    if not os.path.exists(name) or installed("deepspeed") is None:
        return
    below = installed("transformers.integrations.deepspeed")
    config = below.HfTrainerDeepSpeedConfig(name)
    config.config.pop("bf16", None)
    config.config.pop("fp16", None)
    processes = config.config["train_batch_size"] // read.per_device_train_batch_size
    with unittest.mock.patch.object(type(read), "world_size", processes // read.gradient_accumulation_steps):
        config.trainer_config_process(read)
    check(not config.mismatches, path, f"DeepSpeed has other values: {config.mismatches}")


def adapters(path, text):
    """peft reads the adapters, and finds the layers in the model beside them."""
    config = json.loads(text)
    peft, transformers, torch = installed("peft"), installed("transformers"), installed("torch")
    if peft is None or transformers is None or torch is None:
        return
    folder = os.path.dirname(path)
    read = peft.LoraConfig.from_pretrained(folder)
    check(read.r == config["r"] and read.lora_alpha == config["lora_alpha"], path, "other adapters were read")
    with torch.device("meta"):
        model = transformers.AutoConfig.from_pretrained(folder)
        # A kernel of attention may not be installed, and has no weights.
        model = transformers.AutoModelForCausalLM.from_config(model, attn_implementation="eager")
        model = peft.get_peft_model(model, read)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    for layer in config["target_modules"]:
        check(any(f"{layer}.lora_A" in name for name in trained), path, f"no {layer} was adapted")
    check(all("lora_" in name for name in trained), path, "other weights are trained")


def quantization(path, text):
    transformers = installed("transformers")
    if transformers is not None and installed("bitsandbytes") is not None:
        config = json.loads(text)
        read = transformers.BitsAndBytesConfig.from_dict(config)
        is_nf4 = config.get("load_in_4bit", False)
        check(read.load_in_4bit == is_nf4 and read.load_in_8bit != is_nf4, path, "another precision was read")
        for key in ("compute_dtype", "quant_storage"):
            told = config.get(f"bnb_4bit_{key}")
            found = str(getattr(read, f"bnb_4bit_{key}")).removeprefix("torch.")
            check(told in (None, found), path, f"another {key} was read: {found}")
