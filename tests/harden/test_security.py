"""What is trusted and what is not: docs/security.md, held by machine."""

from pathlib import Path

import pytest

from chop.config.verb import verbs
from chop.search.study import storage
from harden import security, security_graph, security_pins
from harden.security_hostile import CANARY, HOSTILE, Hostile
from harden.security_source import ALLOWED, SOURCE, findings, search

ROOT = Path(__file__).parents[2]


def test_the_package_runs_and_fetches_nothing_by_itself() -> None:
    files, found = search()
    assert files > 100
    assert list(map(str, found)) == []


def test_every_exception_is_still_needed() -> None:
    for name, what in ALLOWED:
        top = what.rpartition(".")[2]
        assert top in (SOURCE / name).read_text(encoding="utf-8"), f"{name} no longer uses {what}"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "def f():\n    import dill",
        "import _pickle",
        "eval('1')",
        "f = eval",
        "exec('x')",
        "__import__('os')",
        "compile('1', '', 'eval')",
        "getattr(__builtins__, 'eval')('1')",
        "import builtins\nbuiltins.exec('1')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import subprocess\nsubprocess.run('ls', shell=flag)",
        "import os\nos.system('ls')",
        "from os import system\nsystem('ls')",
        "from os import popen as p\np('ls')",
        "import yaml\nyaml.load(text)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch as t\nt.load(path, weights_only=flag)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import torch\ntorch.hub.load('a', 'b')",
        "import torch\ntorch.jit.load('a')",
        "import urllib.request",
        "from urllib.request import urlopen",
        "from urllib import request",
        "import requests",
        "from importlib import import_module\nimport_module(name)",
    ],
)
def test_what_must_not_be_there_is_found(text: str) -> None:
    assert findings(text, "some/file.py") != []


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "model.compile()",
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import subprocess\nsubprocess.run(['ls'], check=False)",
        "from importlib import import_module\nimport_module('chop.cli')",
        "spec.loader.exec_module(module)",
        "name = 'pickle'",
    ],
)
def test_what_may_be_there_is_not(text: str) -> None:
    assert findings(text, "some/file.py") == []


SLOW_OR_BELOW = ("study", "imports")
QUICK = [each for each in HOSTILE if not {each.kind, each.name.split()[0]} & {*SLOW_OR_BELOW}][::4]


@pytest.mark.parametrize("hostile", QUICK, ids=lambda each: f"{each.kind}: {each.name}")
def test_nothing_in_a_file_is_run(hostile: Hostile) -> None:
    assert security.attempt(hostile) == ""


FORMS = [each for each in HOSTILE if "float form" in each.name]


@pytest.mark.parametrize("hostile", FORMS, ids=lambda each: each.name)
def test_what_a_node_was_before_it_was_quantised_is_not_run(hostile: Hostile) -> None:
    assert security.attempt(hostile) == ""


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> security_graph.Fuzz:
    return security_graph.Fuzz(tmp_path_factory.mktemp("fuzz"))


def test_no_field_of_a_saved_graph_is_run(fuzz: security_graph.Fuzz) -> None:
    found = list(security_graph.cases(fuzz.documents))
    assert len(found) > 20_000
    chosen = [*found[:: len(found) // 30], *forms_that_are_code(found)]
    assert [(case.name, said) for case in chosen if (said := fuzz.attempt(case))] == []


def forms_that_are_code(found: list[security_graph.Case]) -> list[security_graph.Case]:
    forms = [each for each in found if ".float_form = " in each.name and "of text 1" in each.name]
    assert {each.name.split()[2] for each in forms} == set(security_graph.OPS)
    return forms[::25]


def test_every_field_of_a_saved_graph_is_tried(fuzz: security_graph.Fuzz) -> None:
    names = {case.name.partition(" ")[0] for case in security_graph.cases(fuzz.documents)}
    fields = {
        "model", "training", "cf_args", "nodes", "layers", "same_layer", "attributes", "tied",
        "packed", "digest", "nodes.2.float_form", "nodes.2.float_records", "layers.head.arguments",
        "layers.head.quantized.name", "layers.layers.block-1.masks.0", "packed.head.weight.shape.0",
    }  # fmt: skip
    assert fields <= names
    assert {each["op"] for each in fuzz.documents[security_graph.GRAPH]["nodes"]} == set(
        security_graph.OPS
    )


def test_code_in_a_saved_graph_would_be_noticed(fuzz: security_graph.Fuzz) -> None:
    planted = security_graph.Case(security_graph.GRAPH, "planted", lambda tree: fuzz.canary.touch())
    assert fuzz.attempt(planted) == "the code in it was run"


def test_a_saved_graph_that_is_as_it_was_is_taken(fuzz: security_graph.Fuzz) -> None:
    for file in (security_graph.GRAPH, security_graph.METADATA):
        assert fuzz.attempt(security_graph.Case(file, "control", lambda tree: None)) == ""
    assert security_graph.load_mase_graph(fuzz.outer / security_graph.FOLDER) is not None


IMPORTS = [each for each in HOSTILE if each.name.startswith("imports")]


@pytest.mark.parametrize("hostile", IMPORTS, ids=lambda each: each.name)
def test_what_a_configuration_imports_is_not_run(hostile: Hostile) -> None:
    assert security.attempt(hostile) == ""


def test_every_command_with_a_configuration_is_tried() -> None:
    commands = {name for name, command in verbs().items() if "config" in command.options}
    assert commands <= {each.name.removeprefix("imports for ") for each in IMPORTS}


def test_what_a_configuration_leaves_behind_is_noticed() -> None:
    def write(folder: Path) -> list[str]:
        (folder / "out").mkdir()
        return ["test", "no-such-model", "jsc-sim"]

    row = security.hostile_row("configuration", [Hostile("configuration", "planted", write)])
    assert row.failures == ("planted: something was left behind",)


def test_a_study_of_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LONGEST_NAMING", 0.01)
    (hostile,) = [each for each in HOSTILE if each.kind == "study"]
    assert security.attempt(hostile) == ""


def test_a_file_given_to_import_is_run() -> None:
    row = security.trusted_row()
    assert (row.tried, row.lost, row.failures) == (2, 0, ())


def test_code_that_is_run_is_noticed() -> None:
    def write(folder: Path) -> list[str]:
        (folder / CANARY).touch()
        return ["test", "no-such-model", "jsc-sim"]

    row = security.hostile_row("data", [Hostile("data", "planted", write)])
    assert row.lost == 1
    assert "the code in it was run" in row.failures[0]


def test_what_is_accepted_is_noticed() -> None:
    planted = Hostile("data", "planted", lambda folder: ["test", "jsc-tiny", "jsc-sim"])
    row = security.hostile_row("data", [planted])
    assert row.lost == 1
    assert "exit code" in row.failures[0]


def test_every_pin_is_listed_with_its_licence() -> None:
    pins = security_pins.pins()
    listed = security_pins.PAGE.read_text(encoding="utf-8")
    assert len(pins) > 50
    for pin in pins:
        assert f"| {pin.name} " in listed, "python -m harden.security_pins"
    assert security_pins.UNKNOWN not in listed
    if not all(map(security_pins.installed, pins)):
        pytest.skip("other versions than those pinned are installed here")
    assert listed == security_pins.page(pins), "python -m harden.security_pins"


def test_the_page_names_what_is_trusted() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for word in (
        "--import",
        "imports",
        "checkpoint",
        "studies",
        "configuration",
        "data",
        "pip-audit",
    ):
        assert word in text, word
