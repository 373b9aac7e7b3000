"""Train: `training` as ``ch train`` and the labs, `module` as `chop.train`."""

from dataclasses import dataclass

from chop.config.run import RunConfig
from chop.config.verb import Verb, add_verb


@dataclass(frozen=True, kw_only=True)
class TrainRequest(RunConfig):
    """Train a model, keeping the best and the last checkpoint."""


add_verb(
    Verb(
        "train",
        TrainRequest,
        place=1,
        quiet="where the checkpoints are",
        home="chop.verbs.train.training",
        python="chop.verbs.train.module:train_module",
    )
)
