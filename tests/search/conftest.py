"""A small network on the embedded data, and searches over it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from search_cases import Searcher, StoreMaker, space_of, tables

from chop.dataset import MaseDataModule
from chop.models import get_model, get_model_info
from chop.search.config import parse_search
from chop.search.spaces.space import SearchContext
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store
from chop.search.study.store import Store


@pytest.fixture(scope="session")
def data() -> MaseDataModule:
    module = MaseDataModule("jsc-sim", batch_size=64)
    module.setup()
    return module


@pytest.fixture(scope="session")
def context(data: MaseDataModule) -> SearchContext:
    """jsc-tiny with fixed random weights, whose batch statistics are not trivial."""
    torch.manual_seed(1)
    model = get_model("jsc-tiny", "cls", dataset_info=data.dataset_info)
    with torch.no_grad():
        for features, _ in [next(iter(data.train_dataloader()))]:
            model.train()(features)
    return SearchContext(model.eval(), get_model_info("jsc-tiny"), data)


@pytest.fixture
def open_at(tmp_path: Path) -> StoreMaker:
    """Stores on one journal file, each as another process would open it."""

    def make(name: str = "study.log") -> Store:
        return open_store(Place(str(tmp_path / name), "search"), ["maximize", "minimize"], {})

    return make


@pytest.fixture
def search_with(context: SearchContext, open_at: StoreMaker) -> Searcher:
    """A finished search; keywords are keys of ``strategy.setup``."""

    def run(seed: int = 0, store: Store | None = None, **setup: Any) -> Search:
        config = parse_search(tables(**setup))
        found = Search(space_of(context, config), config, store or open_at(), seed)
        found.run()
        return found

    return run
