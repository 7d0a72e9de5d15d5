"""The configuration of torchtitan for a run of dtrain: `python -m torchtitan.train --module dtrain_engines.titan_run`."""

import dtrain_config

from . import titan


def train() -> titan.Trainer.Config:
    return titan.configured(dtrain_config.train())
