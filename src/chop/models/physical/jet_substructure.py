"""Multilayer perceptrons that tell jets apart by their substructure.

`jsc-tiny`, `jsc-toy`, `jsc-s` and `jsc-new` end in a ReLU, as the labs print them. It comes just
before the loss, so no class score can be negative and a class whose score is 0 for all rows gets
no gradient: such networks train worse than their size allows. `jsc-tiny-x10` and `jsc-mlp` end
in a linear layer.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from torch import Tensor, nn

from chop.models.info import DataInfo, class_rows_of, register_model, rows_of

FACTS = {"model_source": "physical", "task_type": "physical"}

Relu = Callable[[], nn.Module]
IN_PLACE: Relu = partial(nn.ReLU, inplace=True)  # as the labs print them


def normalised_layers(sizes: list[int], relu: Relu) -> list[nn.Module]:
    """Batch normalisation, ReLU and a linear layer for each step from one size to the next."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.BatchNorm1d(before), relu(), nn.Linear(before, after)]
    return layers


class SequentialBlocks(nn.Module):
    """A network that is one chain of layers, called `seq_blocks` as in the labs."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.seq_blocks = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.seq_blocks(x)
        return scores


@register_model("jsc-tiny", **FACTS)
class JSC_Tiny(SequentialBlocks):
    """One linear layer 16-5 with a closing ReLU: 117 parameters, the network of Lab 1."""

    def __init__(self, info: DataInfo) -> None:
        features, classes = class_rows_of(info, "jsc-tiny", "ReLU")
        super().__init__([*normalised_layers([features, classes], IN_PLACE), IN_PLACE()])


@register_model("jsc-toy", **FACTS)
class JSC_Toy(SequentialBlocks):
    """Linear layers 16-8-8-5 with batch normalisation and a closing ReLU."""

    def __init__(self, info: DataInfo) -> None:
        super().__init__(_close_chain(info, "jsc-toy", [8, 8], IN_PLACE))


@register_model("jsc-s", **FACTS)
class JSC_S(SequentialBlocks):
    """Linear layers 16-64-32-32-32-5 with batch normalisation and a closing ReLU."""

    def __init__(self, info: DataInfo) -> None:
        super().__init__(_close_chain(info, "jsc-s", [64, 32, 32, 32], IN_PLACE))


@register_model("jsc-new", **FACTS)
class JSC_New(SequentialBlocks):
    """Linear layers 16-8-64-5 with batch normalisation and a closing ReLU: 1,223 parameters."""

    def __init__(self, info: DataInfo) -> None:
        super().__init__(_close_chain(info, "jsc-new", [8, 64], nn.ReLU))


@register_model("jsc-tiny-x10", **FACTS)
class JSC_Tiny_x10(SequentialBlocks):
    """Linear layers 16-40-25-5 with batch normalisation: the larger network of Lab 1."""

    def __init__(self, info: DataInfo) -> None:
        features, classes = rows_of(info, "jsc-tiny-x10")
        super().__init__(normalised_layers([features, 40, 25, classes], nn.ReLU))


@register_model("jsc-mlp", **FACTS)
class JSC_MLP(SequentialBlocks):
    """Linear layers 16-64-32-32-5 with ReLU between: the reference network of the literature."""

    def __init__(self, info: DataInfo) -> None:
        features, classes = rows_of(info, "jsc-mlp")
        layers: list[nn.Module] = []
        for before, after in ((features, 64), (64, 32), (32, 32)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__([*layers, nn.Linear(32, classes)])


def _close_chain(info: DataInfo, name: str, hidden: list[int], relu: Relu) -> list[nn.Module]:
    """A chain whose class scores are themselves normalised and cut off at 0."""
    features, classes = class_rows_of(info, name, "ReLU")
    chain = normalised_layers([features, *hidden, classes], relu)
    return [*chain, nn.BatchNorm1d(classes), relu()]
