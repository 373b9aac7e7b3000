"""Names too long for a file, numbers too large for a machine, and messages that stay one line."""

from pathlib import Path

import pytest
import torch

from chop.cli import LONGEST, main
from chop.config.run import RunConfig
from chop.dataset.data_module import TensorLoader
from chop.errors import ConfigError, UnknownNameError
from chop.registry import Registry
from chop.search.config import StrategySetup
from chop.validation import parse
from chop.verbs.common.session import check_counts


def test_a_name_too_long_for_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--project-dir", str(tmp_path / "out"), "--project", "x" * 300]
    assert main(["train", "jsc-tiny", "jsc-sim", *where]) == 2
    assert "cannot be a path: File name too long" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


LONG = "x" * 5000

ENDLESS = "x/" * 3000

RUN = ("test", "jsc-tiny", "jsc-sim")


@pytest.mark.parametrize(
    "arguments",
    [
        (*RUN, "--project", "x" * 300),
        (*RUN, "--project", LONG),
        *((*RUN, flag, name) for flag in ("--project-dir", "--load", "--dataset-path", "--import")
          for name in ("x" * 300, LONG, ENDLESS)),
        ("predict", "rows.csv", "--load", LONG),
        ("export", "--load", LONG, "--to", "c"),
        ("report", LONG),
        ("compare", ENDLESS),
        ("info", "models", "--import", ENDLESS),
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-2][:14]} of {len(arguments[-1])} letters",
)  # fmt: skip
def test_a_name_that_no_file_can_have_is_refused_where_folders_are_there(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mase_output").mkdir()
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert "cannot be a path: File name too long" in said
    assert len(said) < LONGEST
    assert [each.name for each in tmp_path.rglob("*")] == ["mase_output"]


def test_a_message_is_one_short_line_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text('"\\u001b[31m" = 1')
    assert main(["train", "--config", str(path)]) == 2
    assert capsys.readouterr().err.removesuffix("\n").isprintable()
    path.write_text(f'task = "{"x" * 9000}"')
    assert main(["train", "--config", str(path)]) == 2
    assert len(capsys.readouterr().err) < LONGEST + 20


@pytest.mark.parametrize("name", ["num_devices", "num_workers", "num_threads"])
def test_a_billion_processes_are_refused(name: str) -> None:
    check_counts(RunConfig(**{name: 2}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"{name} is 1000000000"):
        check_counts(RunConfig(**{name: 10**9}))  # type: ignore[arg-type]


def test_a_billion_jobs_are_refused() -> None:
    assert parse(StrategySetup, {"n_jobs": 2}, "setup").n_jobs == 2
    with pytest.raises(ConfigError, match=r"n_jobs: this machine takes at most"):
        parse(StrategySetup, {"n_jobs": 10**9}, "setup")


def test_a_registry_is_asked_for_a_list() -> None:
    registry: Registry[int] = Registry("thing")
    registry.add("a", 1)
    assert ["a"] not in registry
    with pytest.raises(UnknownNameError):
        registry[["a"]]  # type: ignore[index]


def test_batches_larger_than_any_number_of_torch() -> None:
    loader = TensorLoader(torch.zeros(5, 2), torch.zeros(5), batch_size=10**30)
    assert [len(x) for x, _ in loader] == [5]
