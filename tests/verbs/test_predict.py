"""``ch predict``: a row for every row, cells that are no formulas, tables read in pieces."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from chop.cli import main
from chop.config.run import RunConfig
from chop.dataset.tables import archives, parquet, text
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes.graph.interface import save_mase_graph_interface_pass
from chop.preprocessing import Preprocessing, Targets
from chop.verbs.predict.rows import predict
from chop.verbs.predict.sheets import open_sheet

CLASSES = ("=1+1", "-1.5", "tall")
FORMULA = '=HYPERLINK("http://x","y")'
Rows = list[list[str]]


def saved(folder: Path, known: Preprocessing, outputs: int) -> str:
    torch.manual_seed(0)
    graph = MaseGraph(nn.Sequential(nn.Linear(len(known.mean), outputs)))
    graph.preprocessing = known
    save_mase_graph_interface_pass(graph, folder)
    return str(folder)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network of three features, one of which is measured in very small units."""
    scale = (1.0, 1e-30, 1.0)
    known = Preprocessing("features", (0, 0, 0), scale, names=tuple("abc"), classes=CLASSES)
    return saved(tmp_path_factory.mktemp("net") / "graph", known, 3)


def read(name: str, delimiter: str = ",") -> Rows:
    with Path(name).open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream, delimiter=delimiter))


def predicted(
    graph: str, table: str | Rows, capsys: pytest.CaptureFixture[str], *words: str
) -> Rows:
    """What is printed for a table that is given as text or as rows."""
    if not isinstance(table, str):
        stream = io.StringIO()
        csv.writer(stream).writerows(table)
        table = stream.getvalue()
    Path("t.csv").write_text(table, encoding="utf-8", newline="")
    capsys.readouterr()
    assert main(["predict", "--load", graph, "t.csv", "-o", "-", *words]) == 0
    return list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FAULTS = {
    "1,0,3": "",
    "1,1e30,3": "column 'b' is too large to be scaled",
    ",,": "column 'a' is empty",
    "": "column 'a' is empty",
    "1,nan,3": "column 'b' says nan",
    "1,inf,3": "column 'b' says inf, which is beyond float32",
    "1,2e39,3": "column 'b' says 2e39, which is beyond float32",
    "1,0,x y": "column 'c' says 'x y', which is not a number",
    "3e38,0,-3e38": "",
}


def test_every_row_has_a_row_and_a_faulty_one_says_why(
    graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*FAULTS, "1,0,3"]
    head, *rows = predicted(graph, "a,b,c\n" + "\n".join(lines) + "\n\n\n", capsys)
    assert head == ["a", "b", "c", "prediction", "class_number", "probability", "problem"]
    assert [row[-1] for row in rows] == [*FAULTS.values(), ""]
    for line, row in zip(lines, rows, strict=True):
        assert row[:3] == (line.split(",") if line else ["", "", ""])
        assert all(map(bool, row[3:6])) == (not row[-1])
    assert {row[5] for row in rows} & {"nan"} == set()


@pytest.mark.parametrize("task", ["cls", "regression"])
def test_outputs_that_overflow_are_a_problem_too(task: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(1, 2))
    nn.init.constant_(model[0].weight, 1e30)
    large = MaseGraph(model)
    large.preprocessing = Preprocessing("features", (0,), (1,), targets=Targets((0, 0), (1, 1)))
    save_mase_graph_interface_pass(large, tmp_path / "large")
    Path("a.csv").write_text("a\n1\n3e38\n")
    found = predict(RunConfig(load_name=str(tmp_path / "large"), task=task), "a.csv", "out.csv")
    assert (found.rows, found.faulty) == (2, 1)
    good, bad = (row[1:] for row in read("out.csv")[1:])
    assert good[-1] == ""
    assert all(good[:-1])
    assert bad == [""] * (len(bad) - 1) + ["the network gives no finite numbers"]


def test_a_faulty_row_is_counted_and_said(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("a,b,c,y\n1,0,3,tall\n1,,3,tall\n")
    assert main(["predict", "--load", graph, "t.csv"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 2 rows could not be predicted: column 'problem' says why" in shown
    assert "1 rows predicted" in shown
    assert "on the 1 rows that have a label" in shown


CELLS = {
    FORMULA: f"'{FORMULA}",
    "@SUM(A1)": "'@SUM(A1)",
    "+cmd|' /C calc'!A0": "'+cmd|' /C calc'!A0",
    "-2+3": "'-2+3",
    "\t=1": "'\t=1",
    "\r=1": "'\r=1",
    "＝1+1": "'＝1+1",
    "-1.5": "-1.5",
    "+1e-3": "+1e-3",
    "-": "-",
    "a=b": "a=b",
    "'=1": "'=1",
    "": "",
}


def test_no_cell_is_a_formula(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of the columns that are kept nor of the names of classes, which a file brings."""
    generator = np.random.default_rng(0)
    features = [[str(round(x, 3)) for x in row] for row in generator.normal(size=(len(CELLS), 3))]
    table = [["a", "b", "c", "=note"]]
    table += [[*row, cell] for row, cell in zip(features, CELLS, strict=True)]
    for row in table[1:]:
        row[1] = "0"
    head, *rows = predicted(graph, table, capsys)
    assert head[3] == "'=note"
    assert [row[3] for row in rows] == list(CELLS.values())
    assert [row[:3] for row in rows] == [row[:3] for row in table[1:]]
    as_they_are = predicted(graph, table, capsys, "--raw-cells")
    assert [row[3] for row in as_they_are] == ["=note", *CELLS]
    names = {(plain[4], row[4]) for plain, row in zip(as_they_are[1:], rows, strict=True)}
    assert ("=1+1", "'=1+1") in names
    assert names <= {("=1+1", "'=1+1"), ("-1.5", "-1.5"), ("tall", "tall")}


def in_formats(rows: int) -> dict[str, list[str]]:
    """The same table in three formats, and the labels that it has."""
    import pyarrow
    from pyarrow import parquet as pq

    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, 3)).astype(np.float32)
    features[:, 1] *= 1e-30
    notes = [f"n{place % 7}" for place in range(rows)]
    with Path("t.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerows(
            [["a", "b", "c", "note"], *([*r, n] for r, n in zip(features, notes, strict=True))]
        )
    columns = dict(zip("abc", features.T, strict=True))
    pq.write_table(pyarrow.table(columns | {"note": notes}), "t.parquet", row_group_size=11)
    np.savez("t.npz", x=features, note=np.array(notes))
    np.savez_compressed("turned.npz", x=np.asfortranarray(features), note=np.array(notes))
    return {"notes": notes}


def test_pieces_are_the_table(
    graph: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = in_formats(50)["notes"]
    config = RunConfig(load_name=graph)
    files = ("t.csv", "t.parquet", "t.npz", "turned.npz")

    def written(name: str) -> Rows:
        assert predict(config, name, "out.csv").rows == 50
        return read("out.csv", ";" if name == "t.csv" else ",")

    def probabilities(tables: list[Rows]) -> list[float]:
        """Take the probabilities out: their last digit depends on how many rows a batch has."""
        columns = [(table, table[0].index("probability")) for table in tables]
        return [float(row.pop(column)) for table, column in columns for row in table[1:]]

    whole = [written(name) for name in files]
    for module in (text, parquet, archives):
        for limit in ("PIECE_BYTES", "PIECE_CELLS", "PIECE_ROWS"):
            if hasattr(module, limit):
                monkeypatch.setattr(module, limit, 40)
    pieces = list(open_sheet(Path("t.csv")).pieces())
    assert len(pieces) > 4
    assert [piece.start for piece in pieces[:2]] == [0, pieces[0].rows]
    parts = [written(name) for name in files]
    tails = [[row[-5:] for row in table[1:]] for table in whole]
    assert probabilities(parts) == pytest.approx(probabilities(whole), abs=2e-6)
    assert parts == whole
    assert [row[3] for row in whole[0][1:]] == notes
    assert tails[0] == tails[1] == tails[2] == tails[3]


WIDE = "a,b,c," + ",".join(f"n{place}" for place in range(60_000)) + "\n" + "1,0,3" + ",0" * 60_000


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (WIDE, "has 60,000 columns more than the 3 features of the model; at most 1,000 others"),
        (",".join(map(str, range(100_001))), "has 100,001 columns; a table may have 100,000"),
        ("a,b,c\n" + "1" * (1 << 24), "has a row of more than 16 MB of text"),
        ("a,b,c\n1,0,3\n1,0,3,4\n", "row 2 has 4 cells, but there are 3 columns"),
    ],
    ids=["wide", "header", "long", "ragged"],
)
def test_absurd_tables_are_one_line(
    graph: str, capsys: pytest.CaptureFixture[str], table: str, message: str
) -> None:
    Path("t.csv").write_text(table)
    assert main(["predict", "--load", graph, "t.csv"]) == 2
    said = capsys.readouterr().err
    assert f"ch: t.csv: {message}" in said
    assert said.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["t.csv"]


def test_a_wide_table_without_names_of_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = saved(tmp_path / "net" / "plain", Preprocessing("features", (0, 0), (1, 1)), 2)
    Path("t.csv").write_text(WIDE)
    assert main(["predict", "--load", plain, "t.csv"]) == 2
    said = capsys.readouterr().err
    assert "t.csv: has 60,003 columns of numbers, but the model was trained on 2 features" in said


IN_A_CHILD = """
import json, resource, sys

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

import numpy, pyarrow.compute, pyarrow.parquet, torch
from chop.verbs.predict.rows import predict
from chop.config.run import RunConfig
from chop.dataset import MaseDataModule
from chop.dataset.tables import growing

growing.IN_MEMORY = 4 << 20
config = RunConfig(load_name=sys.argv[1])

def tested(name):
    data = MaseDataModule("parquet", 4096, path=name, label_column="y", task="regression")
    return sum(len(labels) for _, labels in data.all_dataloader())

def rise(work, name):
    work(f"small_{name}.parquet")
    start = most()
    work(f"large_{name}.parquet")
    return most() - start

print(json.dumps([
    rise(tested, "numbers"), rise(lambda name: predict(config, name, "out.csv"), "texts")
]))
"""


def test_memory_does_not_grow_with_the_rows(graph: str) -> None:
    """Files of some kilobytes that would be 165 and 250 MB in memory: for testing, to predict."""
    import pyarrow
    from pyarrow import parquet as pq

    for name, rows in (("small", 100), ("large", 3_000_000)):
        columns = dict.fromkeys("ay", np.ones(rows))
        pq.write_table(pyarrow.table(columns), f"{name}_numbers.parquet", row_group_size=rows)
        rows //= 500 if name == "large" else 1
        columns = dict.fromkeys("abc", np.ones(rows)) | {"note": ["x" * 10_000] * rows}
        pq.write_table(pyarrow.table(columns), f"{name}_texts.parquet", row_group_size=rows)
        assert Path(f"{name}_texts.parquet").stat().st_size < 50_000
    told = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, graph], capture_output=True, text=True, check=True
    )
    numbers, texts = json.loads(told.stdout.splitlines()[-1])
    assert numbers < 100
    assert texts < 50
    with Path("out.csv").open() as stream:
        assert sum(1 for _ in stream) == 6_001
