"""Search spaces whose scales are "auto"."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from search_cases import tables

from chop.errors import ChopError, ConfigError
from chop.passes.graph import quantize_transform_pass
from chop.search.config import parse_search
from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
from chop.search.spaces.space import SearchContext, make_space

ROWS = 200


def auto_tables(calibrate: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    found = tables()
    space = found["search_space"]
    linear = space["seed"]["linear"]["config"]
    linear |= {key: ["auto"] for key in linear if key.endswith("frac_width")} | more
    space["setup"]["calibrate"] = {"num_samples": ROWS} | (calibrate or {})
    return found


def space_of(context: SearchContext, given: dict[str, Any]) -> MixedPrecisionPTQ:
    stated = parse_search(given).search_space
    found = make_space(stated.name, context, stated.setup, stated.seed)
    assert isinstance(found, MixedPrecisionPTQ)
    return found


def fresh(context: SearchContext) -> SearchContext:
    return replace(context, kept={}, _rows={})


@pytest.fixture(scope="module")
def space(context: SearchContext) -> MixedPrecisionPTQ:
    given = auto_tables({"per": {"weight": "channel"}, "method": "min_max"})
    return space_of(fresh(context), given)


def config_of(space: MixedPrecisionPTQ, place: int) -> dict[str, Any]:
    return space.config({c.name: min(place, len(c.options) - 1) for c in all_choices(space)})


def all_choices(space: MixedPrecisionPTQ) -> list[Any]:
    return [inner for choice in space.tree for inner in (choice, *choice.then[0])]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_width_has_the_scales_of_the_pass_on_the_same_rows(
    space: MixedPrecisionPTQ, place: int
) -> None:
    config = config_of(space, place)
    context = space.context
    rows = next(iter(context.data_module.train_dataloader()))[0]
    batches = ({"x": x} for x, _ in context.data_module.train_dataloader())
    graph, _ = quantize_transform_pass(
        context.graph(context.pristine()),
        {"by": "name", **config, "input_generator": batches,
         "calibrate": space.setup.calibrate.model_dump(exclude={"percentile"})},
    )  # fmt: skip
    candidate = space.candidate(config)
    assert torch.equal(candidate.model(rows), graph.model.eval()(rows))
    for name, (_, quant) in space.quants(config).items():
        module = graph.model.get_submodule(str(node_target(graph, name)))
        present = {role for role in quant.operands if getattr(module, role, 0) is not None}
        assert {r: quant.operands[r] for r in present} == {
            r: module.quant.operands[r] for r in present
        }


def node_target(graph: Any, name: str) -> Any:
    return next(node.target for node in graph.nodes if node.name == name)


def test_trials_compute_what_the_stored_settings_compute(space: MixedPrecisionPTQ) -> None:
    """The quick way of trials, the model of a candidate and best_N.toml are the same network."""
    for place in (0, 2):
        config = config_of(space, place)
        candidate = space.candidate(config)
        (scores, _), *_ = candidate.predictions("val_dataloader", 64)
        rows = space.context.batches("val_dataloader", 64)[0][0]
        stored = space.toml_of(config)["passes"]["quantize"]
        assert "auto" not in repr(stored)
        graph, _ = quantize_transform_pass(space.context.graph(space.context.pristine()), stored)
        assert torch.equal(scores, graph.model.eval()(rows))
        assert torch.equal(scores, candidate.model(rows))
    assert "auto" in repr(config)  # which is what the study stores


def test_scales_are_worked_out_once_and_are_always_the_same(
    space: MixedPrecisionPTQ, context: SearchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any) -> Any:
        raise AssertionError("these rows are not for calibration")

    data = copy.copy(context.data_module)
    for loader in ("test_dataloader", "val_dataloader"):
        monkeypatch.setattr(data, loader, refused, raising=False)
    given = auto_tables({"per": {"weight": "channel"}, "method": "min_max"})
    resumed = space_of(replace(context, kept={}, _rows={}, data_module=data), given)
    assert resumed.fits == space.fits  # as after a kill
    shared = space_of(space.context, given)
    assert shared.fits is space.fits  # as in another process of the search


def test_a_study_is_known_by_how_scales_are_chosen(context: SearchContext) -> None:
    plain = space_of(context, tables())
    assert plain.fits == {}
    assert repr(plain.setup) == "MixedPrecisionSetup(by='type')"  # as studies of old have it
    other = space_of(fresh(context), auto_tables({"method": "percentile", "percentile": 99}))
    assert "percentile=99" in repr(other.setup)


def test_scales_of_several_formats_beside_numbers(context: SearchContext) -> None:
    more = {
        "name": ["integer", "log", None],
        "data_in_frac_width": ["auto", 4, 60],
        "data_in_exponent_bias": ["auto", None],
        "weight_exponent_bias": ["auto"],
    }
    given = auto_tables(**more)
    del given["search_space"]["seed"]["linear"]["config"]["bias_frac_width"]
    del given["search_space"]["seed"]["linear"]["config"]["bias_width"]  # as the weight has it
    space = space_of(fresh(context), given)
    kinds = {(role, type(fmt).__name__, fmt.width) for _, role, fmt in space.fits}
    assert {("data_in", "Integer", 4), ("data_in", "Log", 8), ("bias", "Integer", 2)} <= kinds
    picked = {choice.name: 0 for choice in space.tree}
    for choice in space.tree:
        picked |= {each.name: len(each.options) - 1 for each in choice.then[0]}
    config = space.config(picked)
    stored = space.toml_of(config)["passes"]["quantize"]
    assert stored["outside_width"] is True  # 60 fractional bits
    rows = next(iter(context.data_module.train_dataloader()))[0]
    assert space.candidate(config).model(rows).isfinite().all()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"data_in_width": ["auto"]}, "data_in_width: 'auto' is not understood: \"auto\" is for"),
        ({"data_in_frac_width": ["AUTO"]}, "data_in_frac_width: 'AUTO' is not understood"),
        ({"name": ["mxint8"], "data_in_block_size": ["auto"]}, "unknown key"),
    ],
)
def test_mistakes_are_found_before_the_search(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ChopError) as caught:
        parse_search(auto_tables(**more))
    assert words in str(caught.value)


def test_bad_settings_of_calibration() -> None:
    for calibrate, words in (
        ({"method": "best"}, "setup: calibrate.method"),
        ({"percentile": 99}, "percentile is for method"),
        ({"input_generator": []}, "unknown key 'input_generator'"),
    ):
        with pytest.raises(ChopError) as caught:
            parse_search(auto_tables(calibrate))
        assert words in str(caught.value)


@pytest.mark.parametrize("option", ["eight", 4.5, True, float("nan"), [4, "x"], []])
@pytest.mark.parametrize("key", ["weight_width", "data_in_frac_width"])
def test_a_width_that_is_no_number_is_refused_before_the_first_trial(
    key: str, option: Any, context: SearchContext
) -> None:
    wrong = tables()
    wrong["search_space"]["seed"]["linear"]["config"][key] = [4, option]
    with pytest.raises(ConfigError, match=f"search_space.seed: {key}: .* is not a whole number"):
        space_of(context, wrong).size  # noqa: B018
