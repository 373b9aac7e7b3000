"""Engines: what evaluates the requests of a search.

`engine` states the interface, `serial` evaluates in this process, `local` in processes of this
machine, `ray` on a cluster. An engine knows nothing of samplers and studies: whatever it loses is
asked for again, by `dispatch`, which claims trials, has them evaluated and records what came of
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chop.errors import ConfigError

if TYPE_CHECKING:
    from chop.search.engines.engine import Engine

SERIAL, LOCAL, RAY = ENGINES = ("serial", "local", "ray")
INSTALL = "engine = 'ray' needs the package ray: pip install 'machop[ray]'"


@dataclass(frozen=True)
class EngineChoice:
    """Which engine evaluates, and where.

    Attributes:
        name: by default `serial` for one slot, else `local`.
        slots: processes of this machine.
        address: of a Ray cluster: ``auto``, ``host:port``, or ``local`` to start one here.
        batch: trials of a batch; by default as many as take a tenth of a second.
        gpus: GPUs of a trial, on Ray.
    """

    name: str | None = None
    slots: int = 1
    address: str | None = None
    batch: int | None = None
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.name == SERIAL and self.slots > 1:
            raise ConfigError(f"engine = 'serial' has one slot, not n_jobs = {self.slots}")
        if self.name != RAY and (self.address or self.gpus):
            what = "address" if self.address else "gpus_per_trial"
            raise ConfigError(f"{what} is for engine = 'ray'")

    @property
    def kind(self) -> str:
        """The name of the engine."""
        return self.name or (SERIAL if self.slots == 1 else LOCAL)


def make_engine(
    choice: EngineChoice, threads: int = 1, imports: Sequence[str] = (), *, may_fork: bool = True
) -> "Engine":
    """Make an engine; it starts nothing yet.

    Args:
        threads: of each process.
        imports: files of the user's that a process reads first.
        may_fork: whether processes may start as forks.
    """
    engine: Engine
    if choice.kind == SERIAL:
        from chop.search.engines.serial import Serial

        engine = Serial()
    elif choice.kind == LOCAL:
        from chop.search.engines.local import Local

        engine = Local(choice.slots, threads, imports, may_fork=may_fork)
    else:
        engine = _make_ray(choice, threads, imports)
    engine.batch = choice.batch
    return engine


def _make_ray(choice: EngineChoice, threads: int, imports: Sequence[str]) -> "Engine":
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise ConfigError(INSTALL)
    from chop.search.engines import ray

    cluster = ray.Cluster(choice.address or ray.LOCAL, choice.slots, choice.gpus)
    return ray.RayEngine(cluster, threads, imports)
