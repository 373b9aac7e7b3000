"""The tutorials on a BERT, in their short form and in one process."""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the extra text (transformers) is not installed")

from chop.logger import root_logger
from chop.passes import PASSES

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    1: "dropout layers: 6, removed: 6, left: 0",
    2: "14 adapters folded",
    3: "LinearInteger, scaled_dot_product_attention_integer",
    4: "sparsity 0.5: 14 weights pruned",
    5: "the best, in 8 bits and pruned",
    6: "bits a weight",
}


@pytest.fixture(autouse=True)
def left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a tutorial registers, and how much it lets be said, is gone after it."""
    for table in ("_entries", "_owners"):
        monkeypatch.setattr(PASSES, table, dict(getattr(PASSES, table)))
    level = root_logger.level
    yield
    root_logger.setLevel(level)


@pytest.mark.parametrize("number", PRINTED)
def test_a_tutorial_runs(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    script = EXAMPLES / f"tutorial{number}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", "--output", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert PRINTED[number] in printed
    saved = tmp_path / f"tutorial{number}"
    assert saved.is_dir() == (number < 6)
