"""The examples in docs/datasets.md and docs/models.md run as they are printed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chop.dataset import DATASETS, MaseDataModule
from chop.models import MODELS, get_model

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    kept = [(registry, dict(registry)) for registry in (DATASETS, MODELS)]
    yield
    for registry, entries in kept:
        registry._entries.clear()
        registry._entries.update(entries)


def examples(page: str, naming: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return "\n".join(block for block in blocks if naming in block)


def test_a_registered_data_set_feeds_a_registered_model() -> None:
    names: dict[str, object] = {}
    exec(examples("datasets.md", "register_dataset"), names)
    exec(examples("models.md", "register_model"), names)
    exec(examples("models.md", "PHYSICAL_MODELS"), names)
    data = MaseDataModule("moons", batch_size=100)
    x, y = next(iter(data.train_dataloader()))
    for name in ("jsc-wide", "jsc-x"):
        scores = get_model(name, dataset_info=data.dataset_info)(x)
        assert scores.shape == (100, 2)
        assert torch.nn.functional.cross_entropy(scores, y).isfinite()


@pytest.mark.parametrize(("page", "registry"), [("datasets.md", DATASETS), ("models.md", MODELS)])
def test_every_name_is_on_its_page(page: str, registry: dict[str, object]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in registry if f"`{name}`" not in text] == []
