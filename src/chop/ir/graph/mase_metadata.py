"""What is known of a node and of a graph: three sections of nested dictionaries.

The dictionaries stay open, because the labs index them and passes add their own entries; the
`TypedDict`s say what the passes of this package put there.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor, fx, nn

SECTIONS = ("common", "software", "hardware")


class TensorEntry(TypedDict, total=False):
    """A tensor that goes into a node or comes out of it."""

    type: str | None
    precision: list[Any] | None
    shape: list[int] | None
    torch_dtype: torch.dtype | None
    value: Tensor


ParameterEntry = TypedDict(
    "ParameterEntry",
    {"type": str, "precision": list[Any], "shape": list[int], "from": None, "value": Tensor},
    total=False,
)
"""A parameter of a module; `from` is kept, always None, because the labs print it."""


class CommonMetadata(TypedDict, total=False):
    """What a node is, what goes in and what comes out.

    Tensors are entries (`TensorEntry`, `ParameterEntry`), other arguments are stored bare.
    """

    mase_type: str
    mase_op: str
    args: dict[str, Any]
    results: dict[str, Any]


class SoftwareEntry(TypedDict, total=False):
    """What software passes found out about one argument or result."""

    stat: dict[str, Any]


class SoftwareMetadata(TypedDict, total=False):
    """Findings about the arguments and results of a node, named as in the common section."""

    args: dict[str, SoftwareEntry]
    results: dict[str, SoftwareEntry]


class Sections(TypedDict):
    """The three sections of a record."""

    common: CommonMetadata
    software: SoftwareMetadata
    hardware: dict[str, Any]


def empty_sections() -> Sections:
    """Three sections with nothing in them."""
    return {"common": {}, "software": {}, "hardware": {}}


class MaseGraphMetadata:
    """The record of a whole graph: its inputs, outputs and findings."""

    def __init__(self) -> None:
        self.parameters: Sections = empty_sections()

    def __getitem__(self, section: str) -> Any:
        return self.parameters[section]  # type: ignore[literal-required]


class MaseMetadata:
    """The record of a node: ``node.meta["mase"]``.

    The model is looked up through the node, so the record follows a graph into another
    GraphModule and keeps no model alive by itself.
    """

    def __init__(self, node: fx.Node | None = None, model: nn.Module | None = None) -> None:
        self.node = node
        self._model = model
        self.parameters: Sections = empty_sections()

    def __getitem__(self, section: str) -> Any:
        return self.parameters[section]  # type: ignore[literal-required]

    @property
    def graph(self) -> fx.Graph | None:
        """The fx graph the node is in."""
        return None if self.node is None else self.node.graph

    @property
    def model(self) -> nn.Module | None:
        """The GraphModule the node is in."""
        owner = None if self.graph is None else self.graph.owning_module
        return self._model if owner is None else owner

    @property
    def module(self) -> nn.Module | None:
        """The module that a `call_module` node calls, else None."""
        if self.node is None or self.model is None or self.node.op != "call_module":
            return None
        return self.model.get_submodule(str(self.node.target))

    def copy_for(self, node: fx.Node) -> "MaseMetadata":
        """The same record for another node: dictionaries are copied, tensors are shared."""
        twin = MaseMetadata(node)
        twin.parameters = copy_containers(self.parameters)
        return twin

    def __repr__(self) -> str:
        name = None if self.node is None else self.node.name
        return f"MaseMetadata({name}, {self.parameters['common'].get('mase_op')})"


def copy_containers(value: Any) -> Any:
    """Nested dictionaries, lists and tuples copied; what they hold (tensors, say) is shared."""
    if isinstance(value, Mapping):
        return {key: copy_containers(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_containers(item) for item in value)
    return value


def metadata_of(node: fx.Node) -> MaseMetadata:
    """The record of a node, made if a transform added the node without one."""
    found = node.meta.get("mase")
    if not isinstance(found, MaseMetadata):
        found = node.meta["mase"] = MaseMetadata(node)
    return found
