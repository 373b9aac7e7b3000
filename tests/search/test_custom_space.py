"""The space of docs/search.md, as it stands there: lab 4's channel multiplier."""

import re
from pathlib import Path
from typing import Any

import pytest
from search_cases import space_of, tables

from chop.search.config import parse_search
from chop.search.spaces.measure import Measure
from chop.search.spaces.space import SPACES, SearchContext
from chop.search.strategy import Search
from chop.search.study.storage import Place, open_store

DOCS = Path(__file__).parents[2] / "docs" / "search.md"
NAME = "model/channel_multiplier"


@pytest.fixture
def registered() -> Any:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "ChannelMultiplier" in block]
    exec(compile(code, str(DOCS), "exec"), {"__name__": "docs"})
    yield SPACES[NAME]
    SPACES._entries.pop(NAME)


def multiplier_tables() -> dict[str, Any]:
    found = tables(sampler="brute")
    found["search_space"] = {"name": NAME, "setup": {"largest": 4}, "seed": {}}
    found["strategy"]["hw_runner"] = {"flops": {}}
    found["strategy"]["metrics"] = {"flops": {"direction": "minimize"}}
    return found


@pytest.mark.usefixtures("registered")
def test_the_documented_space_is_searched(context: SearchContext, tmp_path: Path) -> None:
    config = parse_search(multiplier_tables())
    space = space_of(context, config)
    store = open_store(Place(str(tmp_path / "study.log"), "s"), ["minimize"], {})
    search = Search(space, config, store)
    search.run()
    trials = store.frozen_trials()
    assert len(trials) == space.size == 3
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3, trials[0].user_attrs[
        "reason"
    ]
    flops = [trial.values[0] for trial in trials]
    assert flops[0] < flops[1] < flops[2]


@pytest.mark.usefixtures("registered")
def test_its_trials_are_isolated(context: SearchContext) -> None:
    config = parse_search(multiplier_tables())
    space = space_of(context, config)
    measure = Measure(space, config)
    configs = [space.config_of({"hidden_multiplier": m}) for m in (1, 4, 1, 2, 4)]
    values = [measure(each).values for each in configs]
    assert values[0] == values[2]
    assert values[1] == values[4]
