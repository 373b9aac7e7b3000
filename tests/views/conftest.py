"""One small run of every action, made once."""

from pathlib import Path

import pytest

from chop.cli import main
from chop.verbs.report import report

CONFIG = """
model = "jsc-tiny"
dataset = "jsc-sim"
batch_size = 4096
load_type = "pl"

[passes.profile_statistics]
by = "type"
target_weight_nodes = ["linear"]
target_activation_nodes = ["relu"]
num_samples = 64
weight_statistics.variance_precise = {device = "cpu", dims = "all"}
activation_statistics.range_quantile = {device = "cpu", dims = "all", quantile = 0.97}

[passes.quantize]
by = "type"
default.config.name = "NA"
[passes.quantize.linear.config]
name = "integer"
data_in_width = 8
data_in_frac_width = 4
weight_width = 6
weight_frac_width = 4

[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
setup.by = "type"
[search.search_space.seed]
default.config.name = ["NA"]
[search.search_space.seed.linear.config]
name = ["integer", "NA"]
data_in_width = [4, 8]
weight_width = [2, 4, 8]
bias_width = [4, 8]

[search.strategy]
name = "optuna"
sw_runner.basic_evaluation.num_samples = 256
hw_runner.average_bitwidth.compare_to = 32
setup = {n_trials = 12, sampler = "random", plots = false}
metrics.accuracy = {scale = 1.0, direction = "maximize"}
metrics.average_bitwidth = {scale = 0.2, direction = "minimize"}
"""


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which everything was done once."""
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "run.toml"
    config.write_text(CONFIG, encoding="utf-8")
    where = ["--project-dir", str(folder), "--project", "all", "--report-to", "none"]
    best = str(folder / "all" / "software" / "training_ckpts" / "best.ckpt")
    given = ["--config", str(config), *where]
    assert main(["train", *given, "--max-epochs", "2", "--learning-rate", "0.01"]) == 0
    for action in ("test", "transform", "search"):
        assert main([action, *given, "--load", best]) == 0
    return folder / "all"


@pytest.fixture(scope="session")
def page_file(run_folder: Path) -> Path:
    """The page of that project."""
    return report(run_folder)
