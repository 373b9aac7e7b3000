"""The registered names, with a line each, known without importing torch.

The live registries fill as their modules are imported, which takes seconds. `ch info` reads this
copy of them instead: ``make generate`` writes it, and a test fails when it is out of date.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from chop.registry import Registry

TOPICS = (
    "models", "datasets", "formats", "passes", "spaces", "strategies", "samplers", "sw_runners",
    "hw_runners", "ops", "targets",
)  # fmt: skip

CATALOGUE = Path(__file__).with_name("catalogue.json")
BETTER = {"maximize": "more is better", "minimize": "less is better"}

Catalogue = dict[str, dict[str, str]]
"""Topic, name and description."""
Traits = dict[str, dict[str, dict[str, Any]]]
"""Topic, name and what else an entry says of itself; without entries that say nothing."""


def read_catalogue() -> Catalogue:
    """Topic, name and description of everything that comes with the package."""
    content = _content()
    return {topic: content[topic] for topic in TOPICS}


def stored_traits() -> Traits:
    """Return what it says of itself beside that."""
    traits: Traits = _content()["traits"]
    return traits


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return content


def live() -> Catalogue:
    """As `read_catalogue`, read off the registries, with what a user's files have added."""
    return {topic: registry.descriptions() for topic, registry in _registries().items()}


def live_traits() -> Traits:
    """As `stored_traits`, read off the registries."""
    found = {
        topic: {name: said for name in sorted(entries) if (said := traits_of(entries[name]))}
        for topic, entries in _registries().items()
    }
    traits: Traits = json.loads(json.dumps({topic: each for topic, each in found.items() if each}))
    return traits


def _registries() -> dict[str, Registry[Any]]:
    from chop.dataset import DATASETS
    from chop.export import EXPORT_TARGETS
    from chop.models import MODELS
    from chop.numerics import FORMATS
    from chop.ops.table import OPS
    from chop.passes import PASSES
    from chop.search import config  # noqa: F401  # brings the spaces of the package
    from chop.search.runners import HW_RUNNERS, SW_RUNNERS
    from chop.search.samplers import SAMPLERS
    from chop.search.spaces.space import SPACES
    from chop.search.study.setup import STRATEGIES

    return {
        "models": MODELS,
        "datasets": DATASETS,
        "formats": FORMATS,
        "passes": PASSES,
        "spaces": SPACES,
        "strategies": STRATEGIES,
        "samplers": SAMPLERS,
        "sw_runners": SW_RUNNERS,
        "hw_runners": HW_RUNNERS,
        "ops": OPS,
        "targets": EXPORT_TARGETS,
    }


def traits_of(entry: object) -> dict[str, Any]:
    """Return the `traits` of an entry, and the `metrics` that it measures."""
    said: Any = getattr(entry, "traits", {})
    traits = dict(said) if isinstance(said, Mapping) else asdict(said)
    measured = [_metric(each) for each in getattr(entry, "metrics", ())]
    return traits | ({"metrics": measured} if measured else {})


def _metric(metric: Any) -> dict[str, str]:
    """Name, unit and direction of a metric, as far as its runner states them."""
    if isinstance(metric, str):
        return {"name": metric}
    stated = {name: getattr(metric, name, None) for name in ("name", "unit", "direction")}
    return {name: str(value) for name, value in stated.items() if value}


def metric_words(metric: Mapping[str, str]) -> str:
    """A metric in words: ``latency (ms, less is better)``."""
    direction = metric.get("direction", "")
    facts = [metric.get("unit", ""), BETTER.get(direction, direction)]
    said = ", ".join(filter(None, facts))
    return f"{metric['name']} ({said})" if said else metric["name"]


def trait_words(traits: Mapping[str, Any]) -> str:
    """All but the metrics in words: ``learns: yes; needs: scipy``."""
    said = {name: value for name, value in traits.items() if name != "metrics"}
    switches = {True: "yes", False: "no"}
    return "; ".join(
        f"{name}: {switches[value] if isinstance(value, bool) else value}"
        for name, value in said.items()
        if value not in (None, "")
    )
