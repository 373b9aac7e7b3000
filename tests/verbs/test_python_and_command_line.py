"""Python and the command line have the same words, and each verb takes what another gives."""

import inspect
import logging
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chop
from chop.config.command_line import action_help
from chop.export.c.target import COptions
from chop.export.exporting import export
from chop.export.verilog.target import Hardware
from chop.lowering import Engine, load_program
from chop.search.config import StrategySetup
from chop.training.settings import TrainingSettings
from chop.verbs.common.rows import OTHER_WORDS
from chop.verbs.formats.module import ENGINE_WORDS, SETTINGS, compare_formats
from chop.verbs.quantize.module import quantize
from chop.verbs.search.front import OF_RUN
from chop.verbs.search.front import search_module as search
from chop.verbs.sensitivity.module import CONTEXT, ENGINE
from chop.verbs.sensitivity.module import module_sensitivity as sensitivity
from chop.verbs.test.module import evaluate
from chop.verbs.train.module import train_module as train


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_quantised_network_is_exported_as_it_is(tmp_path: Path) -> None:
    rows = torch.randn(50, 3)
    q = chop.quantize(network(), rows, width=6)
    done = chop.export(q, to="integer", output=tmp_path / "program")
    found = Engine(load_program(done.folder))(rows)
    assert torch.equal(found[0].double(), q(rows).double())
    circuit = chop.export(q, to="verilog", output=tmp_path / "circuit", stages=2, rows=0)
    assert circuit.manifest["circuit"]["latency_cycles"] == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"graph": network()}, r"takes what chop.quantize gives, .* not Sequential$"),
        ({"graph": chop.quantize(network(), torch.zeros(1, 3), width=6).model}, "not Sequential$"),
        ({"graph": "mase_output/toy"}, "not str$"),
        ({"stagse": 2}, "unknown setting 'stagse': did you mean 'stages'?"),
        ({"stages": 2}, "settings of hardware are for verilog, not for c"),
    ],
)
def test_mistakes_of_an_export(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    q = chop.quantize(network(), torch.zeros(1, 3), width=6)
    with pytest.raises(chop.errors.ConfigError, match=message):
        chop.export(**{"graph": q, "to": "c", "output": tmp_path / "p", **given})
    assert not list(tmp_path.iterdir())


class Turned(nn.Module):
    """Multiplies by a matrix, which the program stores turned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight)


def test_a_weight_that_lies_in_another_order_is_stored(tmp_path: Path) -> None:
    rows = torch.randn(20, 3)
    q = chop.quantize(Turned(), rows, width=6)
    done = chop.export(q, to="integer", output=tmp_path / "program")
    found = Engine(load_program(done.folder))(rows)
    assert torch.equal(found[0].double(), q(rows).double())


def loader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=draw) * 3
    return [(x[:30], (x[:30].sum(1) > 0).long()), (x[30:], (x[30:].sum(1) > 0).long())]


NET = network()
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "format": ({"format": "minifloat_ieee"}, {"number_format": "minifloat_ieee"}),
    "rule": ({"rule": {"_0": 4}}, {"layers": {"_0": 4}}),
}


@pytest.mark.parametrize("word", SAME)
def test_two_words_for_one_setting_of_quantize(word: str) -> None:
    new, old = SAME[word]
    x = loader()[0][0]
    first, second = (chop.quantize(NET, x, width=6, **given) for given in (new, old))
    assert torch.equal(first(x), second(x))
    assert not torch.equal(first(x), chop.quantize(NET, x, width=6)(x))
    with pytest.raises(chop.errors.ConfigError, match="are the same: give one of them"):
        chop.quantize(NET, x, width=6, **new, **old)
    with pytest.raises(chop.errors.UnknownNameError, match="did you mean 'weight_width'?"):
        chop.quantize(NET, x, wieght_width=6)


@pytest.mark.parametrize("given", [{"width": 0}, {"width": 8, "weight_width": 0}, {"width": -2}])
def test_a_width_of_no_bits_is_refused_not_replaced_by_the_default(given: dict[str, int]) -> None:
    with pytest.raises(chop.errors.ConfigError, match="numbers have at least 1 bit"):
        chop.quantize(NET, loader()[0][0], **given)


def test_weights_have_a_width_of_their_own_as_on_the_command_line() -> None:
    x = loader()[0][0]
    q = chop.quantize(NET, x, width=8, weight_width=3)
    formats = q.model.get_submodule("0").quant.operands
    assert (formats["data_in"].width, formats["weight"].width) == (8, 3)


def test_training_takes_the_words_of_the_command_line(tmp_path: Path) -> None:
    rows = loader()
    words = {"training_optimizer": "sgd", "trainer_precision": "32", "num_devices": 1, "seed": 3}
    results = []
    for place, more in enumerate(({"max_epochs": 2, **words}, {"epochs": 2, "optimizer": "sgd"})):
        torch.manual_seed(0)
        results.append(chop.train(network(), rows, rows, project=tmp_path / str(place), **more))
    losses = [[row["val_loss_epoch"] for row in each.history] for each in results]
    assert losses[0] == losses[1]
    assert len(results[0].history) == 2
    with pytest.raises(chop.errors.ConfigError, match="max_epochs and epochs are the same"):
        chop.train(network(), rows, epochs=2, max_epochs=3, project=tmp_path / "p")


def test_weights_can_be_loaded_by_the_word_of_the_command_line(tmp_path: Path) -> None:
    rows = loader()
    trained = chop.train(model := network(), rows, rows, max_epochs=1, project=tmp_path / "p")
    fresh: Any = chop.evaluate(network(), rows, load=trained.last)
    own: Any = chop.evaluate(model, rows)
    assert fresh.loss == own.loss


NOT_OF_A_CALL = {
    "config", "help", "debug", "log_level", "report_to", "pretrained", "import", "quiet", "profile",
    "no_warnings", "project_dir", "gpu", "batch_size", "cpu", "num_workers",
    "disable_dataset_cache", "dataset_path", "label_column", "odd_class", "augment",
}  # fmt: skip
"""What Python says otherwise: by logging, by imports, and by the model and loaders it gives."""
TRAINING = set(TrainingSettings.model_fields) | {"load_name", "load_type"}
VERBS: dict[str, tuple[Callable[..., Any], set[str], set[str]]] = {
    # a verb, what it takes beside its own keywords, and the flags that are not for it
    "quantize": (
        quantize, set(),
        {"accelerator", "load", "load_type", "num_threads", "project", "seed", "task"},
    ),
    "train": (train, TRAINING | {"resume"}, set()),
    "test": (evaluate, TRAINING | {"split", "exact"}, {"project"}),
    "sensitivity": (sensitivity, {*CONTEXT, *ENGINE}, {"num_threads"}),
    "formats": (
        compare_formats, {*SETTINGS, *ENGINE_WORDS}, {"load", "load_type", "num_threads"},
    ),
    "search": (
        search, {*OF_RUN, *StrategySetup.model_fields},
        # for studies of the settings of training
        {"accumulate_grad_batches", "early_stopping", "learning_rate", "max_epochs", "max_steps",
         "nodes", "num_devices", "scheduler", "trainer_precision", "training_optimizer",
         "weight_decay"},
    ),
    "export": (
        export, {each.name for kind in (Hardware, COptions) for each in fields(kind)},
        {"load", "load_type", "verify", "agreement", "all"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("action", VERBS)
def test_every_flag_is_a_keyword(action: str) -> None:
    verb, more, others = VERBS[action]
    text = action_help(action).format_help()
    flags = re.findall(r"^  (?:-\w, |--\w+ N, )?--([a-z-]+)", text, re.MULTILINE)
    wanted = {flag.replace("-", "_") for flag in flags} - NOT_OF_A_CALL - others
    known = set(inspect.signature(verb).parameters) | more
    known |= {word for word, name in OTHER_WORDS.items() if name in known}
    assert len(wanted) > 4
    assert wanted <= known


def test_an_unknown_word_is_named(tmp_path: Path) -> None:
    rows = loader()
    with pytest.raises(chop.errors.ConfigError, match="sede"):
        chop.sensitivity(network(), train=rows, val=rows, sede=1, project=tmp_path / "p")
    with pytest.raises(chop.errors.ConfigError, match="sede"):
        chop.train(network(), rows, sede=1, project=tmp_path / "p")
    with pytest.raises(chop.errors.ConfigError, match="sede"):
        chop.evaluate(network(), rows, sede=1)
    assert not list(tmp_path.iterdir())


def test_calibration_does_not_warn_of_its_own_choice(capsys: pytest.CaptureFixture[str]) -> None:
    rows = loader()
    q = chop.quantize(NET, width=3, calibrate=rows)  # the least error lets some values saturate
    assert q.info["calibration"]["operands"]["_0"]["data_in"]["saturated"] > 0.01
    assert capsys.readouterr().out == ""
    chop.quantize(NET, width=3, calibrate=rows, verbose=True)
    shown = capsys.readouterr().out
    assert "as calibrated" in shown
    assert "WARNING" not in shown


def test_results_are_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    chop.evaluate(NET, loader(), verbose=True)
    assert "Confusion matrix" in capsys.readouterr().out
    logging.getLogger("chop").setLevel("DEBUG")
    chop.evaluate(NET, loader())
    assert "Confusion matrix" in capsys.readouterr().out
