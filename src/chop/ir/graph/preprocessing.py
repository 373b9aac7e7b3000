"""The preprocessing that a network was trained with, kept on the network itself."""

from torch import fx, nn

from chop.preprocessing import Preprocessing

ATTRIBUTE = "_chop_preprocessing"


def preprocessing_of(model: nn.Module) -> Preprocessing | None:
    """How the rows were scaled that `model` was trained on; None if that is not known."""
    found = vars(model).get(ATTRIBUTE)
    if found is None and isinstance(model, fx.GraphModule):
        found = model.meta.get(ATTRIBUTE)
    return found if isinstance(found, Preprocessing) else None


def set_preprocessing(model: nn.Module, preprocessing: Preprocessing | None) -> None:
    """Note how the rows are scaled that `model` works on."""
    vars(model)[ATTRIBUTE] = preprocessing
    if isinstance(model, fx.GraphModule):
        model.meta[ATTRIBUTE] = preprocessing  # a copy of a GraphModule keeps no attributes
