"""`ch test --exact`: a quantised network, tested in integers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from chop import MaseGraph
from chop.actions import test as run_test
from chop.cli import main
from chop.errors import ConfigError
from chop.models import get_model
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)

EVERY = {
    f"{role}_{key}": value
    for role in ("data_in", "weight", "bias")
    for key, value in (("width", 8), ("frac_width", 4))
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network all of whose operations are quantised, as a saved graph."""
    torch.manual_seed(0)
    graph, _ = init_metadata_analysis_pass(MaseGraph(get_model("jsc-tiny").eval()))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.zeros(2, 16)}})
    rule = {"config": {"name": "integer", **EVERY}}
    graph, _ = quantize_transform_pass(graph, {"by": "type", "default": rule})
    return graph.export(tmp_path_factory.mktemp("graph") / "saved")


def test_the_command_line_tests_in_integers(saved: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["test", "jsc-tiny", "jsc-sim", "--load", str(saved), "--batch-size", "4096"]
    where = ["--project-dir", str(tmp_path), "--project", "p"]
    assert main([*words, "--exact", *where]) == 0
    assert "In integers: the simulation is exact for every input" in capsys.readouterr().out
    assert main([*words, *where]) == 0
    exact, plain = (
        json.loads((tmp_path / "p/software/checkpoints" / name).read_text())
        for name in ("test_results.json", "test_results-v1.json")
    )
    found = exact.pop("integers")
    assert (found["promised"], found["different"], found["rows"]) == (True, 0, plain["rows"])
    assert exact["confusion_matrix"] == plain["confusion_matrix"]
    assert "integers" not in plain


def test_a_network_without_integers_is_refused_in_one_line() -> None:
    rows = TensorDataset(torch.randn(8, 16), torch.randint(0, 5, (8,)))
    with pytest.raises(ConfigError, match=r"exact: .* integers: seq_blocks_0 reads the input 'x'"):
        run_test(get_model("jsc-tiny"), None, DataLoader(rows, 4), exact=True)
    with pytest.raises(ConfigError, match="exact: the precision must be 32 or 64"):
        run_test(
            get_model("jsc-tiny"), None, DataLoader(rows, 4), exact=True, precision="bf16-mixed"
        )
