"""A classifier of two interleaved spirals in plain Python. It knows nothing of dtrain: its settings are arguments, and it
prints one line an epoch."""

import argparse
import math
import random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--hidden", type=int, default=16)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--activation", choices=["tanh", "relu"], default="tanh")
parser.add_argument("--epochs", type=int, default=27)
args = parser.parse_args()

random.seed(1)


def spiral(count):
    """Points of two spirals, with a little noise: (x, y, class)."""
    points = []
    for i in range(count):
        angle = 0.5 + 7 * math.sqrt(random.random())
        side = i % 2
        x = angle * math.cos(angle + math.pi * side) / 5 + random.gauss(0, 0.05)
        y = angle * math.sin(angle + math.pi * side) / 5 + random.gauss(0, 0.05)
        points.append((x, y, side))
    return points


tanh = args.activation == "tanh"
hidden = range(args.hidden)
w = [[random.gauss(0, 1), random.gauss(0, 1), 0.0, random.gauss(0, 1 / math.sqrt(args.hidden))] for _ in hidden]
bias = 0.0
speed = [[0.0] * 4 for _ in hidden]


def forward(x, y):
    sums = [u[0] * x + u[1] * y + u[2] for u in w]
    outs = [math.tanh(s) if tanh else max(s, 0.0) for s in sums]
    score = bias + sum(u[3] * out for u, out in zip(w, outs))
    return outs, 1 / (1 + math.exp(-max(min(score, 30), -30)))


train, valid = spiral(200), spiral(200)
for epoch in range(1, args.epochs + 1):
    random.shuffle(train)
    for x, y, side in train:
        outs, guess = forward(x, y)
        error = guess - side
        bias -= args.lr * error
        for u, v, out in zip(w, speed, outs):
            slope = error * u[3] * ((1 - out * out) if tanh else (out > 0))
            for i, gradient in enumerate((slope * x, slope * y, slope, error * out)):
                v[i] = args.momentum * v[i] - args.lr * gradient
                u[i] += v[i]
    right = sum((forward(x, y)[1] > 0.5) == (side == 1) for x, y, side in valid)
    print(f"epoch {epoch}: accuracy {right / len(valid):.4f}", flush=True)
