"""What measures candidates: software (how good) and hardware (how costly) metrics."""

from chop.search.runners import hardware, software, training
from chop.search.runners.base import (
    HW_RUNNERS,
    SW_RUNNERS,
    Runner,
    RunnerArgs,
    hardware_runner,
    software_runner,
)

__all__ = [
    "HW_RUNNERS",
    "SW_RUNNERS",
    "Runner",
    "RunnerArgs",
    "hardware",
    "hardware_runner",
    "software",
    "software_runner",
    "training",
]
