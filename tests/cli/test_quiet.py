"""`--quiet` leaves errors and results; a pipe gets plain text."""

import logging
import warnings
from pathlib import Path

import pytest

from chop.catalogue import read_catalogue
from chop.cli import main
from chop.logger import RESULT, get_logger, only_results

SEARCH = """
[search.search_space]
name = "graph/quantize/mixed_precision_ptq"
[search.search_space.setup]
by = "type"
[search.search_space.seed.linear.config]
name = ["integer"]
data_in_width = [4, 8]
weight_width = [8]
data_in_frac_width = ["NA"]
weight_frac_width = ["NA"]
[search.strategy.sw_runner.basic_evaluation]
num_samples = 64
[search.strategy.setup]
n_trials = 2
sampler = "random"
plots = false
[search.strategy.metrics]
accuracy.direction = "maximize"
"""
PASSES = """
[passes.report_node_type]
[passes.quantize.linear.config]
name = "integer"
data_in_width = 8
weight_width = 8
"""
TRAIN = ("--max-epochs", "1", "--report-to", "none")


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> "Ran":
    return Ran(tmp_path, capsys)


class Ran:
    """Runs `ch` on a small network and keeps what it printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.software = folder / "run" / "software"
        self.capsys = capsys

    def __call__(self, action: str, *arguments: str, file: str = "") -> str:
        (self.folder / "run.toml").write_text(file)
        where = ("--project-dir", str(self.folder), "--project", "run")
        config = ("--config", str(self.folder / "run.toml"))
        assert main([action, "jsc-tiny", "jsc-sim", *config, *where, *arguments]) == 0
        out, error = self.capsys.readouterr()
        assert error == ""
        assert "\033" not in out  # no terminal, no colours and no bars
        return str(out)


def test_train_tells_where_the_checkpoints_are(ran: Ran) -> None:
    folder = ran.software / "training_ckpts"
    said = f"Checkpoints: {folder / 'best.ckpt'}, {folder / 'last.ckpt'}\n"
    assert ran("train", "--quiet", *TRAIN) == said
    loud = ran("train", *TRAIN)
    assert "| Name " in loud
    assert "INFO     Epoch 0" in loud
    assert f"INFO     Checkpoints: {folder / 'best-v1.ckpt'}" in loud


def test_test_tells_the_result(ran: Ran) -> None:
    out = ran("test", "-q")  # untrained: the warning is not shown
    assert out.startswith("Result\nTest rows: ")
    assert out.endswith(f"Test results are in {ran.software / 'checkpoints/test_results.json'}\n")
    assert "INFO" not in out
    assert "WARNING" not in out


def test_transform_tells_where_the_model_is(ran: Ran) -> None:
    saved = ran.software / "transform" / "transformed_ckpt"
    assert ran("transform", "--quiet", file=PASSES) == f"Saved mase graph to {saved}\n"
    assert "Mase op" in ran("transform", file=PASSES)


def test_search_tells_the_best_and_where_they_are(ran: Ran) -> None:
    out = ran("search", "--quiet", file=SEARCH)
    assert out.startswith("Best trial(s):\n     ")
    assert out.endswith(f"The results are in {ran.software / 'search_ckpts'}\n")
    assert "UNTRAINED" not in out
    assert "configurations" not in out


def test_a_file_may_ask_for_quiet_and_the_command_line_overrule_it(ran: Ran) -> None:
    assert ran("train", *TRAIN, file="quiet = true").startswith("Checkpoints")
    assert "| Name " in ran("train", "--no-quiet", *TRAIN, file="quiet = true")


def test_mistakes_are_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "jsc-tniy", "jsc-sim", "--quiet"]) == 2
    assert capsys.readouterr().err == "ch: unknown model 'jsc-tniy': did you mean 'jsc-tiny'?\n"
    assert main(["train", "--quiet", "--debug"]) == 2
    assert "--quiet and --debug contradict each other" in capsys.readouterr().err


def test_info_and_doctor_and_report(ran: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "samplers", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines() == list(read_catalogue()["samplers"])
    assert main(["doctor", "--quiet"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line]
    assert all("install" in row or "export" in row for row in rows)
    ran("train", "--quiet", *TRAIN)
    page = ran.folder / "page.html"
    assert main(["report", str(ran.folder / "run"), "--output", str(page), "-q"]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "</html>" in page.read_text()
    assert not (ran.folder / "run" / "report.html").exists()


def test_only_errors_and_results_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    logger = get_logger("chop.test")
    before = list(logging.getLogger("chop").handlers)
    with only_results():
        logger.info("a remark")
        logger.warning("a warning")
        logger.error("an error")
        logger.info("a %s", "result", extra=RESULT)
        print("a print")  # noqa: T201
        warnings.warn("from a library", stacklevel=1)
    assert capsys.readouterr() == ("an error\na result\n", "")
    assert logging.getLogger("chop").handlers == before
    with only_results(wanted=False):
        logger.info("a remark")
    assert "a remark" in capsys.readouterr().out


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_names_in_a_file_do_not_reach_a_terminal(
    quiet: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = r"p\u001b[31mq\u202ea\nforged"
    there = f"{tmp_path.as_posix()}/{name}"
    text = f'model = "jsc-tiny"\ndataset = "jsc-sim"\nproject = "{name}"\n'
    text += f'[passes.save_mase_graph]\nsave_dir = "{there}"\n'
    (tmp_path / "run.toml").write_text(text)
    given = ["transform", "--config", str(tmp_path / "run.toml"), "--project-dir", str(tmp_path)]
    assert main([*given, *quiet]) == 0
    out = capsys.readouterr().out
    assert r"q\u202ea\nforged" in out
    assert not {each for each in out if not each.isprintable()} - {"\n"}
    assert not [line for line in out.splitlines() if line.startswith("forged")]
