"""The labs as notebooks: their form, and what they print when run."""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LABS = ("lab1", "lab2", "lab3")
COMMON = {"id", "cell_type", "metadata", "source"}
FIELDS = {"markdown": COMMON, "code": COMMON | {"execution_count", "outputs"}}
SWITCH = "QUICK = False"


def notebook(lab: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "examples" / f"{lab}.ipynb").read_text("utf-8"))
    return content


def code_cells(lab: str) -> list[str]:
    cells = notebook(lab)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Runs the code cells of a notebook, in quick mode, as one script in an empty folder."""

    def run_notebook(lab: str) -> str:
        cells = code_cells(lab)
        assert cells[0].count(SWITCH) == 1
        cells[0] = cells[0].replace(SWITCH, "QUICK = True")
        script = tmp_path / f"{lab}.py"
        script.write_text("\n\n".join(cells), "utf-8")
        settings = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-W", "error", script],
            cwd=tmp_path,
            # With a display, matplotlib would warn that Agg cannot show anything on it.
            env={name: v for name, v in os.environ.items() if name != "DISPLAY"} | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run_notebook


def table(printed: str, first: str) -> list[list[str]]:
    """The rows of the table whose header begins with a word, as lists of cells."""
    lines = printed.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(rf"\| {first}\s", line))
    rows = []
    for line, following in itertools.pairwise([*lines[start + 2 :], ""]):
        if not line.startswith("|") or following.startswith("|-"):  # the header of the next table
            break
        rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    return rows


@pytest.mark.parametrize("lab", LABS)
def test_the_file_is_a_notebook(lab: str) -> None:
    content = notebook(lab)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert set(content) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    kernel = content["metadata"]["kernelspec"]
    assert (kernel["name"], kernel["language"]) == ("python3", "python")
    assert kernel["display_name"]
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", each) for each in ids)
    for cell in content["cells"]:
        assert set(cell) == FIELDS[cell["cell_type"]]
        assert cell["metadata"] == {}
        lines = cell["source"]
        assert lines
        assert lines == "".join(lines).splitlines(keepends=True)


@pytest.mark.parametrize("lab", LABS)
def test_no_output_is_stored(lab: str) -> None:
    cells = [cell for cell in notebook(lab)["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all((cell["outputs"], cell["execution_count"]) == ([], None) for cell in cells)


@pytest.mark.parametrize("lab", LABS)
def test_cells_are_plain_python(lab: str) -> None:
    for cell in code_cells(lab):
        ast.parse(cell)  # a magic such as %matplotlib is a syntax error


def test_lab_1(run: Any) -> None:
    printed = run("lab1")
    assert "not the JSC data set" in printed
    assert "Total number of jsc-tiny parameters: 117\n" in printed
    assert "Total number of jsc-mine parameters: 1189 (10.2 times jsc-tiny)" in printed
    assert re.search(r"test_acc_epoch +0\.\d+ +\(95 % confidence: 0\.\d+ to 0\.\d+\)", printed)
    batches = table(printed, "batch_size")
    # 60,000 rows in batches of 256 and of 1,024; fewer updates learn less.
    assert [(row[0], row[4]) for row in batches] == [("256", "235"), ("1024", "59")]
    assert float(batches[0][1]) > float(batches[1][1])
    assert [row[4] for row in table(printed, "max_epochs")] == ["235", "470"]
    rates = table(printed, "learning_rate")
    assert [row[0] for row in rates] == ["0.0001", "0.01"]
    assert float(rates[0][1]) < float(rates[1][1])
    assert "best learning rate for batches of 1024: 0.01\n" in printed
    networks = {row[0]: row for row in table(printed, "network")}
    assert [(name, row[1]) for name, row in networks.items()] == [
        ("jsc-tiny", "117"),
        ("jsc-mine", "1189"),
        ("jsc-tiny-x10", "1997"),
    ]
    for row in networks.values():
        middle, low, high = map(float, re.findall(r"0\.\d+", row[3]))
        assert low < middle < high
        # Wilson's interval at 20,000 rows.
        assert high - low == pytest.approx(2 * 1.96 * (middle * (1 - middle) / 20_000) ** 0.5, 0.02)
    assert float(networks["jsc-tiny"][4]) > float(networks["jsc-tiny-x10"][4])


def test_lab_2(run: Any, tmp_path: Path) -> None:
    printed = run("lab2")
    overview = "{'placeholder': 1, 'get_attr': 1, 'call_function': 3, 'call_method': 1, "
    assert overview + "'call_module': 2, 'output': 1}" in printed
    for row in (
        "| norm        | call_module   | module              | batch_norm1d |",
        "| relu        | call_function | module_related_func | relu         |",
        "| scale       | get_attr      | get_attr            | get_attr     |",
        "| cat         | call_function | builtin_func        | cat          |",
    ):
        assert row in printed
    for count in (512, 160, 80, 5):
        assert f"'count': {count}," in printed
    assert re.findall(r"^changed: (\d)$", printed, re.MULTILINE) == ["1", "3"]
    assert "| Linear          | linear       |       3 |         3 |           0 |" in printed
    assert "--> New module: <class 'chop.passes.graph.transforms.quantize." in printed
    ranges = {
        (graph, node): ast.literal_eval(stat)
        for graph, node, stat in re.findall(
            r"^(ori_mg|mg) +(seq_blocks_\d): (\{.*\})$", printed, re.MULTILINE
        )
    }
    # They move only behind what is quantised.
    assert ranges["ori_mg", "seq_blocks_1"] == ranges["mg", "seq_blocks_1"]
    assert ranges["ori_mg", "seq_blocks_3"] != ranges["mg", "seq_blocks_3"]
    checks = re.findall(r"on the grid: (\w+), in range: (\w+), .*0\.0312: (\w+)\)", printed)
    assert checks == [("True",) * 3] * 3
    accuracies = {row[0]: float(row[2]) for row in table(printed, "linear layers in")}
    assert accuracies["float"] - 0.02 < accuracies["8 bits, 4 fractional"]
    assert accuracies["2 bits, 1 fractional"] < accuracies["float"] - 0.1
    assert "exit code 0\n" in printed
    assert printed.count("; the same: True\n") == 3
    assert "8-bit linear layers take 16 times fewer bit operations" in printed
    assert "Total FLOPs:  1104\n" in printed
    assert "same outputs: True\n" in printed
    assert "integers give the same: True\n" in printed
    assert ("so does the QONNX file: True\n" in printed) == bool(find_spec("onnx"))
    output = tmp_path / "mase_output" / "lab2"
    assert (output / "weights.png").read_bytes()[:4] == b"\x89PNG"
    assert (output / "jsc-new/software/transform/transformed_ckpt/graph.json").is_file()


def test_lab_3(run: Any, tmp_path: Path) -> None:
    printed = run("lab3")
    rows = table(printed, "data_in")
    assert len(rows) == 16
    assert {row[5] for row in rows} == {"2199"}
    # 960 multiplications at 16 × 16 and at 4 × 4 bits.
    assert (rows[0][6], rows[-1][6]) == (str(960 * 256), str(960 * 16))
    assert "the same in reverse order: True\nfloat again: True\n" in printed
    assert "20 distinct configurations of 64 were evaluated, 0 of them failed" in printed
    assert "brute force evaluated 64 of 64 configurations\n" in printed
    assert "|    |   number | software_metrics " in printed
    assert "the same when measured again: True\n" in printed
    samplers = {row[0]: row for row in table(printed, "sampler")}
    assert list(samplers) == ["tpe", "random", "brute"]
    assert samplers["brute"][2] == "64"
    assert all(0 < float(row[4]) <= 1 for row in samplers.values())
    assert printed.count("exit code 0\n") == 3
    output = tmp_path / "mase_output" / "lab3"
    front = json.loads((output / "brute-0" / "best.json").read_text("utf-8"))
    points = sorted(
        (each["hardware_metrics"]["average_bitwidth"], each["software_metrics"]["accuracy"])
        for each in front.values()
    )
    # More bits are on the front only if they are more accurate.
    assert [right for _, right in points] == sorted(right for _, right in points)
    assert front["0"]["hardware_metrics"]["largest_multiplier"] in (16, 32, 64)
    assert (output / "jsc-new-best/software/transform/transformed_ckpt/graph.json").is_file()
    assert (output / "jsc-new-brute/report.html").is_file()
