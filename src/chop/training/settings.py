"""The settings of a training run."""

import os
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

FREE_ON_RESUME = frozenset(
    ("max_epochs", "max_steps", "early_stopping", "log_every_n_steps", "auto_requeue")
)
"""Settings that may change when a run is resumed; all others decide what it computes."""

MOST_PROCESSES = max(16, 4 * (os.cpu_count() or 1))
"""Processes or threads that a run may ask for; a slip of the finger must not take the machine."""

LARGEST_FACTOR = 3e38
"""A number that weights, which have 32 bits, can still be multiplied with."""

LIGHTNING_SPELLINGS = {
    16: "16-mixed",
    32: "32",
    64: "64",
    "16": "16-mixed",
    "32-true": "32",
    "64-true": "64",
    "bf16": "bf16-mixed",
}


Precision = Annotated[
    Literal["16-mixed", "bf16-mixed", "32", "64"],
    BeforeValidator(lambda value: LIGHTNING_SPELLINGS.get(value, value)),
]


class CostSettings(BaseModel):
    """The cost in the loss of the bits of a network that learns its widths.

    Args:
        name: what is counted: effective bit operations (EBOPs) of one row.
        weight: what one of them adds to the loss.
        magnitude: how strongly weights are drawn to fewer bits before the point.
        refresh: steps between updates of the cost.
        calibration_batches: batches to calibrate ranges on before each validation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["ebops"] = "ebops"
    weight: float = Field(ge=0, le=1e6)
    magnitude: float = Field(2.0, ge=0, le=1e6)
    refresh: int = Field(8, gt=0)
    calibration_batches: int = Field(16, gt=0)


class TrainTable(BaseModel):
    """Settings of training only.

    Args:
        cost: the cost of trained widths in the loss.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cost: CostSettings | None = None


class TrainingSettings(BaseModel):
    """The settings of one run; names and meanings are those of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-5, gt=0, lt=LARGEST_FACTOR)
    bits_learning_rate: float | None = Field(None, gt=0, lt=LARGEST_FACTOR)
    weight_decay: float = Field(0.0, ge=0, lt=LARGEST_FACTOR)
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    max_epochs: int = Field(20, gt=0)
    max_steps: int = Field(-1, ge=-1)
    accumulate_grad_batches: int = Field(1, gt=0)
    log_every_n_steps: int = Field(50, gt=0)
    early_stopping: int | None = Field(None, gt=0)
    precision: Precision = "32"
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: int = Field(1, gt=0)
    num_nodes: int = Field(1, gt=0)
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true"] = "auto"
    auto_requeue: bool = False
    seed: int = Field(0, ge=0)
    num_threads: int | None = Field(None, gt=0)
    compile: bool = False
    cost: CostSettings | None = None

    @property
    def step_limit(self) -> int | None:
        """The most optimiser steps to take; the original reads 0 as no limit, too."""
        return self.max_steps if self.max_steps > 0 else None

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes
