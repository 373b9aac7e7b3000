"""One trial: from a configuration to its metrics, or to the reason why it has none."""

import torch

from chop.search.config import SearchConfig
from chop.search.spaces.space import SearchSpace
from chop.search.study.store import Outcome
from chop.search.study.workers import at_any_moment


class Measure:
    """Measures configurations of one space as one ``[search]`` table asks."""

    def __init__(self, space: SearchSpace, config: SearchConfig) -> None:
        self.space = space
        self.metrics = config.metrics
        self.summed = config.strategy.setup.sum_scaled_metrics
        self.software = config.software()
        self.hardware = config.hardware()

    def __call__(self, config: dict[str, object]) -> Outcome:
        """Measure; whatever goes wrong with this configuration is its own affair."""
        try:
            with at_any_moment():
                return self._measure(config)
        except Exception as error:  # noqa: BLE001  # also an out-of-memory error: the next may fit
            reason = " ".join(str(error).split()) or "no reason given"
            return Outcome(reason=f"{type(error).__name__}: {reason}"[:500])

    def assist(self, config: dict[str, object]) -> bool:
        """Do a part of a trial that another process has under way; False if there is none."""
        candidate = self.space.candidate(config)
        try:
            with at_any_moment():
                return any(
                    runner.helper(candidate, args)
                    for runner, args in self.software
                    if runner.helper
                )
        except Exception:  # noqa: BLE001  # whose trial it is will find the same, and says so
            return False

    def _measure(self, config: dict[str, object]) -> Outcome:
        candidate = self.space.candidate(config)
        software: dict[str, float] = {}
        hardware: dict[str, float] = {}
        for found, runners in ((software, self.software), (hardware, self.hardware)):
            for runner, args in runners:
                found |= runner(candidate, args)
        measured = software | hardware
        scaled = {name: each.scale * measured[name] for name, each in self.metrics.items()}
        return Outcome(
            [sum(scaled.values())] if self.summed else list(scaled.values()),
            {
                "software_metrics": software,
                "hardware_metrics": hardware,
                "scaled_metrics": scaled,
            },
            {
                name: each.violation(measured[name])
                for name, each in self.metrics.items()
                if each.bounded
            },
        )


def fingerprint(model: torch.nn.Module) -> str:
    """A text that is the same for equal weights."""
    import hashlib

    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
                      if value.ndim else str(value.item()).encode())  # fmt: skip
    return digest.hexdigest()[:24]
