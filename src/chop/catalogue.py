"""What is registered, with a line each, known without importing torch.

The live registries fill as their modules are imported, which takes seconds. `ch info` reads this
copy of them instead: ``make catalogue`` writes it, and a test fails when it is out of date.
"""

import json
from pathlib import Path
from typing import Any

from chop.registry import Registry

CATALOGUE = Path(__file__).with_name("catalogue.json")
TOPICS = ("models", "datasets", "formats", "passes", "samplers", "ops")

Catalogue = dict[str, dict[str, str]]


def stored() -> Catalogue:
    """Topic, name and description of everything that comes with the package."""
    catalogue: Catalogue = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return catalogue


def live() -> Catalogue:
    """The same read off the registries, with what a user's files have added."""
    from chop.dataset import DATASETS
    from chop.models import MODELS
    from chop.numerics import FORMATS
    from chop.ops.table import OPS
    from chop.passes import PASSES
    from chop.search.samplers import SAMPLERS

    registries: dict[str, Registry[Any]] = {
        "models": MODELS,
        "datasets": DATASETS,
        "formats": FORMATS,
        "passes": PASSES,
        "samplers": SAMPLERS,
        "ops": OPS,
    }
    return {topic: registry.descriptions() for topic, registry in registries.items()}


def write() -> None:
    """Store what the registries hold."""
    from chop.files import write_text

    write_text(CATALOGUE, json.dumps(live(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
