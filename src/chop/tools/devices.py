"""The device that a run takes."""

import torch

from chop.errors import ConfigError


def check_accelerator(name: str) -> None:
    """Refuse a device this machine lacks, and say what to write instead."""
    if name == "gpu" and not torch.cuda.is_available():
        raise ConfigError("accelerator 'gpu': this machine has none; write 'cpu' or 'auto'")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("accelerator 'mps': this machine has none; write 'cpu' or 'auto'")


def device_of(accelerator: str) -> torch.device:
    """The device that an accelerator setting stands for."""
    if accelerator in ("gpu", "auto") and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator in ("mps", "auto") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
