#!/usr/bin/env python3
"""Fine-tunes a model on conversations with the SFTTrainer of TRL, all of them in each step, and prints each loss.

    sft.py MODEL TOKENIZER CONVERSATIONS STEPS RATE

Needs trl, transformers and torch. AdamW without decay of weights, a constant rate, f32, loss on answers only.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            print(f"loss {logs['loss']}")


def main(model, tokenizer, conversations, steps, rate):
    folder = Path(tokenizer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    records = [json.loads(line) for line in Path(conversations).read_text().splitlines()]
    config = SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=len(records),
        max_steps=int(steps),
        learning_rate=float(rate),
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        max_grad_norm=1e9,
        logging_steps=1,
        assistant_only_loss=True,
        max_length=128,
        packing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        gradient_checkpointing=False,
        save_strategy="no",
        seed=1,
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(records),
        processing_class=tokenizer,
        callbacks=[Print()],
    )
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
