"""Three calls for a program that dtrain runs: `params`, `report` and `should_prune`.

Without dtrain they do nothing, so the program still runs by itself::

    import dtrain

    lr = dtrain.params(lr=0.1)["lr"]
    for epoch in range(1, 11):
        loss, f1 = train(lr)
        dtrain.report(step=epoch, loss=loss, **{"val/f1": f1})
        if dtrain.should_prune():
            break

Needs Python 3.8 or newer, and no other package.
"""

import json
import os
import signal
import threading

__all__ = ["params", "report", "should_prune"]

_events = None
_stop = threading.Event()
_listens = False


def params(**defaults):
    """The params of the recipe as a dict. `defaults` are for params that the recipe does not have."""
    given = json.loads(os.environ.get("DTRAIN_PARAMS") or "{}").get("params", {})
    return {**defaults, **given}


def report(step=None, metrics=None, /, **named):
    """Report numbers by name, as keywords or as a dict.

    `step` counts what is completed, such as epochs. `loss`, `valid_loss`, `valid_accuracy`, `learning_rate`,
    `gradient_norm`, `tokens` and `seconds` have the meaning that docs/your-own-script.md gives them; every other name
    is a metric. Numbers may be NumPy scalars or tensors of one element.
    """
    if isinstance(step, dict):
        step, metrics = None, step
    step = named.pop("step", step)
    line = {name: float(value) for name, value in {**(metrics or {}), **named}.items()}
    if step is not None:
        line["step"] = int(step)
    events = _open()
    if events is not None and line:
        events.write(json.dumps(line) + "\n")
        events.flush()


def should_prune():
    """Whether dtrain wants the program to end: its trial is pruned, paused or stopped. Save what is worth it, and return.

    The first call takes over SIGTERM, which would end the program otherwise. Call it from the main thread.
    """
    global _listens
    if not _listens and "DTRAIN_TRIAL" in os.environ:
        _listens = True
        signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    return _stop.is_set()


def _open():
    global _events
    number = os.environ.get("DTRAIN_EVENTS_FD")
    if _events is None and number is not None:
        _events = os.fdopen(int(number), "w")
    return _events
