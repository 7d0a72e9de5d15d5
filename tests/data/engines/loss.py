"""Prints the mean loss of transformers over the validation samples of a job: loss.py JOB FOLDER"""

import sys

import torch
from dtrain_engines.job import Job
from dtrain_engines.tokens import validation_batches
from transformers import AutoModelForCausalLM


def main() -> None:
    job = Job.read(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets, counted in validation_batches(job, 1):
            logits = model(input_ids=torch.from_numpy(inputs[:counted])).logits
            wanted = torch.from_numpy(targets[:counted])
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
            count += wanted.numel()
    print(total / count)


if __name__ == "__main__":
    main()
