"""What is measured, and how a metric of one's own is added."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from search_cases import PTQ, tables
from torch import nn

from chop.errors import ChopError, SearchError
from chop.ir.graph.mase_graph import MaseGraph
from chop.lowering import lower
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    exactness_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.analysis.flops.ebops import ebops
from chop.search.config import parse_search
from chop.search.runners import HW_RUNNERS, SW_RUNNERS, RunnerArgs, hardware_runner
from chop.search.spaces.measure import Measure
from chop.search.spaces.mixed_precision import MixedPrecisionPTQ
from chop.search.spaces.space import Candidate, SearchContext, every, make_space
from chop.training.metrics import evaluate_model

LINEAR = {
    "name": ["integer"], "data_in_width": [8], "weight_width": [4], "bias_width": [8],
    "data_in_frac_width": [4], "weight_frac_width": [2], "bias_frac_width": [4],
}  # fmt: skip


@pytest.fixture
def space(context: SearchContext) -> MixedPrecisionPTQ:
    seed = {"default": {"config": {"name": [None]}}, "linear": {"config": LINEAR}}
    found = make_space(PTQ, context, {"by": "type"}, seed)
    assert isinstance(found, MixedPrecisionPTQ)
    return found


@pytest.fixture
def candidate(space: MixedPrecisionPTQ) -> Candidate:
    return space.candidate(space.config(next(every(space.tree))))


def software(name: str, candidate: Candidate, **args: Any) -> dict[str, float]:
    return SW_RUNNERS[name](candidate, SW_RUNNERS[name].parse(args, name))


def hardware(name: str, candidate: Candidate, **args: Any) -> dict[str, float]:
    return HW_RUNNERS[name](candidate, HW_RUNNERS[name].parse(args, name))


def test_accuracy_is_that_of_training(candidate: Candidate, context: SearchContext) -> None:
    found = software("basic_evaluation", candidate, data_loader="test_dataloader", num_samples=200)
    result = evaluate_model(candidate.model, context.batches("test_dataloader", 200))
    assert found == {"loss": result.loss, "accuracy": result.accuracy}
    assert result.rows == 200


def test_bit_widths_count_every_parameter(candidate: Candidate) -> None:
    # 16 * 5 weights of 4 bits, 5 biases of 8, and 2 * 16 parameters of batch normalisation.
    bits = (80 * 4 + 5 * 8 + 32 * 32) / 117
    assert hardware("average_bitwidth", candidate, compare_to=16) == {
        "average_bitwidth": bits, "memory_density": 16 / bits,
    }  # fmt: skip
    activations = hardware("activation_bitwidth", candidate)["activation_bitwidth"]
    assert 8 < activations < 32


def test_model_size_is_what_packing_the_codes_takes(candidate: Candidate) -> None:
    buffers = sum(each.nbytes for each in candidate.model.buffers())
    assert hardware("model_size", candidate) == {"model_size": 80 // 2 + 5 + 32 * 4 + buffers}


def test_operations_are_those_of_the_pass(candidate: Candidate) -> None:
    from chop.passes.graph import count_operations_analysis_pass

    _, info = count_operations_analysis_pass(candidate.graph, {"report": False})
    assert hardware("flops", candidate) == {"flops": info["total"]["flops"]}
    assert hardware("bitops", candidate) == {"bitops": 80 * 4 * 8}
    assert info["total"]["bitops"] == 80 * 4 * 8


def test_effective_bit_operations_are_those_of_training_rows(
    candidate: Candidate, context: SearchContext
) -> None:
    rows = torch.cat(list(context.features("train_dataloader", 300)))
    wanted = ebops(candidate.graph, [rows]).total
    assert hardware("ebops", candidate, num_samples=300) == {"ebops": wanted}
    assert 0 < wanted < hardware("bitops", candidate)["bitops"]
    assert HW_RUNNERS["ebops"].metrics[0].direction == "minimize"


def test_a_trial_whose_products_cannot_be_counted_says_why(context: SearchContext) -> None:
    space = make_space(PTQ, context, {}, {"default": {"config": {"name": [None]}}})
    with pytest.raises(SearchError, match="EBOPs cannot be counted: seq_blocks_2: it is not quan"):
        hardware("ebops", space.candidate(space.config(next(every(space.tree)))))


def integer_candidate(context: SearchContext) -> Candidate:
    every_node = {"name": ["integer"], "width": [6], "frac_width": [3]}
    roles = ("data_in", "weight", "bias")
    config = {f"{r}_{k}": v for r in roles for k, v in every_node.items() if k != "name"}
    space = make_space(PTQ, context, {}, {"default": {"config": {"name": ["integer"], **config}}})
    return space.candidate(space.config(next(every(space.tree))))


def test_a_folded_circuit_has_cycles_look_up_tables_and_memories(context: SearchContext) -> None:
    candidate = integer_candidate(context)
    slow = hardware("folded_circuit", candidate, cycles=10_000)
    fast = hardware("folded_circuit", candidate, device="ecp5-85k")
    assert fast["cycles_per_image"] < slow["cycles_per_image"] <= 10_000
    assert slow["luts"] < fast["luts"] <= 83_640
    assert set(fast) == {"luts", "block_rams", "cycles_per_image"}
    with pytest.raises(ChopError, match="unknown device 'ecp5'"):
        hardware("folded_circuit", candidate, device="ecp5")


def test_a_circuit_without_the_last_layer_is_not_measured() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 2)).eval()
    graph, _ = init_metadata_analysis_pass(MaseGraph(model))
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": {"x": torch.ones(2, 4)}})
    config = {"name": "integer"} | {
        f"{role}_{key}": value for role in ("data_in", "weight", "bias")
        for key, value in (("width", 4), ("frac_width", 2))
    }  # fmt: skip
    graph, _ = quantize_transform_pass(graph, {"by": "name", "_0": {"config": config}})
    given: Any = SimpleNamespace(graph=graph, program=lower(graph, cut_tail=True))
    for name in ("circuit", "folded_circuit", "small_device"):
        with pytest.raises(ChopError, match="_1 has no tables"):
            HW_RUNNERS[name](given, HW_RUNNERS[name].parse({}, "test"))


def test_the_widest_accumulator_is_that_of_the_analysis(context: SearchContext) -> None:
    candidate = integer_candidate(context)
    found = exactness_analysis_pass(candidate.graph)[1]
    assert hardware("accumulator_bits", candidate) == {
        "accumulator_bits": found["accumulator_bits"]
    }
    assert found["accumulator_bits"] == found["nodes"]["seq_blocks_2"]["accumulator_bits"] > 6


def test_a_trial_without_an_integer_program_says_why(candidate: Candidate) -> None:
    with pytest.raises(ChopError, match="seq_blocks_0 reads the input 'x' in floating point"):
        hardware("accumulator_bits", candidate)


def test_latency_states_its_interval_and_its_batch(candidate: Candidate) -> None:
    found = software("latency", candidate, batch_size=4, warm_up=1, repeats=9)
    assert 0 < found["latency_low"] <= found["latency"] <= found["latency_high"]
    assert found["latency_batch_size"] == 4


def test_training_improves_a_private_copy(candidate: Candidate, context: SearchContext) -> None:
    before = {name: value.clone() for name, value in context.model.state_dict().items()}
    start = software("basic_evaluation", candidate, num_samples=512)
    found = software("basic_train", candidate, max_steps=150, learning_rate=0.02, num_samples=512)
    assert found["loss"] < start["loss"]
    assert all(torch.equal(v, before[name]) for name, v in context.model.state_dict().items())


def test_training_repeats_from_the_same_seed(space: MixedPrecisionPTQ) -> None:
    config = space.config(next(every(space.tree)))
    args = {"max_steps": 20, "learning_rate": 0.02, "num_samples": 128}
    first, second = (software("basic_train", space.candidate(config), **args) for _ in range(2))
    assert first == second


class PowerArgs(RunnerArgs):
    volts: float = 1.0


def test_a_metric_of_ones_own_is_one_decorated_function(space: MixedPrecisionPTQ) -> None:
    name = "test-power"

    @hardware_runner(name, metrics=("power",))
    def power(candidate: Candidate, args: PowerArgs) -> dict[str, float]:
        """Something that grows with the parameters."""
        return {"power": args.volts * sum(p.numel() for p in candidate.model.parameters())}

    try:
        given = tables()
        given["strategy"]["hw_runner"] = {name: {"volts": 2.0}}
        given["strategy"]["metrics"] = {"power": {"direction": "minimize"}}
        outcome = Measure(space, parse_search(given))(space.config(next(every(space.tree))))
        assert outcome.values == [2.0 * 117]
        given["strategy"]["hw_runner"][name] = {"amperes": 1}
        with pytest.raises(ChopError, match=r"hw_runner.test-power: unknown key 'amperes'"):
            parse_search(given)
    finally:
        HW_RUNNERS._entries.pop(name)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"x": math.nan}, "x is nan"), ({"y": 1.0}, "promises"), ({"x": math.inf}, "x is inf")],
)
def test_what_a_runner_gives_is_checked(
    given: dict[str, float], message: str, candidate: Candidate
) -> None:
    from chop.search.runners import Runner

    runner = Runner(lambda candidate: given, "odd", ("x",))
    with pytest.raises(SearchError, match=message):
        runner(candidate, RunnerArgs())


def test_every_runner_says_what_it_measures() -> None:
    for registry in (SW_RUNNERS, HW_RUNNERS):
        assert all(registry.descriptions().values())
        assert all(runner.metrics for runner in registry.values())
