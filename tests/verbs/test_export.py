"""ch export: from a saved graph or a run to files, in one piece or not at all."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import chop
import chop.passes as passes
from chop.cli import main
from chop.config.verb import all_options
from chop.errors import ChopError, ConfigError, OutputError
from chop.export import EXPORT_TARGETS, exporting
from chop.export.verilog.target import Hardware
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import Engine, lower
from chop.verbs.export.saved import export_graph_file as export

CONFIG = {"name": "integer", "data_in_width": 6, "data_in_frac_width": 3}
CONFIG |= {"weight_width": 4, "weight_frac_width": 3}


@pytest.fixture(scope="module")
def graph() -> MaseGraph:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    made, _ = passes.init_metadata_analysis_pass(MaseGraph(net))
    x = torch.randn(3, 4)
    made, _ = passes.add_common_metadata_analysis_pass(made, {"dummy_in": {"input": x}})
    made, _ = passes.quantize_transform_pass(made, {"by": "type", "linear": {"config": CONFIG}})
    return made


@pytest.fixture
def run(graph: MaseGraph, tmp_path: Path) -> Path:
    """The folder of a project with a transformed graph."""
    folder = tmp_path / "project"
    passes.save_mase_graph_interface_pass(graph, folder / "software/transform/transformed_ckpt")
    return folder


def test_a_run_becomes_c(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--load", str(run), "--to", "c", "--rows", "30"]) == 0
    folder = run / "software/transform/export_c"
    assert f"Exported: {folder}, equal to the engine on 30 rows" in capsys.readouterr().out
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["source"] == str(run / "software/transform/transformed_ckpt")
    assert manifest["verified"]["rows"] == 30
    assert manifest["checked_with"].startswith("cc -std=c99")
    assert manifest["inputs"][0]["format"]["width"] == 6
    for name, stated in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == stated


def record(run: Path, **settings: object) -> None:
    """The record of a run, as an action writes it."""
    told = [{"name": name, "effective": value} for name, value in settings.items()]
    text = json.dumps({"action": "transform", "settings": told})
    (run / "software" / "run_transform.json").write_text(text)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows of four features that no code stands for."""
    torch.manual_seed(1)
    lines = ((*row.tolist(), n % 2) for n, row in enumerate(torch.randn(60, 4)))
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c,d,y\n" + "\n".join(",".join(map(str, line)) for line in lines))
    return path


def test_the_rows_of_the_run_are_among_those_of_the_check(
    run: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(run, model="net", dataset="csv", dataset_path=str(table), label_column="y", seed=0)
    assert main(["export", "--load", str(run), "--to", "integer", "--rows", "30"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Graph: equal to the engine on 30 rows, in float32" in said
    verified = json.loads((run / "software/transform/export_integer/manifest.json").read_text())[
        "verified"
    ]
    assert verified["source"] == "val rows of csv; made rows, seed 0"
    real = verified["kinds"]["real"]
    assert 0 < real <= 15
    assert any(line.startswith(f"Rows: {real} real (val rows of csv), ") for line in said)
    assert verified["compared"] == {"graph": 30, "engine": 30, "file": 30}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "no record of a run names a data set"),
        ({"dataset": "mine"}, "the data set 'mine' is made by a file of yours"),
        ({"dataset": "csv", "dataset_path": "/nowhere.csv"}, "are not here any more: /nowhere.csv"),
        ({"dataset": "csv", "dataset_path": "/dev/zero"}, "are not here any more: /dev/zero"),
        ({"dataset": "jsc"}, "is fetched only where the data set is named"),
        ({"dataset": "jsc-sim"}, "the rows have the shape [16], not (4,)"),
    ],
)
def test_why_there_are_no_rows_of_the_run(
    settings: dict[str, str],
    reason: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if settings.get("dataset") == "jsc":
        monkeypatch.setenv("CHOP_CACHE", str(tmp_path / "cache"))
    record(run, model="net", **settings)
    done = export(run, "integer", rows=10)
    verified = done.manifest["verified"]
    assert reason in verified["not_compared"]["real rows"]
    assert "real" not in verified["kinds"]
    assert verified["compared"]["graph"] == 10
    assert any("Rows: 0 real (" in line and reason in line for line in done.said)


def test_unchecked_files_say_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "--load", str(run), "--to", "integer", "--rows=0"]
    assert main([*words, "--output", str(run / "program")]) == 0
    assert "not checked, as --rows 0 says" in capsys.readouterr().out
    manifest = json.loads((run / "program" / "manifest.json").read_text())
    assert manifest["verified"]["rows"] == 0
    assert manifest["checked_with"] is None
    # A program that was exported can be exported in turn; --quiet leaves the folder.
    again = ["export", "--load", str(run / "program"), "--to", "c", "-q", "--rows", "5"]
    assert main(again) == 0
    assert capsys.readouterr().out == f"{run / 'export_c'}\n"


def test_the_package_is_the_function(graph: MaseGraph, tmp_path: Path) -> None:
    done = chop.export(graph, to="integer", output=tmp_path / "p", rows=3)
    assert done.verified_rows == 3
    assert done.manifest["source"] == "a graph in memory"
    assert chop.export.export is exporting.export


def test_the_command_line_offers_every_form() -> None:
    assert set(all_options()["to"].choices) == set(EXPORT_TARGETS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "c"], "--load PATH is missing: write ch export --load PATH --to FORM"),
        (["--load", "RUN"], "--to FORM is missing"),
        (["--load", "RUN", "--to", "vhdl"], "--to: no choice 'vhdl': known are"),
        (["--load", "RUN", "--to", "c", "--rows", "-1"], "--rows: "),
        (["--load", "RUN", "--to", "c", "--rows", "few"], "--rows: "),
        (["--load", "nowhere", "--to", "c"], "nowhere: no such file or folder"),
        (["--load", "RUN", "--to", "c", "--load-type", "pt"], "load type 'pt' has weights only"),
        (["--load", "RUN", "--to", "c", "--seed", "1"], "--seed means nothing to export"),
        (["jsc-tiny", "--load", "RUN", "--to", "c"], "unexpected argument 'jsc-tiny'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.rglob("*"))
    assert main(["export", *(str(run) if word == "RUN" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(run.rglob("*")) == before


def test_a_run_without_a_graph(tmp_path: Path) -> None:
    folder = tmp_path / "software" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "test_results.json").write_text("{}")
    with pytest.raises(ChopError, match="the run holds no saved graph: ch transform saves one"):
        export(tmp_path)


def test_a_graph_that_is_not_quantised(tmp_path: Path) -> None:
    made, _ = passes.init_metadata_analysis_pass(MaseGraph(nn.Sequential(nn.Linear(4, 2))))
    made, _ = passes.add_common_metadata_analysis_pass(
        made, {"dummy_in": {"input": torch.zeros(1, 4)}}
    )
    passes.save_mase_graph_interface_pass(made, tmp_path / "graph")
    with pytest.raises(ChopError, match="_0 reads the input 'input' in floating point: quantise"):
        export(tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_nothing_is_left_where_writing_fails(
    graph: MaseGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, name: Path) -> Path:
        raise OSError(28, "No space left on device")

    program = lower(graph)
    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OutputError, match="p: cannot be written: No space left"):
        chop.export(program, "c", tmp_path / "new" / "p", rows=0)
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_graph_lowers_to_the_same_program(graph: MaseGraph, run: Path) -> None:
    done = export(run, "integer", rows=10)
    x = torch.randn(50, 4)
    from chop.lowering import load_program

    assert torch.equal(Engine(load_program(done.folder))(x)[0], graph.model(x).double())


def test_a_search_gives_a_network_of_its_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project/software/search_ckpts"
    folder.mkdir(parents=True)
    (folder / "log.json").write_text("{}")
    head = 'model = "jsc-tiny"\ndataset = "jsc-sim"\n[passes.quantize]\nby = "type"\n'
    for number, width in enumerate((6, 5)):
        config = f'config = {{name = "integer", data_in_width = {width}, weight_width = 4}}\n'
        tables = (f"[passes.quantize.{kind}]\n{config}" for kind in ("linear", "batch_norm1d"))
        (folder / f"best_{number}.toml").write_text(head + "".join(tables))
    before = sorted(folder.iterdir())
    words = ["export", "--to", "integer", "--rows", "5", "-q", "--load"]
    widths = []
    for place in (tmp_path / "project", folder, folder / "best_1.toml"):
        assert main([*words, str(place), "--output", str(tmp_path / "program")]) == 0
        manifest = json.loads((Path(capsys.readouterr().out.strip()) / "manifest.json").read_text())
        widths.append(manifest["inputs"][0]["format"]["width"])
        assert manifest["source"] == str(folder / f"best_{int(place.suffix == '.toml')}.toml")
    assert widths == [6, 6, 5]
    assert sorted(folder.iterdir()) == before
    (folder / "best_0.toml").unlink()
    assert main([*words, str(tmp_path / "project")]) == 2
    assert (
        "no saved graph: ch transform saves one, and a search has a front"
        in capsys.readouterr().err
    )


def test_exporting_a_strangers_search_writes_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, canary = tmp_path / "project/software/search_ckpts", tmp_path / "canary"
    folder.mkdir(parents=True)
    (folder / "log.json").write_text("{}")
    head = 'model = "jsc-tiny"\ndataset = "jsc-sim"\n'
    harmful = (
        f"[passes.report_graph]\nfile_name = '{canary}'\n"
        f"[passes.emit_verilog_top]\nproject_dir = '{canary}'\n"
        f"[passes.save_mase_graph]\nsave_dir = '{canary}'\n"
    )
    (folder / "best_0.toml").write_text(head + harmful)
    words = ["export", "--to", "integer", "--rows", "5", "--load", str(tmp_path / "project")]
    assert main(words) == 2
    assert "no pass in it changes a network: name a saved graph" in capsys.readouterr().err
    config = 'config = {name = "integer", data_in_width = 6, weight_width = 4}\n'
    rules = "".join(f"[passes.quantize.{kind}]\n{config}" for kind in ("linear", "batch_norm1d"))
    quantize = f'[passes.quantize]\nby = "type"\n{rules}'
    (folder / "best_0.toml").write_text(head + quantize + harmful)
    assert main([*words, "--output", str(tmp_path / "program")]) == 0
    assert not canary.exists()


@pytest.mark.parametrize("name", ["", "/", ".", "..", "a/.."])
def test_a_folder_without_a_name_is_refused(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--load", str(run), "--to", "integer", "-o", name]) == 2
    assert f"export: {name!r} is not the name of a folder to write" in capsys.readouterr().err


def test_registers_have_a_bound() -> None:
    with pytest.raises(ConfigError, match=r"stages must be 0 to 1,000 \(got 1001\)"):
        Hardware(stages=1001)
    assert Hardware(stages=1000).stages == 1000
