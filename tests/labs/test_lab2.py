"""Lab 2 as a script, and what it must print."""

import re
from pathlib import Path

import pytest
from warm import python

SCRIPT = Path(__file__).parents[2] / "examples" / "lab2.py"

GRAPH = """\
graph():
    %x : [num_users=1] = placeholder[target=x]
    %seq_blocks_0 : [num_users=1] = call_module[target=seq_blocks.0](args = (%x,), kwargs = {})
    %seq_blocks_1 : [num_users=1] = call_module[target=seq_blocks.1](args = (%seq_blocks_0,), kwargs = {})
    %seq_blocks_2 : [num_users=1] = call_module[target=seq_blocks.2](args = (%seq_blocks_1,), kwargs = {})
    %seq_blocks_3 : [num_users=1] = call_module[target=seq_blocks.3](args = (%seq_blocks_2,), kwargs = {})
    return seq_blocks_3
Network overview:
{'placeholder': 1, 'get_attr': 0, 'call_function': 0, 'call_method': 0, 'call_module': 4, 'output': 1}
Layer types:
"""  # noqa: E501

TINY = """\
INFO     Quantized graph histogram:
INFO     
| Original type   | OP           |   Total |   Changed |   Unchanged |
|-----------------+--------------+---------+-----------+-------------|
| BatchNorm1d     | batch_norm1d |       1 |         0 |           1 |
| Linear          | linear       |       1 |         1 |           0 |
| ReLU            | relu         |       2 |         0 |           2 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |
"""  # noqa: W291

NEW = """\
| BatchNorm1d     | batch_norm1d |       4 |         0 |           4 |
| Linear          | linear       |       3 |         3 |           0 |
| ReLU            | relu         |       4 |         0 |           4 |
| output          | output       |       1 |         0 |           1 |
| x               | placeholder  |       1 |         0 |           1 |
"""

ROW = (
    "| seq_blocks_2 | call_module  | module_related_func | linear       "
    "| {'args': {'bias': {'stat': {'variance_precise': {'count': 5,"
)
DIFFERENCE = re.compile(
    r"Difference found at name: seq_blocks_2, MASE type: module_related_func, "
    r"MASE operation: linear\n"
    r"Original module: <class 'torch.nn.modules.linear.Linear'>, "
    r"Old Non Quantized Weights: tensor\([^>]*>\) --> "
    r"New module: <class 'chop\.passes\.graph\.transforms\.quantize\.quantized_modules"
    r"\.linear\.LinearInteger'>, New Quantized Weights: tensor\("
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("lab2")
    done = python(SCRIPT, "--quick", "--output", folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


def test_graphs_are_reported_as_in_the_labs(lab: tuple[str, Path]) -> None:
    printed, _ = lab
    # Once before quantisation and once after.
    assert printed.count(GRAPH) == 2
    assert "[BatchNorm1d(16, " in printed
    assert "Linear(in_features=16, out_features=5, bias=True), ReLU(inplace=True)]" in printed


def test_statistics_have_the_counts_of_the_seeds(lab: tuple[str, Path]) -> None:
    printed, _ = lab
    assert ROW in printed
    for count in (512, 160, 80, 5):
        assert f"'count': {count}," in printed


def test_histograms(lab: tuple[str, Path]) -> None:
    printed, folder = lab
    assert TINY in printed
    assert NEW in printed
    for name in ("jsc-tiny", "jsc-new"):
        for file in ("quantize_table.csv", "quantize_histogram.csv"):
            assert (folder / name / "quantize_summary" / file).is_file()


def test_differences_between_the_graphs(lab: tuple[str, Path]) -> None:
    printed, _ = lab
    assert len(DIFFERENCE.findall(printed)) == 2
    shown = re.findall(r"New Quantized Weights: tensor\(\[\[(.*?)\]\]", printed, re.DOTALL)
    values = [float(text) for part in shown for text in part.replace("\n", " ").split(",")]
    assert values
    assert all(value / 0.0625 == round(value / 0.0625) for value in values)


def test_own_pass_and_figures_and_files(lab: tuple[str, Path]) -> None:
    printed, folder = lab
    assert printed.count("FLOPs Calculation Breakdown: ") == 2
    linear, relus = 8 * (16 * 5 + 5), 8 * 16 + 8 * 5
    norm = re.search(
        r"BatchNorm1d\(16[^)]*\): \{'total_parameters': 32, 'computations': (\d+)", printed
    )
    assert norm is not None
    assert f"Total FLOPs:  {linear + relus + int(norm[1])}\n" in printed
    assert printed.count("Loaded graph gives the same outputs: True") == 2
    for name in ("jsc-tiny", "jsc-new"):
        assert (folder / name / "weights.png").read_bytes()[:4] == b"\x89PNG"
        assert (folder / name / "transformed_ckpt" / "graph.json").is_file()
