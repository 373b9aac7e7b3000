"""The pass mechanism: arguments, requirements, registration, users' own passes."""

import inspect
import pydoc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field
from torch import nn

import chop.passes
from chop.errors import ConfigError, GraphError, RegistrationError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.passes import PASSES, Info, Pass, PassArgs, analysis_pass, interface_pass, transform_pass
from chop.passes.base import (
    ANALYSIS_PASSES,
    INTERFACE_PASSES,
    TRANSFORM_PASSES,
    Batches,
    warn_ignored,
)
from chop.passes.graph import init_metadata_analysis_pass, report_node_type_analysis_pass


class Inner(PassArgs):
    depth: int = 1


class ExampleArgs(PassArgs):
    """What the example takes."""

    shorthand: ClassVar[str | None] = "where"

    times: int = Field(default=1, ge=1)
    name: str | None = "x"
    inner: Inner | None = None
    where: Path | None = None
    batches: Batches | None = None


@pytest.fixture
def graph() -> MaseGraph:
    return MaseGraph(nn.Sequential(nn.ReLU()))


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    known = set(PASSES)
    yield
    for name in set(PASSES) - known:
        del PASSES._entries[name]


@pytest.fixture
def example() -> Pass:
    @transform_pass("example", "example_alias")
    def example_transform_pass(graph: MaseGraph, args: ExampleArgs) -> tuple[MaseGraph, Info]:
        """Do nothing, twice.

        More of it.
        """
        return graph, args.model_dump()

    return example_transform_pass


def test_a_pass_is_called_with_a_dictionary_its_arguments_or_nothing(
    example: Pass, graph: MaseGraph
) -> None:
    assert example(graph)[0] is graph
    assert example(graph)[1]["times"] == 1
    assert example(graph, None)[1]["times"] == 1
    assert example(graph, {"times": 2})[1]["times"] == 2
    assert example(graph, ExampleArgs(times=3))[1]["times"] == 3
    assert example(graph, pass_args={"times": 4})[1]["times"] == 4
    assert example(graph, "out")[1]["where"] == Path("out")
    assert example(graph, Path("out"))[1]["where"] == Path("out")


def test_the_callers_dictionary_is_not_changed(example: Pass, graph: MaseGraph) -> None:
    given = {"inner": {"depth": 2}, "name": "NA", "batches": [{"x": 1}]}
    before = {"inner": {"depth": 2}, "name": "NA", "batches": [{"x": 1}]}
    assert example(graph, given)[1]["name"] is None
    assert given == before
    assert example(graph, given)[1]["inner"] == {"depth": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tims": 1}, "pass 'example': unknown key 'tims': did you mean 'times'?"),
        ({"times": 0}, "pass 'example': times: input should be greater than or equal to 1 (got 0)"),
        (
            {"inner": {"dept": 1}},
            "pass 'example': inner: unknown key 'dept': did you mean 'depth'?",
        ),
        ({"times": "NA"}, "pass 'example': times: input should be a valid integer (got None)"),
        ({"batches": 3}, "pass 'example': batches: input should be an instance of Batches (got 3)"),
        ([1], "pass 'example' takes a dictionary, not a list"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    example: Pass, graph: MaseGraph, given: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        example(graph, given)
    assert str(error.value) == message
    with pytest.raises(ConfigError):
        example.parse(given)


def test_a_path_needs_a_field_to_stand_for(graph: MaseGraph) -> None:
    with pytest.raises(ConfigError, match="takes a dictionary, not 'out'"):
        init_metadata_analysis_pass(graph, "out")


def test_a_pass_looks_like_its_function(example: Pass) -> None:
    assert example.__name__ == "example_transform_pass"
    assert str(inspect.signature(example)).startswith("(graph: ")
    assert list(inspect.signature(example).parameters) == ["graph", "pass_args"]
    text = pydoc.render_doc(example)
    assert "example_transform_pass(graph, pass_args=None)" in text
    assert "Do nothing, twice." in text


def test_passes_are_registered_by_name_and_kind(example: Pass) -> None:
    assert PASSES["example"] is PASSES["example_alias"] is example
    assert example.kind == "transform"
    assert "example" in TRANSFORM_PASSES
    assert "example" not in ANALYSIS_PASSES
    assert TRANSFORM_PASSES["example"] is example
    assert len(ANALYSIS_PASSES) + len(TRANSFORM_PASSES) + len(INTERFACE_PASSES) == len(PASSES)
    with pytest.raises(UnknownNameError, match="did you mean 'example'"):
        PASSES["exmple"]
    with pytest.raises(RegistrationError, match="pass 'example' is already registered"):
        transform_pass("example")(lambda graph: (graph, {}))


def test_other_things_than_graphs_are_refused(example: Pass) -> None:
    with pytest.raises(GraphError, match="works on a MaseGraph, not a ReLU"):
        example(nn.ReLU())  # type: ignore[arg-type]


def test_missing_metadata_is_named_with_the_pass_that_makes_it(graph: MaseGraph) -> None:
    with pytest.raises(GraphError) as error:
        report_node_type_analysis_pass(graph)
    assert str(error.value) == (
        "pass 'report_node_type' needs common metadata, which node 'input_1' lacks: "
        "run add_common_metadata_analysis_pass first"
    )


def test_a_plain_function_gets_a_copy_of_the_dictionary(graph: MaseGraph) -> None:
    @analysis_pass("my_pass")
    def my_pass(graph, pass_args=None):  # type: ignore[no-untyped-def]
        if pass_args is not None:
            pass_args["inner"].pop("by")
        return graph, {"got": pass_args}

    given = {"inner": {"by": 1, "none": "NA"}}
    assert my_pass(graph, given)[1] == {"got": {"inner": {"none": None}}}
    assert given == {"inner": {"by": 1, "none": "NA"}}
    assert PASSES["my_pass"](graph)[1] == {"got": None}


def test_a_plain_functions_own_default_is_used(graph: MaseGraph) -> None:
    @analysis_pass("with_default")
    def with_default(graph, pass_args={"dummy_in": None}):  # type: ignore[no-untyped-def]  # noqa: B006
        return graph, {"got": pass_args}

    @analysis_pass("without_default")
    def without_default(graph, pass_args):  # type: ignore[no-untyped-def]
        return graph, {"got": pass_args}

    assert with_default(graph)[1]["got"] == {"dummy_in": None}
    assert with_default(graph, {})[1]["got"] == {}
    assert without_default(graph)[1]["got"] == {}


def test_a_function_of_the_graph_alone_takes_no_arguments(graph: MaseGraph) -> None:
    @interface_pass("only_graph")
    def only_graph(graph):  # type: ignore[no-untyped-def]
        return graph, {"nodes": len(graph.nodes)}

    assert only_graph(graph, {})[1] == {"nodes": 3}
    with pytest.raises(ConfigError, match=r"takes no arguments, got \['by'\]"):
        only_graph(graph, {"by": 1})


def test_a_pass_must_return_a_graph_and_a_dictionary(graph: MaseGraph) -> None:
    @analysis_pass("old_style")
    def old_style(graph, pass_args=None):  # type: ignore[no-untyped-def]
        return graph

    with pytest.raises(GraphError, match=r"pass 'old_style' must return \(graph, info\)"):
        old_style(graph)


def test_a_cell_may_be_run_twice(graph: MaseGraph) -> None:
    cell = (
        "from chop.passes import analysis_pass\n"
        "@analysis_pass('cell')\n"
        "def cell(graph, pass_args=None):\n    return graph, {{'answer': {answer}}}\n"
    )
    for answer in (1, 2):
        exec(cell.format(answer=answer), {"__name__": "__main__"})
    assert PASSES["cell"](graph)[1] == {"answer": 2}


def test_a_decorator_without_a_name_is_an_error() -> None:
    with pytest.raises(RegistrationError, match=r'write @transform_pass\("my_pass"\)'):
        transform_pass(lambda graph: (graph, {}))  # type: ignore[arg-type]


def test_postponed_annotations_are_resolved(graph: MaseGraph) -> None:
    source = (
        "from __future__ import annotations\n"
        "from chop.passes import PassArgs, analysis_pass\n"
        "class Args(PassArgs):\n    times: int = 1\n"
        "@analysis_pass('postponed')\n"
        "def postponed(graph, args: Args):\n    return graph, {'times': args.times}\n"
    )
    exec(compile(source, "user.py", "exec"), {"__name__": "user"})
    assert PASSES["postponed"](graph, {"times": 2})[1] == {"times": 2}


def test_every_registered_pass_can_be_imported_flat() -> None:
    for entry in PASSES.values():
        assert getattr(chop.passes, entry.__name__) is entry
        assert getattr(chop.passes.graph, entry.__name__) is entry
        assert entry.__name__ in chop.passes.graph.__all__
        assert entry.__name__ in dir(chop.passes)
        assert entry.__name__ in dir(chop.passes.graph)
    for package in (chop.passes, chop.passes.graph):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            _ = package.nonsense


WITHOUT_EFFECT = [
    ("quantize", {"report": True}, "report"),
    ("quantize", {"baseline_weight_path": "a/b.mz"}, "baseline_weight_path"),
    ("quantize", {"load_type": "mz"}, "load_type"),
    ("add_software_metadata", {"dummy_in": {"x": 1}}, "dummy_in"),
    ("add_software_metadata", {"add_value": False}, "add_value"),
    ("init_metadata", {"dummy_in": {"x": 1}}, "dummy_in"),
    ("prune", {"dummy_in": {"x": 1}}, "dummy_in"),
    ("report_node_type", {"dummy_in": {"x": 1}}, "dummy_in"),
]


@pytest.mark.parametrize(("name", "given", "key"), WITHOUT_EFFECT)
def test_what_the_original_ignores_is_accepted_and_said_once(
    name: str, given: dict[str, Any], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_ignored.cache_clear()
    with caplog.at_level("WARNING", logger="chop"):
        for _ in range(2):
            assert PASSES[name].parse(given) == PASSES[name].parse({})
    (record,) = caplog.records
    assert record.getMessage().startswith(f"pass '{name}': {key} has no effect here: ")


@pytest.mark.parametrize("name", sorted({name for name, _, _ in WITHOUT_EFFECT}))
def test_a_misspelt_key_is_still_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="dumy_in"):
        PASSES[name].parse({"dumy_in": {"x": 1}})


def test_a_misspelt_key_without_effect_comes_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"reprot: a rule is .*; did you mean 'report'\?"):
        PASSES["quantize"].parse({"reprot": True})


def test_what_a_pass_takes_is_not_dropped() -> None:
    assert PASSES["count_operations"].parse({"dummy_in": {"x": 1}, "report": False}).model_dump(
        include={"dummy_in", "report"}
    ) == {"dummy_in": {"x": 1}, "report": False}
