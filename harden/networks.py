"""Random networks under random rules of quantisation, from tracing to loading."""

import contextlib
import itertools
import logging
import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from chop.ir.graph.mase_graph import MaseGraph
from harden.common import Row, share
from harden.forked import WORKERS
from harden.network_checks import check
from harden.network_rules import Rules, rules
from harden.network_source import FAMILIES, Network, networks

NETWORKS = {"rows": 800, "sequences": 700, "images": 700}
"""How many networks of each family are tried at full scale."""
CHUNK = 50
"""Networks under one seed: a failure is shrunk, and ends the chunk it is in."""
Job = tuple[str, int, int]
"""A chunk: its family, its number, which is the seed, and how many networks it has."""


@dataclass
class Case:
    """One network with its rules, as it was last tried."""

    network: Network | None = None
    rules: Rules = field(default_factory=dict)


def run(scale: float) -> Iterator[Row]:
    """All families of networks, in a process for each core or in this one if they are few."""
    jobs = [job for family in FAMILIES for job in chunks(family, share(NETWORKS[family], scale))]
    if len(jobs) <= len(FAMILIES):
        torch.set_num_threads(1)
        yield from rows(jobs, itertools.starmap(chunk, jobs))
        return
    start_anew = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, start_anew, torch.set_num_threads, (1,)) as pool:
        yield from rows(jobs, pool.map(chunk, *zip(*jobs, strict=True)))


def chunks(family: str, count: int) -> list[Job]:
    """So many networks of a family, in chunks."""
    sizes = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
    return [(family, place, size) for place, size in enumerate(sizes)]


def rows(jobs: Sequence[Job], results: Iterable[tuple[int, str]]) -> Iterator[Row]:
    """One line for each family."""
    found = list(zip(jobs, results, strict=True))
    for family in FAMILIES:
        tried = sum(count for job, (count, _) in found if job[0] == family)
        failures = tuple(failure for job, (_, failure) in found if job[0] == family and failure)
        yield Row("networks", f"networks on {family}", tried, len(failures), failures)


def chunk(family: str, number: int, size: int) -> tuple[int, str]:
    """Networks of one seed: how many were tried, and the code of the smallest that fails."""
    last, tried, failed = Case(), 0, False

    @seed(number)
    @settings(
        max_examples=size,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(networks(family), st.data())
    def tries(network: Network, data: st.DataObject) -> None:
        nonlocal tried, failed
        last.network, last.rules = network, {}

        def draw(graph: MaseGraph) -> Rules:
            last.rules = data.draw(rules(graph))
            return last.rules

        try:
            with quiet(), tempfile.TemporaryDirectory() as folder:
                check(network, draw, Path(folder))
        except Exception as error:
            failed = failed or not isinstance(error, HypothesisException)
            raise
        tried += not failed  # what follows a failure only makes it smaller

    try:
        tries()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a network that fails
        return tried + 1, shown(family, number, last, error)
    return tried, ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither warnings of torch nor lines of ours for each of thousands of networks."""
    logger = logging.getLogger("chop")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def shown(family: str, number: int, last: Case, error: Exception) -> str:
    """How to see a failure again: seed, code, inputs, rules and what went wrong."""
    network = last.network
    assert network is not None
    where = traceback.extract_tb(error.__traceback__)[-1]
    facts: dict[str, Any] = {
        "shape": network.shape,
        "seed": network.seed,
        "training": network.training,
        "scale": network.scale,
        "rules": last.rules,
    }
    place = f"{Path(where.filename).name}, line {where.lineno}"
    lines = [
        f"{family}, chunk {number}: {type(error).__name__}: {error} ({place})",
        network.source,
        *(f"{name} = {value!r}" for name, value in facts.items()),
    ]
    return "\n".join(lines)
