"""Optuna on the functions of the tuner bench; functions.rs has the same ones.

    peer.py check                       reads points as JSON lines, [function, [coordinates]], and prints the values
    peer.py study SAMPLER FUNCTION SEEDS TRIALS
                                        prints, for each seed, the true values of the incumbent after 30 and all trials
    peer.py time SAMPLER TRIALS REPEATS prints the milliseconds that each of some suggestions took after so many trials
"""

import json
import math
import random
import sys
import time
import warnings

ALPHA = [1.0, 1.2, 3.0, 3.2]
A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
P = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]
FAILED = {"noisylr": 8.0, "layout": 30.0}


def branin(x, y):
    bent = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bent * bent + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann6(*x):
    return -sum(a * math.exp(-sum(s * (v - p) ** 2 for s, v, p in zip(row, x, place))) for a, row, place in zip(ALPHA, A, P))


def noisylr(rate, decay, warmup, batch):
    """A loss over the logarithms of learning rate, weight decay and warm-up, and over the batch; None where it diverges."""
    u, w, m, b = math.log10(rate), math.log10(decay), math.log10(warmup), math.log2(batch)
    if u > -1.9 + 0.3 * (m - 2):
        return None
    best = -2.8 + 0.15 * (b - 8)
    return 2 + 0.05 * (u - best) ** 2 + 0.02 * (w + 1.2) ** 2 + 0.015 * (m - 2.2) ** 2 + 0.004 * (b - 8) ** 2


def layout(tensor, pipeline, micro, zero, chunks, bucket, recompute):
    """Seconds of a step of 7 billion parameters on 64 devices of 8 to a host, batch 512; None where it does not fit."""
    data = 64 // (tensor * pipeline)
    if data < 1 or 512 % (data * micro) or (chunks > 1 and pipeline == 1):
        return None
    passes = 512 // (data * micro)
    share = 7e9 / (tensor * pipeline)
    state = 2 * share / (data if zero >= 3 else 1) + 2 * share / (data if zero >= 2 else 1) + 12 * share / (data if zero >= 1 else 1)
    kept = {"none": 1.0, "selective": 0.4, "full": 0.08}[recompute]
    activations = micro * 32 / pipeline * min(passes, pipeline) * 0.9e9 * kept / tensor * (1 + 0.1 * (chunks - 1))
    if state + activations + bucket * 2e6 * 4 > 72e9:
        return None
    work = 6 * share * 512 / data * 2048 * {"none": 1.0, "selective": 1.04, "full": 1.33}[recompute]
    speed = 500e12 * (micro / (micro + 0.35)) * (1 - 0.03 * math.log2(tensor))
    compute = work / speed
    bubble = (pipeline - 1) / (passes * chunks) if pipeline > 1 else 0.0
    tensors = 0.0 if tensor == 1 else 4 * 32 / pipeline * passes * micro * 2048 * 4096 * 2 * 2 * (tensor - 1) / tensor / 300e9
    hops = 0.0 if pipeline == 1 else passes * chunks * micro * 2048 * 4096 * 2 / tensor / 40e9
    volume = share * 2 * (3 if zero >= 3 else 2) * (data - 1) / data
    parts = share * 2 / (bucket * 1e6)
    reduce = volume / 40e9 + parts * 60e-6 * (passes if zero >= 2 else 1) * 0.1
    hidden = min(reduce, 0.6 * compute) * (1 - 1 / (1 + parts))
    return compute * (1 + bubble) + tensors + hops + reduce - hidden + 0.02 * passes * 0.1


FUNCTIONS = {"branin": branin, "hartmann6": hartmann6, "noisylr": noisylr, "layout": layout}
RECOMPUTE = ["none", "selective", "full"]
BUCKETS = [5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200]


def suggested(trial, function):
    """A point, with the natural type for each dimension: what has an order is a whole number."""
    if function == "branin":
        return [trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)]
    if function == "hartmann6":
        return [trial.suggest_float(f"x{k}", 0, 1) for k in range(6)]
    if function == "noisylr":
        rate, decay = trial.suggest_float("rate", 1e-5, 1e-1, log=True), trial.suggest_float("decay", 1e-4, 1, log=True)
        return [rate, decay, trial.suggest_int("warmup", 10, 1000, log=True), 2 ** trial.suggest_int("batch", 4, 10)]
    powers = [2 ** trial.suggest_int(name, 0, most) for name, most in (("tensor", 3), ("pipeline", 3), ("micro", 4))]
    zero, chunks = trial.suggest_int("zero", 0, 3), 2 ** trial.suggest_int("chunks", 0, 2)
    bucket = BUCKETS[trial.suggest_int("bucket", 0, 9)]
    return [*powers, zero, chunks, bucket, trial.suggest_categorical("recompute", RECOMPUTE)]


def sampler(name, seed):
    import optuna

    samplers = optuna.samplers
    if name == "random":
        return samplers.RandomSampler(seed=seed)
    if name == "sobol":
        return samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
    if name == "tpe":
        return samplers.TPESampler(seed=seed)
    if name == "cmaes":
        return samplers.CmaEsSampler(seed=seed)
    return samplers.GPSampler(seed=seed)


def study(name, function, seed, trials):
    """True values of the incumbent, which is the trial that measured the lowest, after 30 and all trials."""
    import optuna

    noise = random.Random(seed)
    found, truths = optuna.create_study(sampler=sampler(name, seed)), []
    best, at_30 = (math.inf, math.inf), math.inf
    for number in range(trials):
        trial = found.ask()
        truth = FUNCTIONS[function](*suggested(trial, function))
        truth = FAILED[function] if truth is None else truth
        measured = truth + (noise.gauss(0, 0.03) if function == "noisylr" else 0)
        found.tell(trial, measured)
        best = min(best, (measured, truth))
        at_30 = best[1] if number < 30 else at_30
    return at_30, best[1]


def milliseconds(name, trials, repeats):
    import optuna

    found = optuna.create_study(sampler=sampler(name, 0))
    chance = random.Random(0)
    space = {f"x{k}": optuna.distributions.FloatDistribution(0, 1) for k in range(6)}
    for _ in range(trials):
        point = {key: chance.random() for key in space}
        found.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=hartmann6(*point.values())))
    for _ in range(repeats):
        begun = time.perf_counter()
        trial = found.ask()
        point = suggested(trial, "hartmann6")
        took = time.perf_counter() - begun
        found.tell(trial, hartmann6(*point))
        print(json.dumps(1000 * took), flush=True)


def main():
    command, *words = sys.argv[1:]
    if command == "check":
        for line in sys.stdin:
            function, point = json.loads(line)
            print(json.dumps(FUNCTIONS[function](*point)))
        return
    warnings.filterwarnings("ignore")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if command == "version":
        print(optuna.__version__)
    elif command == "study":
        name, function, seeds, trials = words[0], words[1], int(words[2]), int(words[3])
        for seed in range(seeds):
            print(json.dumps(study(name, function, seed, trials)), flush=True)
    else:
        milliseconds(words[0], int(words[1]), int(words[2]))


if __name__ == "__main__":
    main()
