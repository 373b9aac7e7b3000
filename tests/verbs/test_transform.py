"""`ch transform`: the passes of a file, in its order, on a model."""

import csv
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from chop import MaseGraph
from chop.cli import main
from chop.dataset import MaseDataModule, get_dataset_info
from chop.models import get_model
from chop.passes import PASSES
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.passes.graph.interface import load_mase_graph

CONFIGS = Path(__file__).parents[2] / "configs" / "examples"

HISTOGRAM = """\
INFO     Quantized graph histogram:
INFO     
| Original type   | OP           |   Total |   Changed |   Unchanged |
|-----------------+--------------+---------+-----------+-------------|
| BatchNorm1d     | batch_norm1d |       1 |         0 |           1 |
| Linear          | linear       |       1 |         1 |           0 |
| ReLU            | relu         |       2 |         0 |           2 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |
"""  # noqa: W291  (the labs' output has the space)

OWN_PASS = """
from chop.passes import PassArgs, analysis_pass

class Args(PassArgs):
    greeting: str = "hello"

@analysis_pass("greet")
def greet_analysis_pass(graph, args: Args):
    "Say how many nodes there are."
    print(args.greeting, len(list(graph.nodes)))
    return graph, {}
"""


@pytest.fixture(autouse=True)
def _registry_restored() -> Iterator[None]:
    before = dict(PASSES)
    yield
    PASSES._entries.clear()
    PASSES._entries.update(before)


@pytest.fixture
def state_dict(tmp_path: Path) -> Path:
    model = get_model("jsc-tiny", task="cls", dataset_info=get_dataset_info("jsc-sim"))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def transform(tmp_path: Path, config: Path, *arguments: str) -> int:
    where = ("--project-dir", str(tmp_path), "--project", "out", "--cpu=0", "--batch-size", "8")
    return main(["transform", "--config", str(config), "--task", "cls", *where, *arguments])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('model = "jsc-tiny"\ndataset = "jsc-sim"\n' + text)
    return path


def test_the_lab_line(tmp_path: Path, state_dict: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--load", str(state_dict), "--load-type", "pt")
    assert transform(tmp_path, CONFIGS / "jsc_toy_by_type.toml", *arguments) == 0
    output = capsys.readouterr().out
    folder = tmp_path / "out" / "software" / "transform"
    assert HISTOGRAM in output
    assert "UNTRAINED" not in output
    messages = [
        "Initialising model 'jsc-tiny'...",
        "Initialising dataset 'jsc-sim'...",
        f"Project will be created at {tmp_path / 'out'}",
        "Transforming model 'jsc-tiny'...",
        f"Saved mase graph to {folder / 'transformed_ckpt'}",
        "Transformation is completed",
    ]
    places = [output.index(f"INFO     {message}\n") for message in messages]
    assert places == sorted(places)
    with (folder / "quantize" / "quantize_histogram.csv").open() as stream:
        assert next(csv.reader(stream))[-5:] == [
            "Original type", "OP", "Total", "Changed", "Unchanged",
        ]  # fmt: skip


def test_a_project_is_said_to_be_created_only_when_it_is(
    tmp_path: Path, state_dict: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--load", str(state_dict), "--load-type", "pt")
    config = CONFIGS / "jsc_toy_by_type.toml"
    (tmp_path / "taken").touch()
    assert transform(tmp_path / "taken", config, *arguments) == 2
    assert "Project" not in capsys.readouterr().out
    assert transform(tmp_path, config, *arguments) == 0
    assert f"Project will be created at {tmp_path / 'out'}\n" in capsys.readouterr().out
    assert transform(tmp_path, config, *arguments) == 0
    again = capsys.readouterr().out
    assert "will be created" not in again
    assert f"Project is at {tmp_path / 'out'}\n" in again


def test_untrained_weights_cannot_be_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transform(tmp_path, CONFIGS / "jsc_toy_by_type.toml") == 0
    assert "WARNING  No weights were loaded: the network is UNTRAINED" in capsys.readouterr().out


def test_passes_run_in_the_order_of_the_file(
    tmp_path: Path, state_dict: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(
        tmp_path,
        """
        [passes.report_graph]
        [passes.profile_statistics]
        by = "type"
        target_weight_nodes = ["linear"]
        target_activation_nodes = ["relu"]
        num_samples = 32
        weight_statistics.variance_precise = {device = "cpu", dims = "all"}
        activation_statistics.range_quantile = {device = "cpu", dims = "all", quantile = 0.97}
        [passes.report_node_meta_param]
        which = ["software"]
        [passes.prune]
        weight = {sparsity = 0.5, method = "l1-norm", scope = "local"}
        [passes.quantize]
        by = "type"
        default.config.name = "NA"
        linear.config = {name = "integer", data_in_width = 8, weight_width = 4, bias_width = 4}
        """,
    )
    assert transform(tmp_path, config, "--load", str(state_dict), "--load-type", "pt") == 0
    folder = tmp_path / "out" / "software" / "transform"
    report = (folder / "report_graph.txt").read_text()
    assert "Network overview:\n{'placeholder': 1," in report
    assert "'count': 512" in (folder / "report_node_meta_param.txt").read_text()


def test_a_saved_graph_is_transformed_further(
    tmp_path: Path, state_dict: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--load", str(state_dict), "--load-type", "pt")
    assert transform(tmp_path, CONFIGS / "jsc_toy_by_type.toml", *arguments) == 0
    saved = tmp_path / "out" / "software" / "transform" / "transformed_ckpt"
    config = written(tmp_path, "[passes.report_graph]\n")
    assert transform(tmp_path, config, "--load", str(saved), "--load-type", "mz") == 0
    assert (saved.parent / "transformed_ckpt-v1").is_dir()


def test_a_pass_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(OWN_PASS)
    config = written(
        tmp_path, f'imports = ["{tmp_path / "mine.py"}"]\n[passes.greet]\ngreeting = "hi"'
    )
    assert transform(tmp_path, config, "--import", str(tmp_path / "mine.py")) == 0
    assert "hi 6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "transform needs --config with a [passes.<name>] table for each pass"),
        ("[passes.quantise]", "unknown pass 'quantise': did you mean 'quantize'?"),
        ("[passes.report_graph]\nfile = 3", "pass 'report_graph': unknown key 'file'"),
        (
            "[passes.quantize]\nby = 'type'\n[passes.quantize.liner.config]\nname = 'integer'",
            "liner",
        ),
        (
            "[passes.quantize]\nby = 'type'\n[passes.quantize.linear.config]\nname = 'integr'",
            "unknown number format 'integr': did you mean 'integer'?",
        ),
    ],
)
def test_mistakes_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert transform(tmp_path, written(tmp_path, text)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_a_pass_without_a_schema_gets_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "from chop.passes import analysis_pass\n"
        '@analysis_pass("plain_mine")\n'
        "def mine(graph, pass_args):\n"
        '    "Show the arguments."\n'
        '    print("got", pass_args)\n'
        "    return graph, {}\n"
    )
    config = written(tmp_path, "[passes.plain_mine]\nx = 1\n")
    assert transform(tmp_path, config, "--import", str(tmp_path / "mine.py")) == 0
    assert "got {'x': 1}\n" in capsys.readouterr().out


def test_a_pass_that_saves_knows_where(tmp_path: Path) -> None:
    text = "[passes.save_mase_graph]\n[passes.save_node_meta_param]\n"
    assert transform(tmp_path, written(tmp_path, text)) == 0
    folder = tmp_path / "out" / "software" / "transform"
    assert (folder / "save_mase_graph" / "graph.json").is_file()
    assert (folder / "save_node_meta_param.txt").is_file()


AUTO = """
[passes.quantize.linear.config]
name = "integer"
data_in_width = 8
data_in_frac_width = "auto"
weight_width = 3
weight_frac_width = "auto"
"""
HOW = """
method = "percentile"
percentile = 99
num_samples = 300
"""


def test_scales_come_from_training_rows(
    tmp_path: Path, state_dict: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the quantise pass sets them, or the calibrate pass after it."""
    load = ("--load", str(state_dict), "--load-type", "pt")
    for how in ("[passes.quantize.calibrate]", "[passes.calibrate]"):
        run = written(tmp_path, AUTO + how + HOW)
        assert transform(tmp_path, run, *load) == 0
    shown = capsys.readouterr().out
    assert shown.count("Operands on 300 rows in floating point:") == 2
    folder = tmp_path / "out" / "software" / "transform"
    at_once, later = (
        load_mase_graph(folder / each) for each in ("transformed_ckpt", "transformed_ckpt-v1")
    )
    layers = [each.model.get_submodule("seq_blocks.2") for each in (at_once, later)]
    assert layers[0].config == layers[1].config
    data = MaseDataModule("jsc-sim", batch_size=8)
    data.setup()
    rows = torch.cat([x for x, _ in itertools.islice(data.train_dataloader(), 38)])[:300]
    model = get_model("jsc-tiny", dataset_info=data.dataset_info).eval()
    model.load_state_dict(torch.load(state_dict))
    with torch.no_grad():
        seen = model.seq_blocks[:2](rows)
    (node,) = (each for each in later.nodes if each.name == "seq_blocks_2")
    kept = node.meta["mase"]["software"]["args"]["data_in_0"]["stat"]["saturation"]
    assert kept["max"] == pytest.approx(float(seen.max()))
    assert kept["saturated"] <= 0.01


def test_training_rows_are_what_effective_bit_operations_are_counted_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(
        tmp_path,
        """
        [passes.quantize]
        by = "type"
        linear.config = {name = "integer", data_in_width = 8, weight_width = 6}
        [passes.count_operations]
        num_samples = 100
        """,
    )
    assert transform(tmp_path, config) == 0
    shown = capsys.readouterr().out
    assert "EBOPs with the values of 100 rows." in shown
    saved = MaseGraph.from_checkpoint(tmp_path / "out/software/transform/transformed_ckpt")
    rows = MaseDataModule("jsc-sim", batch_size=100).train_dataloader()
    assert f" {ebops(saved, [next(iter(rows))[0]]).total:,} |" in shown


def test_what_a_transform_costs_is_told_on_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "jsc-tiny", "jsc-sim", "--max-steps", "20", "--learning-rate", "1e-2"]
    assert main([*train, "--project-dir", str(tmp_path), "--project", "t", "-q"]) == 0
    config = CONFIGS / "jsc_toy_by_type.toml"
    where = ["--project-dir", str(tmp_path), "--project", "t", "--load", str(tmp_path / "t")]
    assert main(["transform", "--config", str(config), *where]) == 0
    shown = re.search(
        r"Accuracy on the same 20,000 validation rows: ([\d.]+) ±([\d.]+) before, ([\d.]+) ±",
        capsys.readouterr().out,
    )
    assert shown
    stored = json.loads((tmp_path / "t/software/run_transform.json").read_text())["accuracies"]
    for place, name in ((1, "before"), (3, "after")):
        assert f"{stored[name]['accuracy']:.4f}" == shown[place]
    for name, graph in (("before", "t"), ("after", "t/software/transform/transformed_ckpt")):
        test = ["test", "jsc-tiny", "jsc-sim", "--load", str(tmp_path / graph), "--split", "val"]
        assert main([*test, "--project-dir", str(tmp_path), "--project", name]) == 0
        found = tmp_path / name / "software/checkpoints/test_results.json"
        assert json.loads(found.read_text())["val_acc_epoch"] == stored[name]["accuracy"]
