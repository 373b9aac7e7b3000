"""Trials are honest: each starts from the pristine model, whatever ran before it."""

import copy
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from search_cases import PTQ, Searcher, space_of, tables
from torch import Tensor, nn

from chop.dataset import MaseDataModule
from chop.errors import ConfigError
from chop.models import get_model, get_model_info
from chop.numerics import FORMATS
from chop.search.config import parse_search
from chop.search.spaces.measure import Measure
from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
from chop.search.spaces.space import (
    SPACES,
    Candidate,
    Choice,
    SearchContext,
    SearchSpace,
    every,
    make_space,
)
from chop.training.metrics import evaluate_model


class Oracle(nn.Module):
    """Says the right class of every row of the data, or always another."""

    def __init__(self, features: Tensor, labels: Tensor, right: bool) -> None:
        super().__init__()
        rows = zip(features, labels, strict=True)
        self.answers = {row.numpy().tobytes(): int(label) for row, label in rows}
        self.shift = 0 if right else 1

    def forward(self, x: Tensor) -> Tensor:
        classes = torch.tensor([self.answers[row.numpy().tobytes()] + self.shift for row in x])
        return F.one_hot(classes % 5, 5).float()


class OracleSpace(SearchSpace):
    """An oracle that is right or wrong."""

    def choices(self) -> tuple[Choice, ...]:
        return (Choice("right", (True, False)),)

    def config_of(self, chosen: dict[str, Any]) -> dict[str, Any]:
        return chosen

    def candidate(self, config: dict[str, Any]) -> Candidate:
        (rows,) = [
            torch.cat(each) for each in [[x for x, _ in self.context.batches("val_dataloader", 64)]]
        ]
        labels = torch.cat([y for _, y in self.context.batches("val_dataloader", 64)])
        return Candidate(self.context, config, lambda: Oracle(rows, labels, config["right"]))


def test_a_perfect_model_scores_1_and_an_always_wrong_one_after_it_0(
    context: SearchContext,
) -> None:
    given = tables()
    given["strategy"]["sw_runner"]["basic_evaluation"]["num_samples"] = 64
    given["strategy"]["hw_runner"] = {}
    del given["strategy"]["metrics"]["average_bitwidth"]
    measure = Measure(OracleSpace(context, None, {}), parse_search(given))
    scores = [measure({"right": right}).values for right in (True, False, True, False)]
    assert scores == [[1.0], [0.0], [1.0], [0.0]]


@pytest.fixture(scope="module")
def toy(data: MaseDataModule) -> SearchContext:
    torch.manual_seed(2)
    model = get_model("jsc-toy", "cls", dataset_info=data.dataset_info)
    model.train()(next(iter(data.train_dataloader()))[0])
    return SearchContext(model.eval(), get_model_info("jsc-toy"), data)


def test_the_graph_of_a_search_holds_no_copy_of_what_a_batch_became(toy: SearchContext) -> None:
    graph = toy.graph(toy.pristine())
    recorded = [
        entry
        for node in graph.nodes
        for entries in ("args", "results")
        for entry in node.meta["mase"]["common"][entries].values()
        if isinstance(entry, dict) and "shape" in entry
    ]
    assert len(recorded) > len(graph.nodes)
    assert [entry for entry in recorded if "value" in entry] == []


def ptq(context: SearchContext, seed: dict[str, Any], by: str = "type") -> MixedPrecisionPTQ:
    found = make_space(PTQ, context, {"by": by}, {k: {"config": v} for k, v in seed.items()})
    assert isinstance(found, MixedPrecisionPTQ)
    return found


def plain_metrics(space: MixedPrecisionPTQ, config: dict[str, Any]) -> tuple[float, float, float]:
    """Loss, accuracy and width of a graph that the quantise pass made for this purpose alone."""
    candidate = Candidate(space.context, config, lambda: space.quantise(config))
    result = evaluate_model(candidate.model, space.context.batches("val_dataloader", 128))
    return result.loss, result.accuracy, candidate.parameter_width()


def fast_metrics(space: SearchSpace, config: dict[str, Any]) -> tuple[float, float, float]:
    measured = Measure(space, parse_search(tables()))(config)
    assert measured.reason is None, measured.reason
    software = measured.metrics["software_metrics"]
    width = measured.metrics["hardware_metrics"]["average_bitwidth"]
    return software["loss"], software["accuracy"], width


MIXED = {
    "name": ["integer", None, "block_fp"],
    "data_in_width": [4, 8],
    "data_in_frac_width": [None],
    "weight_width": [3, 8],
    "weight_frac_width": [None],
    "bias_width": [8],
    "bias_frac_width": [None],
    "data_in_exponent_width": [8],
    "data_in_exponent_bias": [None],
    "data_in_block_size": [[1, 16]],
    "weight_exponent_width": [8],
    "weight_exponent_bias": [None],
    "weight_block_size": [[1, 16]],
    "bias_exponent_width": [8],
    "bias_exponent_bias": [None],
    "bias_block_size": [[16]],
}


INTEGER = {"name": ["integer"]} | {
    key: value for key, value in MIXED.items() if key.endswith(("width",)) and "exponent" not in key
}


def sample(space: SearchSpace, count: int, seed: int = 0) -> list[dict[str, Any]]:
    from chop.search.samplers import SAMPLERS, Problem

    sampler = SAMPLERS["random"](seed, Problem(space.tree, ("maximize",)))
    return [space.config(sampler.propose().picked) for _ in range(count)]  # type: ignore[union-attr]


def test_metrics_equal_those_of_a_graph_made_for_the_trial_alone(toy: SearchContext) -> None:
    space = ptq(toy, {"default": {"name": [None]}, "linear": MIXED, "relu": MIXED})
    assert space.variants is not None
    for config in sample(space, 25):
        assert fast_metrics(space, config) == plain_metrics(space, config)


@pytest.mark.parametrize("name", sorted(set(FORMATS)))
def test_every_format_is_measured_as_the_quantise_pass_makes_it(
    name: str, context: SearchContext
) -> None:
    from chop.nn.quant_config import required_fields

    fields = required_fields(FORMATS[name])
    values = {"block_size": [[1, 16]], "frac_width": [2], "exponent_width": [4], "width": [6]}
    keys = {
        f"{role}_{field}": values.get(field, [4])
        for role in ("data_in", "weight", "bias")
        for field in fields
    }
    space = ptq(context, {"default": {"name": [None]}, "linear": {"name": [name], **keys}})
    config = space.config(next(every(space.tree)))
    assert fast_metrics(space, config) == plain_metrics(space, config)


def test_widths_by_channel_are_lists_among_the_options(context: SearchContext) -> None:
    linear = {
        "name": ["integer"], "data_in_width": [8, [4] * 8 + [6] * 8], "data_in_frac_width": [3],
        "weight_width": [[[8], [0], [4], [4], [2]], 4], "bias_width": [8], "bias_frac_width": [4],
        "weight_frac_width": [[[5], [0], [3], [2], [1]], 2],
    }  # fmt: skip
    space = ptq(context, {"default": {"name": [None]}, "linear": linear})
    assert space.size == 2**3
    for picked in every(space.tree):
        config = space.config(picked)
        assert fast_metrics(space, config) == plain_metrics(space, config)
    wrong = linear | {"weight_width": [[[8], [4]]], "weight_frac_width": [2]}
    space = ptq(context, {"default": {"name": [None]}, "linear": wrong})
    message = r"seq_blocks_2: .* widths have the shape \(2, 1\) cannot round .* \(5, 16\)"
    with pytest.raises(ConfigError, match=message):
        space.config(next(every(space.tree)))


def test_the_order_of_configurations_changes_no_metric(toy: SearchContext) -> None:
    seed = {"default": {"name": [None]}, "linear": MIXED}
    configs = sample(ptq(toy, seed), 20, seed=1)
    shuffled = random.Random(0).sample(configs, len(configs))
    one, other = ptq(toy, seed), ptq(toy, seed)
    first = [fast_metrics(one, config) for config in configs]
    second = {repr(config): fast_metrics(other, config) for config in shuffled}
    assert first == [second[repr(config)] for config in configs]


def test_a_node_sampled_na_is_float_again(context: SearchContext) -> None:
    seed = {"name": ["integer", None], "data_in_width": [4], "weight_width": [2], "bias_width": [2]}
    space = ptq(context, {"default": {"name": [None]}, "linear": seed})
    quantised, unquantised = (space.config(picked) for picked in every(space.tree))
    before = fast_metrics(space, unquantised)
    coarse = fast_metrics(space, quantised)
    assert coarse != before
    assert fast_metrics(space, unquantised) == before
    assert before[2] == 32
    float_result = evaluate_model(context.pristine().eval(), context.batches("val_dataloader", 128))
    assert before[:2] == (float_result.loss, float_result.accuracy)


def test_a_search_leaves_the_model_as_it_was(context: SearchContext, search_with: Searcher) -> None:
    before = copy.deepcopy(context.model.state_dict())
    search_with(sampler="random", n_trials=8)
    after = context.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any("Integer" in type(module).__name__ for module in context.model.modules())


class Residual(nn.Module):
    """Reads a value that an in-place layer overwrites, and has functions in place of layers."""

    def __init__(self, tangled: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 5)
        self.relu = nn.ReLU(inplace=True)
        self.tangled = tangled

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        z = self.relu(y)
        z = torch.add(z, y) if self.tangled else torch.add(z, x)
        out: Tensor = self.two(F.relu(z.view(-1, 16)))
        return out


@pytest.mark.parametrize("tangled", [False, True])
def test_in_place_layers_and_functions_are_measured_rightly(
    tangled: bool, context: SearchContext
) -> None:
    torch.manual_seed(3)
    own = SearchContext(Residual(tangled).eval(), context.model_info, context.data_module)
    seed = {**INTEGER, "name": ["integer", None]}
    space = ptq(own, {"default": {"name": [None]}, "linear": seed, "add": seed, "relu": seed})
    assert (space.variants is None) == tangled
    for config in sample(space, 12):
        assert fast_metrics(space, config) == plain_metrics(space, config)


def test_two_nodes_of_one_layer_are_quantised_alike(context: SearchContext) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same, self.last = nn.Linear(16, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.same(self.same(x)))
            return out

    torch.manual_seed(4)
    own = SearchContext(Twice().eval(), context.model_info, context.data_module)
    space = ptq(own, {"default": {"name": [None]}, "linear": INTEGER})
    for config in sample(space, 6):
        assert config["same"] == config["same_1"]
        assert fast_metrics(space, config) == plain_metrics(space, config)


def test_training_mode_is_measured_on_a_copy(context: SearchContext) -> None:
    own = SearchContext(
        copy.deepcopy(context.model), context.model_info, context.data_module, eval_mode=False
    )
    space = ptq(own, {"default": {"name": [None]}, "linear": INTEGER})
    assert space.variants is None
    config = sample(space, 1)[0]
    before = copy.deepcopy(own.model.state_dict())
    assert fast_metrics(space, config) == fast_metrics(space, config)
    assert all(torch.equal(v, before[name]) for name, v in own.model.state_dict().items())


def test_num_samples_is_exact(context: SearchContext) -> None:
    for wanted in (1, 63, 64, 65, 200):
        rows = sum(len(labels) for _, labels in context.batches("val_dataloader", wanted))
        assert rows == wanted
    whole = sum(len(labels) for _, labels in context.batches("test_dataloader", None))
    assert whole == len(context.data_module.test_dataset)  # type: ignore[arg-type]


def test_more_samples_than_there_are_is_an_error(context: SearchContext) -> None:
    from chop.errors import DataError

    with pytest.raises(DataError, match="has only"):
        context.batches("val_dataloader", 10**9)


def test_every_space_is_registered_with_a_description() -> None:
    assert PTQ in SPACES
    assert all(SPACES.descriptions().values())


def test_activations_are_averaged_as_the_pass_does(toy: SearchContext) -> None:
    space = ptq(toy, {"default": {"name": [None]}, "linear": MIXED})
    for config in sample(space, 5):
        plain = Candidate(toy, config, lambda config=config: space.quantise(config))
        assert space.candidate(config).activation_width() == plain.activation_width()


def test_space_of_is_what_the_action_builds(context: SearchContext) -> None:
    assert space_of(context, parse_search(tables())).size == 18


@pytest.mark.parametrize(
    "keys",
    [
        ("data_in", "weight", "bias"),
        ("data_in", "weight"),  # the bias takes the format of the weight
        ("data_in", "weight", "data_out"),
    ],
)
def test_configurations_put_together_from_parts_are_those_that_are_parsed(
    keys: tuple[str, ...],
) -> None:
    from chop.nn.quant_config import parse_quant_config
    from chop.ops.table import OPS
    from chop.search.spaces.reuse import Formats

    formats = Formats()
    draw = random.Random(0)
    for _ in range(300):
        rule: dict[str, Any] = {"name": draw.choice(["integer", "fixed"])}
        for role in keys:
            rule |= {
                f"{role}_width": draw.choice([2, 4]),
                f"{role}_frac_width": draw.choice([None, 1]),
            }
        if draw.random() < 0.2:
            rule["bypass"] = draw.random() < 0.5
        for op in (OPS["linear"], OPS["matmul"], OPS["relu"], OPS["add"]):
            assert formats.parse(op, rule, "here") == parse_quant_config(op, rule, "here")


def test_a_seed_that_names_nothing_is_told(
    toy: SearchContext, caplog: pytest.LogCaptureFixture
) -> None:
    seed = {"default": {"name": [None]}, "linear": {"name": ["integer"], "data_in_width": [8]}}
    with pytest.raises(ConfigError, match=r'by = "name", but no node .* is called linear'):
        assert ptq(toy, seed, by="name").tree
    node = next(iter(ptq(toy, {"default": MIXED}).nodes))
    with caplog.at_level("WARNING", "chop"):
        assert ptq(toy, {**seed, node: MIXED}, by="name").tree
    assert "is called linear" in caplog.text
    caplog.clear()
    restricted = {"default": MIXED, "softmax": {"name": [None]}}
    assert ptq(toy, restricted, by="type").tree
    assert not caplog.text
