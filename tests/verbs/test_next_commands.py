"""Every command that an action suggests is run, and what that suggests, until nothing is new."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chop.catalogue import read_catalogue
from chop.cli import main
from chop.config.layers import write_toml
from chop.config.verb import verbs
from chop.models.info import MODELS

SUGGESTED = re.compile(r"(?:Next:|or:  ) (ch .*)")
NET = """
from torch import nn

class NextNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 5)
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))

class Grown(nn.Module):
    def forward(self, x):
        return x.cumprod(1)  # which has no integers

class Layered(NextNet):
    def __init__(self):
        super().__init__()
        self.act = Grown()
"""
FLAT, IMAGES = "flat.npz", "images.npz"
ROWS = {
    "jsc-mlp": FLAT, "jsc-new": FLAT, "jsc-rs1923": FLAT, "jsc-s": FLAT,
    "jsc-tiny": FLAT, "jsc-tiny-x10": FLAT, "jsc-toy": FLAT, "toy": IMAGES, "toy_convnet": IMAGES,
    "toy_custom_fn": IMAGES, "toy_mlp": FLAT, "toy_tiny": IMAGES, "cnn-small": IMAGES,
}  # fmt: skip
TOO_LARGE = {
    "resnet18", "vgg7", "decoder-tiny", "encoder-tiny", "resnet8", "ds-cnn", "mobilenet-v1-025",
    "autoencoder-ad", "lenet5", "cnv", "decoder-small",
}  # fmt: skip
"""Each of their commands takes many seconds. All but those of decoder-small were run by hand."""
NOT_COMPILED = {"toy_convnet", "toy_custom_fn"}
"""Of these C is written, but not compiled, which takes longer than all the rest."""


class Followed:
    """Runs a command and all that follows from it.

    Args:
        change: what is changed in a command for the sake of time.
    """

    def __init__(
        self, capsys: pytest.CaptureFixture[str], change: Callable[[list[str]], list[str]]
    ) -> None:
        self.capsys = capsys
        self.change = change
        self.commands: list[str] = []

    def __call__(self, first: str) -> list[str]:
        left = [first]
        while left:
            command = left.pop(0)
            self.commands.append(command)
            code = main(self.change(shlex.split(command)[1:]))
            out, err = self.capsys.readouterr()
            assert code == 0, f"{command}: {err}"
            left += [each for each in SUGGESTED.findall(out) if each not in self.commands + left]
        return [each.split()[1] for each in self.commands]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "a folder").mkdir()
    monkeypatch.chdir(folder)
    draw = np.random.default_rng(0)
    for name, shape in ((FLAT, (16,)), (IMAGES, (3, 8, 8))):
        x = draw.normal(size=(60, *shape)).astype("float32")
        np.savez(folder / name, x=x, y=np.arange(60) % 5)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))


def quickly(words: list[str]) -> list[str]:
    """A command that learns for one step, and checks few rows."""
    short = {
        "train": ["--max-epochs=1", "--max-steps=1", "--report-to=none"],
        "export": ["--rows=9"],
    }
    return [*words, *short.get(words[0], [])]


def unchecked(words: list[str]) -> list[str]:
    return [*words, "--rows=0"] if words[0] == "export" else quickly(words)


def test_all_registered_models_are_here_or_too_large() -> None:
    assert ROWS.keys() | TOO_LARGE == read_catalogue()["models"].keys()


@pytest.mark.parametrize("model", ROWS)
def test_after_quantising(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    follow = Followed(capsys, unchecked if model in NOT_COMPILED else quickly)
    done = follow(f"ch quantize {model} {ROWS[model]} --width 8 --project 'my run'")
    assert {"quantize", "export", "test"} == set(done)


OWN = "my_net.py:NextNet"
LINEAR = {"name": ["integer"], "data_in_width": [4, 8], "data_in_frac_width": ["auto"]}
LINEAR |= {"weight_width": [4, 8], "weight_frac_width": ["auto"]}
EVALUATION: dict[str, Any] = {"basic_evaluation": {}}
SETTINGS = {"model": "jsc-mlp", "dataset": "npz", "dataset_path": FLAT, "batch_size": 20}


def search(space: str, seed: Any, runner: Any, **setup: Any) -> dict[str, Any]:
    """``[search]`` of two trials."""
    metrics = {"accuracy": {"direction": "maximize"}}
    sampled = {"sampler": "random", "n_trials": 2, "plots": False, **setup}
    return {
        "search_space": {"name": space, "setup": {"by": "type"} if "ptq" in space else {}}
        | ({"seed": seed} if seed else {}),
        "strategy": {"name": "optuna", "sw_runner": runner, "setup": sampled, "metrics": metrics},
    }


PTQ = "graph/quantize/mixed_precision_ptq"
PRODUCTS = {"default": {"config": {"name": [None]}}, "linear": {"config": LINEAR}}
LEARNED = search("graph/quantize/learned_widths", None, EVALUATION)
LEARNED["strategy"] |= {
    "name": "learned",
    "hw_runner": {"ebops": {}},
    "setup": {"float_epochs": 1, "cycles": 1, "epochs": 1, "snapshots": 1, "plots": False},
    "metrics": LEARNED["strategy"]["metrics"] | {"ebops": {"direction": "minimize"}},
}
RATES = {"learning_rate": [1e-3, 1e-2], "max_epochs": [1]}
BY_TYPE = {"by": "type", "linear": {"config": {k: v[-1] for k, v in LINEAR.items()}}}
FILES: dict[str, dict[str, Any]] = {
    "widths": {"search": search(PTQ, PRODUCTS, EVALUATION)},
    "widths_of_normalised": {
        "model": "jsc-toy", "search": search(PTQ, PRODUCTS, EVALUATION)
    },
    "widths_after_training": {"search": search(PTQ, PRODUCTS, {"basic_train": {}})},
    "settings": {
        "search": search("train/hyperparameters", RATES, {"hyperparameter_training": {}},
                         sampler="brute")
    },
    "learned": {"search": LEARNED},
    "quantised": {"passes": {"quantize": BY_TYPE | {"linear": {"config": {
        "name": "integer", "data_in_width": 8, "data_in_frac_width": 4,
        "weight_width": 8, "weight_frac_width": 4}}}}},
    "float": {"passes": {"count_operations": {}}},
}  # fmt: skip
STARTS = {
    "ch search --config widths.toml": {"search", "report", "export"},
    "ch search --config widths_of_normalised.toml": {"search", "report"},
    "ch search --config widths_after_training.toml": {
        "search", "report", "transform", "export", "test",
    },
    "ch search --config settings.toml": {
        "search", "report", "train", "test", "quantize", "export"
    },
    "ch search --config learned.toml": {"search", "report", "export"},
    "ch transform --config quantised.toml": {"transform", "export", "test"},
    "ch transform --config float.toml": {"transform", "test"},
    f"ch train {OWN} {FLAT}": {"train", "test", "quantize", "export"},
    f"ch sensitivity {OWN} {FLAT} --widths 4,8": {"sensitivity", "search", "report", "export"},
    f"ch quantize my_net.py:Layered {FLAT}": {"quantize", "test"},
}  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_after(start: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NET, encoding="utf-8")
    for name, tables in FILES.items():
        write_toml(Path(f"{name}.toml"), {**SETTINGS, **tables}, name)
    done = Followed(capsys, few_trials)(f"{start} --project 'my run'")
    assert set(done) == STARTS[start]


def few_trials(words: list[str]) -> list[str]:
    """The search that `sensitivity` suggests has a hundred trials."""
    if words[0] == "search" and "sensitivity" in words[2]:
        file = Path(words[2])
        text, count = re.subn("n_trials = 100", "n_trials = 2", file.read_text(encoding="utf-8"))
        assert count == 1
        file.write_text(text, encoding="utf-8")
    return quickly(words)


def test_after_training_a_graph_the_graph_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoint has weights without formats: to load it would test another network."""
    follow = Followed(capsys, quickly)
    follow(f"ch quantize toy_mlp {FLAT} --width 8 --project p")
    graph = "mase_output/p/software/transform/transformed_ckpt"
    done = follow(f"ch train --load {graph} --project q --batch-size 20")
    assert done[-3:] == ["train", "export", "test"]
    assert all("q/software/training_ckpts/transformed_ckpt" in c for c in follow.commands[-2:])


def test_every_action_that_suggests_something_is_here() -> None:
    source = Path(__file__).parents[2] / "src/chop/verbs"
    telling = {p for p in source.rglob("*.py") if "show_next(" in p.read_text(encoding="utf-8")}
    modules = {f"chop.verbs.{p.relative_to(source).parts[0].removesuffix('.py')}" for p in telling}
    homes = {name: ".".join(verb.home.split(".")[:3]) for name, verb in verbs().items()}
    actions = {name for name, home in homes.items() if home in modules}
    assert actions == {start.split()[1] for start in [*STARTS, "ch quantize"]}
