"""The worker of the decoder bench, and Optuna that drives it; decoder.rs has `dtrain tune` drive the same one.

    decoder.py train DTRAIN STUDY SEED RATE POWER WARMUP DECAY
                          trains the decoder of decoder.toml by `dtrain run` for TOKENS tokens: learning rate RATE, batches of
                          2^POWER sequences, WARMUP of the tokens as warm-up, weight decay DECAY. Prints the first validation loss
                          after each eighth of the tokens. Appends a line to STUDY.jsonl at its end, also when it is interrupted
    decoder.py study DTRAIN STUDY SEED TRIALS
                          a study of TPE with the median pruner that spends the tokens of TRIALS whole trials; prints the RATE,
                          POWER, WARMUP and DECAY of the best trial that was completed
    decoder.py version    prints that of Optuna

Files lie beside this script. Needs Optuna for a study only.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKENS = 98_304
REPORTS = 8
REPORT = re.compile(r"eighth (\d+) valid (\S+)")


def command(dtrain, seed, rate, power, warmup, decay):
    settings = {
        # With a limit of time, which is never reached, all held-out samples are validated, as many for every batch.
        "objective.stop": f"{{ tokens = {TOKENS}, time = '1 h' }}",
        "train.seed": seed,
        "train.batch": 2 ** int(power),
        "train.learning_rate": float(rate),
        "train.warmup": f'"{round(float(warmup) * TOKENS)} tokens"',
        "train.optimizer.weight_decay": float(decay),
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [dtrain, "run", str(HERE / "decoder.toml"), "--json", "--quiet", "--no-sample", *sets]


def train(dtrain, study, seed, *point):
    # What an outer dtrain says to its program is not for the inner one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DTRAIN_")}
    environment |= {"DTRAIN_STATE": str(HERE / "worker"), "XDG_CONFIG_HOME": str(HERE / "config")}
    begun = time.monotonic()
    process = subprocess.Popen(command(dtrain, seed, *point), env=environment, stdout=subprocess.PIPE, text=True)
    is_stopped = False

    def stop(*_):
        nonlocal is_stopped
        is_stopped = True
        process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    tokens, reported, loss = 0, 0, math.nan
    for line in process.stdout:
        event = json.loads(line).get("seen", {}).get("event", {}).get("event", {})
        if "step" in event:
            tokens += event["step"]["tokens"]
        elif "validated" in event:
            loss = event["validated"]["loss"]
            eighth = REPORTS * tokens // TOKENS
            if eighth > reported and not is_stopped:
                reported = eighth
                print(f"eighth {eighth} valid {loss!r}", flush=True)
    code = process.wait()
    spent = {"tokens": tokens, "seconds": time.monotonic() - begun, "code": code, "point": point, "loss": loss}
    with open(HERE / f"{study}.jsonl", "a") as file:
        file.write(json.dumps(spent) + "\n")
    if not is_stopped and (code != 0 or reported < REPORTS):
        raise RuntimeError(f"dtrain run ended with {code} after {reported} of {REPORTS} reports")


def spent(study):
    """Tokens of all trials of a study."""
    path = HERE / f"{study}.jsonl"
    return sum(json.loads(line)["tokens"] for line in path.read_text().splitlines()) if path.exists() else 0


def study(dtrain, name, seed, trials):
    import optuna

    warnings.filterwarnings("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=int(seed))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5)
    found = optuna.create_study(sampler=sampler, pruner=pruner)
    # The study of dtrain begins there, too.
    found.enqueue_trial(json.loads((HERE / "first.json").read_text()))
    while TOKENS * int(trials) - spent(name) >= TOKENS:
        trial = found.ask()
        rate, power = trial.suggest_float("rate", 1e-4, 1e-1, log=True), trial.suggest_int("power", 3, 6)
        warmup = trial.suggest_float("warmup", 0.01, 0.5, log=True)
        decay = trial.suggest_float("decay", 1e-3, 1.0, log=True)
        point = [repr(value) for value in (rate, power, warmup, decay)]
        words = [sys.executable, __file__, "train", dtrain, name, seed, *point]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        is_pruned, loss = False, math.nan
        for report in filter(None, map(REPORT.match, process.stdout)):
            loss = float(report[2])
            trial.report(loss, int(report[1]))
            if not is_pruned and int(report[1]) < REPORTS and trial.should_prune():
                is_pruned = True
                process.terminate()
        is_lost = process.wait() != 0 or math.isnan(loss)
        states = optuna.trial.TrialState
        if is_lost:
            found.tell(trial, state=states.FAIL)
        elif is_pruned:
            found.tell(trial, state=states.PRUNED)
        else:
            found.tell(trial, loss)
    print(json.dumps([found.best_params[key] for key in ("rate", "power", "warmup", "decay")]))


def main():
    if sys.argv[1] == "version":
        import optuna

        print(optuna.__version__)
    else:
        {"train": train, "study": study}[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
