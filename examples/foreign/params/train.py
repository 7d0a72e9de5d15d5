"""Fits a line by SGD with momentum or by Adam. Knows nothing of dtrain: its settings are arguments."""

import argparse
import random

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

random.seed(1)


def samples(count):
    """Points near the line y = 3 x - 2."""
    xs = [random.uniform(-1, 1) for _ in range(count)]
    return [(x, 3 * x - 2 + random.gauss(0, 0.1)) for x in xs]


def loss_and_gradient(weights, batch):
    errors = [(weights[0] * x + weights[1] - y, x) for x, y in batch]
    loss = sum(error * error for error, _ in errors) / len(batch)
    return loss, [2 * sum(e * x for e, x in errors) / len(batch), 2 * sum(e for e, _ in errors) / len(batch)]


held_out = samples(200)
weights, first, second = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
for step in range(1, args.steps + 1):
    loss, gradient = loss_and_gradient(weights, samples(32))
    for i, g in enumerate(gradient):
        if args.optimizer == "sgd":
            first[i] = args.momentum * first[i] + g
            weights[i] -= args.lr * first[i]
        else:
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g * g
            scale = (second[i] / (1 - 0.999**step)) ** 0.5 + 1e-8
            weights[i] -= args.lr * first[i] / (1 - 0.9**step) / scale
    print(f"step {step} loss {loss:.6f}", flush=True)
print(f"step {args.steps} valid {loss_and_gradient(weights, held_out)[0]:.6f}", flush=True)
