"""The JSON Schema says of a file what the code says of it."""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from toml_checker import fits, problems

from chop.config.layers import check_setting_value, na_to_none
from chop.config.schema import read_schema, stored_schema
from chop.config.verb import settings
from chop.errors import ChopError

ROOT = Path(__file__).parents[2]
SCHEMA = stored_schema()
VALUES = [
    "NA", "x", "cls", "mz", "cuda", "gpu", "auto", "32", "adam", "info", "none", "cosine", "test",
    "free", True, False, 0, 1, -1, -2, 32, 1.5, -0.5, 0.0, 2**32, [], ["a.py"], [1], {}, {"a": 1},
]  # fmt: skip
VALID = tomllib.loads((ROOT / "configs/examples/jsc_mlp_search.toml").read_text())


TABLES = ("passes", "train", "search", "cf_args")
"""Settings whose keys are checked by the action that reads them."""


def accepted(name: str, value: Any) -> bool:
    try:
        check_setting_value(name, na_to_none(value), name, name)
    except ChopError:
        return False
    return True


def test_the_stored_schema_is_what_the_code_says() -> None:
    from chop.verbs.schema.document import schema_text

    assert read_schema() == schema_text(), "run: make catalogue"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda p: p.name)
def test_every_shipped_configuration_fits(path: Path) -> None:
    assert problems(SCHEMA, tomllib.loads(path.read_text()), SCHEMA) == []


@pytest.mark.parametrize("name", [n for n in settings() if n not in TABLES])
def test_schema_and_code_agree_on_every_setting(name: str) -> None:
    schema = SCHEMA["properties"][name]
    outcomes = {repr(value): fits(schema, value, SCHEMA) for value in VALUES}
    assert outcomes == {repr(value): accepted(name, value) for value in VALUES}
    assert set(outcomes.values()) == {True, False}  # both sides can say no


def changed(path: str, value: Any) -> dict[str, Any]:
    """A valid file with one key set; a value of `...` removes the key."""
    tables = copy.deepcopy(VALID)
    *parents, key = path.split("/")
    inner = tables
    for parent in parents:
        inner = inner.setdefault(parent, {})
    if value is ...:
        del inner[key]
    else:
        inner[key] = value
    return tables


RULE = "passes/quantize/linear/config"
SEED = "search/search_space/seed/linear/config"
RIGHT = [
    ("passes/quantize/by", "name"),
    ("passes/quantize/default", {"config": {"name": "NA"}}),
    ("passes/quantize/default", {"config": {"name": "NA"}, "only": ["linear", "relu"]}),
    ("passes/quantize/report", True),
    (f"{RULE}/bias_frac_width", "NA"),
    (RULE, {"name": "mxint8", "data_in_block_size": 16, "weight_block_size": [16]}),
    (RULE, {"name": "block_fp", "data_in_width": 8, "data_in_block_size": [1, 16],
            "weight_width": 8, "weight_block_size": 16}),
    ("passes/prune", {"weight": {"sparsity": 0.5, "method": "l1-norm"}, "activation": "NA"}),
    ("passes/profile_statistics/weight_statistics", {"range_min_max": {}}),
    ("passes/save_node_meta_param", {"save_path": "x.toml"}),
    ("passes/save_mase_graph", {}),  # the run knows where
    (f"{SEED}/weight_width", 4),
    (f"{SEED}/weight_frac_width", ["NA", 2]),
    ("search/strategy/sw_runner/basic_evaluation", {"dataloader": "test_dataloader"}),
    ("search/strategy/setup/timeout", "NA"),
    ("search/strategy/setup/save_every_n_trials", 10),
    ("search/strategy/setup/compare", ["tpe", "random"]),
    ("search/strategy/metrics/bitops", {"direction": "minimize", "max": 10}),
    ("search/search_space", {"name": "train/hyperparameters",
                             "seed": {"batch_size": [32, 64], "learning_rate": 0.1}}),
    ("search/search_space", {"name": "train/hyperparameters", "seed": {"a": {"max_epochs": [1]}}}),
]  # fmt: skip
WRONG = [
    ("batch_sise", 3),
    ("batch_size", "many"),
    ("passes/quantise", {}),
    ("passes/quantize/by", "typ"),
    ("passes/quantize/linaer", {"config": {"name": "integer"}}),
    ("passes/quantize/linear/confg", {}),
    ("passes/quantize/reprot", True),
    ("passes/quantize/default", {"config": {"name": "NA"}, "only": ["linaer"]}),
    ("passes/quantize/linear", {"config": {"name": "NA"}, "only": ["linear"]}),
    (f"{RULE}/name", "integr"),
    (f"{RULE}/weigth_width", 4),
    (f"{RULE}/weight_width", "4"),
    (f"{RULE}/weight_width", 0),
    (f"{RULE}/weight_width", 54),  # other formats have wider ones
    (f"{RULE}/weight_width", "NA"),
    (f"{RULE}/weight_exponent_width", 4),  # a key of other formats
    (f"{RULE}/name", ...),
    ("passes/count_operations/repot", True),
    ("passes/count_operations/report", "maybe"),
    ("passes/save_node_meta_param", {"save_path": "NA"}),
    ("passes/prune", {"weight": {"sparsty": 0.5}}),
    ("passes/prune/num_batches", 0),
    ("passes/load_mase_graph", {}),
    ("passes/init_metadata/x", 1),
    ("search/strategie", {}),
    ("search/search_space/name", "graph/quantize"),
    ("search/search_space/setup/by", "regex_name"),
    (f"{SEED}/weight_widht", [4]),
    (f"{SEED}/weight_width", []),
    ("search/strategy/sw_runner/basic_evaluaton", {}),
    ("search/strategy/sw_runner/basic_evaluation/data_loader", "val"),
    ("search/strategy/setup/sampler", "tpee"),
    ("search/strategy/setup/n_trials", 0),
    ("search/strategy/setup/compare", ["tpee"]),
    ("search/strategy/metrics/accuracy/direction", "up"),
    ("search/strategy/metrics/accuracy/direction", ...),
    ("search/strategy/metrics/acuracy", {"direction": "maximize"}),
    ("search/strategy/metrics", {}),
    ("search/search_space", {"name": "train/hyperparameters", "seed": {"batchsize": [32]}}),
]  # fmt: skip


def code_accepts(tables: dict[str, Any]) -> bool:
    from chop.config.layers import setting_named
    from chop.config.run import RunConfig
    from chop.nn.quant_config import parse_quant_config
    from chop.ops.table import OPS
    from chop.search.config import parse_search
    from chop.verbs.transform.passes import PASSES, check_transform

    tables = na_to_none(tables)
    try:
        for name, value in tables.items():
            setting_named(name, "file")
            check_setting_value(name, value, name, name)
        check_transform(RunConfig(passes=tables["passes"]))
        args: Any = PASSES["quantize"].parse(tables["passes"]["quantize"])
        for key, config in args.configs():
            if key in OPS and config.get("name"):
                parse_quant_config(OPS[key], config, key)
            assert "name" in config
        parse_search(tables["search"])
    except (ChopError, AssertionError):
        return False
    return True


@pytest.mark.parametrize(("path", "value"), RIGHT, ids=lambda value: str(value)[:40])
def test_what_the_code_takes_fits(path: str, value: Any) -> None:
    assert problems(SCHEMA, changed(path, value), SCHEMA) == []
    if path != "search/search_space":  # the metrics of this file are those of another space
        assert code_accepts(changed(path, value))


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_what_the_code_refuses_does_not_fit(path: str, value: Any) -> None:
    assert problems(SCHEMA, changed(path, value), SCHEMA)
    assert not code_accepts(changed(path, value))


def test_a_pass_of_ones_own_is_in_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from chop.cli import main
    from chop.passes import PASSES

    (tmp_path / "mine.py").write_text(
        "from chop.passes import PassArgs, analysis_pass\n"
        "class MineArgs(PassArgs):\n    depth: int = 1\n"
        '@analysis_pass("schema_mine")\n'
        'def mine(graph, args: MineArgs):\n    """Look."""\n    return graph, {}\n'
    )
    assert main(["schema", "--import", str(tmp_path / "mine.py")]) == 0
    del PASSES._entries["schema_mine"]  # registries outlive the test
    own = json.loads(capsys.readouterr().out)["properties"]["passes"]["properties"]["schema_mine"]
    assert own["properties"] == {"depth": {"type": "integer", "default": 1}}
    assert own["description"] == "Look"


def test_every_setting_is_described() -> None:
    assert [name for name, each in SCHEMA["properties"].items() if not each["description"]] == []
