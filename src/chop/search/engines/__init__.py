"""Engines: what evaluates the requests of a search.

`engine` states the interface, `serial` evaluates in this process, `local` in processes of this
machine, `ray` on a cluster. An engine knows nothing of samplers and studies: whatever it loses is
asked for again, by `dispatch`, which claims trials, has them evaluated and records what came of
them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chop.errors import ConfigError
from chop.search.study.setup import LOCAL, SERIAL, EngineChoice

if TYPE_CHECKING:
    from chop.search.engines.engine import TrialEngine

__all__ = ["LOCAL", "SERIAL", "EngineChoice", "make_engine"]
INSTALL = "engine = 'ray' needs the package ray: pip install 'ray>=2.50'"


def make_engine(
    choice: EngineChoice, threads: int = 1, imports: Sequence[str] = (), *, may_fork: bool = True
) -> "TrialEngine":
    """Make an engine; it starts nothing yet.

    Args:
        threads: of each process.
        imports: files of the user's that a process reads first.
        may_fork: whether processes may start as forks.
    """
    engine: TrialEngine
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


def _make_ray(choice: EngineChoice, threads: int, imports: Sequence[str]) -> "TrialEngine":
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise ConfigError(INSTALL)
    from chop.search.engines import ray

    cluster = ray.Cluster(choice.address or ray.LOCAL, choice.slots, choice.gpus)
    return ray.RayEngine(cluster, threads, imports)
