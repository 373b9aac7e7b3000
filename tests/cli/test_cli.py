"""`ch` as a person runs it: in a process of its own, looked at from outside."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm import ch

from chop import __version__
from chop.cli import main
from chop.config.verb import all_options, flags_of, verbs

MODEL = """
from torch import nn
from chop.models import register_model

@register_model("{name}")
def mine(info):
    "A model of my own."
    return nn.Linear(info.num_features, info.num_classes)
"""


def config(folder: Path, text: str) -> str:
    (folder / "run.toml").write_text(text)
    return "run.toml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown action 'trian': did you mean 'train'?"),
        (["train"], "no model is named: write ch ACTION MODEL DATASET, or use --config"),
        (["train", "jsc-tiny"], "no dataset is named"),
        (["train", "jsc-tniy", "jsc-sim"], "unknown model 'jsc-tniy': did you mean 'jsc-tiny'?"),
        (["train", "jsc-tiny", "jsc-smi"], "unknown dataset 'jsc-smi': did you mean 'jsc-sim'?"),
        (["train", "jsc-tiny", "jsc-sim", "--batch-size", "no"], "--batch-size: input should be"),
        (["train", "jsc-tiny", "jsc-sim", "--config", "."], ".: is a folder"),
        (["train", "--config", "no.toml"], "no.toml: there is no such file"),
        (
            ["train", "jsc-tiny", "jsc-sim", "--load", "no.ckpt"],
            "--load: there is no file or folder",
        ),
        (["train", "m", "d", "--import", "no.py"], "no.py: there is no such Python file to import"),
        (["train", "jsc-tiny", "jsc-sim", "--bacth-size", "3"], "unknown option '--bacth-size'"),
        (["info", "modles"], "unknown topic 'modles': did you mean 'models'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = ch(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ch: {message}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("this is not toml", "run.toml: not valid TOML"),
        ("", "no model is named"),
        ("seed = 1\nseed = 2", "run.toml: not valid TOML: Cannot overwrite a value"),
        ("batch_sise = 3", "run.toml: unknown key 'batch_sise': did you mean 'batch_size'?"),
        (
            "model = 'jsc-tiny'\ndataset = 'jsc-sim'\naccelerator = 'cuda'",
            "accelerator 'gpu': this",
        ),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, text: str, message: str) -> None:
    done = ch("train", "--config", config(tmp_path, text), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"ch: {message}")
    assert os.listdir(tmp_path) == ["run.toml"]


def test_a_project_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    arguments = ("train", "toy", "toy_tiny", "--max-epochs", "1", "--project-dir", "taken")
    done = ch(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "taken" in done.stderr
    assert "cannot be written" in done.stderr
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize("option", ["-h", "--help", "-V", "--version"])
def test_help_and_version(tmp_path: Path, option: str) -> None:
    done = ch(option, cwd=tmp_path)
    assert done.returncode == 0
    assert (__version__ if option in ("-V", "--version") else "usage: ch ACTION") in done.stdout


@pytest.mark.parametrize("action", verbs())
def test_an_action_shows_its_own_options_only(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([action, "--help"]) == 0
    shown = set(re.findall(r"^ +(?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    own = {flags_of(all_options()[name])[0] for name in verbs()[action].options}
    assert shown - {"--help"} == {flag for flag in own if flag != "-q"} | {"--quiet"}


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    done = ch(cwd=tmp_path)
    assert done.returncode == 2
    assert "usage: ch ACTION" in done.stdout


@pytest.mark.parametrize("topic", ["models", "datasets", "formats", "passes", "samplers", "ops"])
def test_info_lists_names_and_descriptions(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", topic]) == 0
    header, _, *rows = capsys.readouterr().out.rstrip().splitlines()
    assert header.split() == [topic, "description"]
    assert len(rows) >= 5
    assert all(len(row.split(None, 1)) == 2 for row in rows)


def test_info_by_the_originals_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--info", "model"]) == 0
    assert "jsc-tiny" in capsys.readouterr().out


def test_people_add_their_own_models(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL.format(name="my-net"))
    done = ch("info", "models", "--import", "mine.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "my-net" in done.stdout
    assert "A model of my own." in done.stdout


def test_a_taken_name_is_one_line(tmp_path: Path) -> None:
    for file in ("mine.py", "other.py"):
        (tmp_path / file).write_text(MODEL.format(name="my-net"))
    done = ch("info", "models", "--import", "mine.py", "--import", "other.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ch: other.py: model 'my-net' is already registered by ")
    assert done.stderr.count("\n") == 1


def test_a_built_in_name_may_be_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL.format(name="jsc-tiny"))
    done = ch("info", "models", "--import", "mine.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "mine.py takes the place of the built-in model 'jsc-tiny'" in done.stderr + done.stdout
    assert "A model of my own." in done.stdout


def test_a_file_that_fails_to_import_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\n1 / 0\n")
    text = 'model = "a"\ndataset = "b"\nimports = ["mine.py"]'
    file = config(tmp_path, text)
    done = ch("train", "--config", file, "--import", "mine.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "ch: mine.py, line 3: ZeroDivisionError: division by zero\n"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = ch("train", "jsc-tniy", "jsc", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_bug_says_so_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(arguments: list[str]) -> int:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr("chop.cli._run", broken)
    assert main(["train"]) == 1
    error = capsys.readouterr().err
    assert error == "ch: ZeroDivisionError: oh no (a bug in chop; --debug shows where)\n"


def test_ctrl_c_exits_with_130(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('slow', flush=True)\ntime.sleep(60)\n")
    running = subprocess.Popen(
        [sys.executable, "-m", "chop.cli", "info", "models", "--import", "slow.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "slow\n"
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=600)
    assert running.returncode == 130
    assert error == "ch: interrupted; what was finished is kept\n"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m chop.cli info ops | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
