"""The demo says what it runs, and would not call a front right that is not."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from report_pages import put

from chop.config.command_line import parse_arguments

ROOT = Path(__file__).parents[2]
NUMBERS = {"accuracy": 0.7, "loss": 0.8, "average_bitwidth": 4.5, "bitops": 1000.0}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts/demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """What a search leaves of a front of two."""
    trial = {
        "software_metrics": {"loss": 0.8, "accuracy": 0.7},
        "hardware_metrics": {"average_bitwidth": 4.5, "bitops": 1000.0},
    }
    put(tmp_path / "search_ckpts/best.json", json.dumps({"0": trial, "1": trial}))
    return tmp_path / "search_ckpts"


def test_every_point_of_the_front_is_made_and_measured(demo: ModuleType, search: Path) -> None:
    points = list(demo.front(search, search / "verify"))
    assert [point.file.name for point in points] == ["best_0.toml", "best_1.toml"]
    assert len({point.check for point in points}) == 2
    for point in points:
        transform, test = (parse_arguments(list(map(str, each))) for each in point.commands())
        assert (transform["action"], test["action"]) == ("transform", "test")
        assert transform["config"] == test["config"] == str(point.file)
        assert (test["split"], test["load_name"]) == ("val", str(point.graph))


@pytest.mark.parametrize(("name", "factor"), [(None, 1), ("accuracy", 1.001), ("bitops", 0.999)])
def test_a_front_that_is_not_what_the_search_said_ends_the_demo(
    demo: ModuleType,
    search: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
    factor: float,
) -> None:
    again = NUMBERS | ({name: NUMBERS[name] * factor} if name else {})
    made = []
    monkeypatch.setattr(demo.Point, "make", made.append)
    monkeypatch.setattr(demo.Point, "measured", lambda _: again)
    points = list(demo.front(search, search / "verify"))
    if name is None:
        demo.verify(points)
        assert capsys.readouterr().out.count("✓ as in the search") == 2
    else:
        with pytest.raises(SystemExit, match="not what the search said"):
            demo.verify(points)
        assert "✗" in capsys.readouterr().out
    assert made == points


def test_a_command_that_fails_ends_the_demo(demo: ModuleType) -> None:
    with pytest.raises(SystemExit, match="there is no such folder"):
        demo.run(["report", "nowhere"], shown=False)


def test_the_files_of_the_demo_are_there(demo: ModuleType) -> None:
    for name in demo.SEARCHES.values():
        assert (ROOT / name).is_file()
