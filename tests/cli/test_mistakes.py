"""Forty plausible mistakes at the command line: each is one line that says what would be right."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chop.cli import main

FILES = {
    "junk.ckpt": "hello",
    "bad.toml": "model = jsc-tiny",
    "list.toml": 'model = ["jsc-tiny"]',
    "scalar.toml": 'model = "jsc-tiny"\ndataset = "jsc-sim"\n[passes]\nquantize = "integer"',
    "pass.toml": 'model = "jsc-tiny"\ndataset = "jsc-sim"\n[passes.quantise]',
    "ok.toml": 'model = "jsc-tiny"\ndataset = "jsc-sim"',
    "syntax.py": "def x(:\n",
}
RUN = "train jsc-tiny jsc-sim"
MISTAKES = {
    "trian jsc-tiny jsc-sim": "unknown action 'trian': did you mean 'train'?",
    "Train jsc-tiny jsc-sim": "unknown action 'Train': did you mean 'train'?",
    "train": "no model is named: write ch ACTION MODEL DATASET, or use --config",
    "train jsc-tiny": "no dataset is named: write ch ACTION MODEL DATASET, or use --config",
    "train jsc_tiny jsc-sim": "unknown model 'jsc_tiny': did you mean 'jsc-tiny'?",
    "train jsc-tiny jsc-smi": "unknown dataset 'jsc-smi': did you mean 'jsc-sim'?",
    "train jsc-sim jsc-tiny": "the model comes first: write ch ACTION jsc-tiny jsc-sim",
    f"{RUN} extra": "unexpected argument 'extra': write ch train [MODEL] [DATASET] [options]",
    f"{RUN} --bacth-size 3": "unknown option '--bacth-size': did you mean '--batch-size'?",
    f"{RUN} --batch_size 3": "unknown option '--batch_size': did you mean '--batch-size'?",
    f"{RUN} -batch-size 3": "unknown option '-batch-size': did you mean '--batch-size'?",
    f"{RUN} --batch-size": "--batch-size: a value must follow: a whole number",
    f"{RUN} --batch-size many": "--batch-size: input should be a valid integer (got 'many')",
    f"{RUN} --batch-size 1.5": "--batch-size: input should be a valid integer (got '1.5')",
    f"{RUN} --batch-size 0": "--batch-size: input should be greater than 0 (got '0')",
    f"{RUN} --learning-rate fast": "--learning-rate: input should be a valid number (got 'fast')",
    f"{RUN} --lr 0.1": "unknown option '--lr': did you mean --learning-rate?",
    f"{RUN} --epochs 3": "unknown option '--epochs': did you mean --max-epochs?",
    f"{RUN} --wibble": "unknown option '--wibble': ch train --help lists them all",
    f"{RUN} --model x": "--model is not an option: the names stand by themselves: ch ACTION",
    f"{RUN} --seed -1": "--seed: input should be greater than or equal to 0 (got '-1')",
    f"{RUN} --max-epochs NA": "--max-epochs: none is not possible; the default is 20",
    f"{RUN} --task clustering": "--task: no choice 'clustering': known are classification, cls",
    f"{RUN} --task regression": "data set 'jsc-sim' has classes: write task 'cls'",
    f"{RUN} --training-optimizer adamm": "--training-optimizer: no choice 'adamm': did you mean",
    f"{RUN} --load nothere.ckpt": "--load: there is no file or folder nothere.ckpt",
    f"{RUN} --weight-decay 1e308": "--weight-decay: input should be less than 3e+38 (got '1e308')",
    f"{RUN} --learning-rate 1e300": "--learning-rate: input should be less than 3e+38 (got '1e300",
    f"{RUN} --batch-size 1": "batch_size = 1: batch normalisation needs two rows in each batch",
    **{
        f"{RUN} --project {name}": f"--project: '{name}' is not the name of a folder; what leads"
        for name in ("..", ".", "../x", "a/b", "a/../..", "/absolute", "x/")
    },
    **{
        f"{RUN} --project {name}": "--project: '"
        for name in ("x" * 300, "é" * 128)
    },
    "search jsc-tiny jsc-sim --num-devices 2": "--num-devices 2 is for training; a search uses one",
    f"{RUN} --num-devices 2 --strategy fsdp": "--strategy: no choice 'fsdp': known are auto, ddp",
    "export --load x --to verilog --stages 1001": "--stages: input should be less than 1001 (got",
    f"{RUN} --resume=yes": "--resume takes no value: leave out ='yes'",
    f"{RUN} --output x.html": "--output means nothing to train: it is for report",
    f"{RUN} --split val": "--split means nothing to train: it is for test",
    "transform --config ok.toml --split val": "--split means nothing to transform: it is for test",
    "test jsc-tiny jsc-sim --max-epochs 3": "--max-epochs means nothing to test: it is for train, ",
    f"{RUN} --import nothere.py": "nothere.py: there is no such Python file to import",
    f"{RUN} --import syntax.py": "syntax.py, line 1: SyntaxError",
    f"{RUN} --target verilog": "--target has no meaning here: ch export --to verilog writes",
    f"{RUN} --config": "--config: a value must follow: a path",
    "train --config nothere.toml": "nothere.toml: there is no such file",
    "train --config folder": "folder: is a folder; a TOML file is expected",
    "train --config bad.toml": "bad.toml: not valid TOML: Invalid value (at line 1, column 9)",
    "train --config junk.ckpt": "junk.ckpt: not valid TOML",
    "train --config list.toml": "list.toml: model: input should be a valid string (got ['",
    "transform --config scalar.toml": "scalar.toml: passes: quantize: input should be a valid "
    "dictionary (got 'integer')",
    "transform --config pass.toml": "unknown pass 'quantise': did you mean 'quantize'?",
    "transform --config ok.toml": "transform needs --config with a [passes.<name>] table",
    "search --config ok.toml": "search needs --config with [search.search_space]",
    "train jsc-tiny csv --dataset-path folder": "folder: is a folder; name the file",
    "report": "no run is named: write ch report RUN_DIR, such as mase_output/<project>",
    "report nothere": "nothere: there is no such folder; name the folder of a project",
    "report junk.ckpt": "junk.ckpt: is a file; name the folder of a project",
    "report folder folder": "unexpected argument 'folder': write ch report RUN_DIR",
    "report folder --config ok.toml": "--config means nothing to report: it is for train, test, ",
    "info modles": "unknown topic 'modles': did you mean 'models'?",
    "info formats intger": "unknown name 'intger': did you mean 'integer'?",
    "info models a b": "unexpected argument 'b': write ch info [TOPIC] [NAME] [options]",
    "info --batch-size 3": "--batch-size means nothing to info: it is for train, test, ",
    "train --info models": "--info stands alone: leave out 'train', or write ch train --help",
    "doctor all": "unexpected argument 'all': write ch doctor",
    "completion": "no shell is named: write ch completion bash|zsh|fish",
    "completion powershell": "unknown shell 'powershell': known are bash, fish, zsh",
}  # fmt: skip


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_helpful_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ch: {MISTAKES[command]}")
    assert error.count("\n") == 1
    assert error.count("ch: ") == 1
    assert sorted(os.listdir(tmp_path)) == sorted([*FILES, "folder"])  # nothing is left behind


@pytest.mark.parametrize("command", ["test --load p", "predict --load p rows.csv"])
@pytest.mark.parametrize("value", [["a"], {"a": 1}, 5, True])
def test_a_record_with_a_model_that_is_no_name_is_refused(
    value: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "p" / "software"
    folder.mkdir(parents=True)
    record = {"action": "train", "settings": [{"name": "model", "effective": value}]}
    (folder / "run_train.json").write_text(json.dumps(record))
    assert main(command.split()) == 2
    wanted = "ch: p: the record of its project: model: input should be a valid string (got "
    assert capsys.readouterr().err.startswith(wanted)


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "usage: ch ACTION" in capsys.readouterr().out


def test_info_describes_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "passes", "prune"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("prune (passes): ")
    assert "weight.sparsity" in text
    assert main(["info", "toy_tiny"]) == 0
    assert capsys.readouterr().out.count("toy_tiny (") == 2  # a model and a data set
