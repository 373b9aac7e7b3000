"""The float network and its teacher: made, trained, and made ready for widths that learn."""

import math
from pathlib import Path

import torch
from torch import fx, nn

from chop.errors import ConfigError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_model
from chop.models.info import MODELS, get_model
from chop.ops.op import op_of_node
from chop.passes.graph.transforms.folding import fold_normalisation_transform_pass
from chop.passes.graph.transforms.fusion import recorded_result_shape
from chop.search.learned.rows import Rows
from chop.search.learned.setup import TeacherSetup
from chop.search.learned.state import empty_facts, resume
from chop.search.spaces.space import SearchContext
from chop.training.loop import Loop, StepRates
from chop.training.optimisers import LOWEST_RATE, make_adam
from chop.training.parts import EpochLoss, SaveLast

NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
"""The normalisation of results of so many dimensions, the batch among them."""
NORMALISED = (nn.Linear, nn.Conv1d, nn.Conv2d)


def add_normalisations(graph: MaseGraph) -> MaseGraph:
    """The graph with a batch normalisation after each layer that only a ReLU inside it reads."""
    modules = graph.modules
    for node in list(graph.nodes):
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        shape = recorded_result_shape(node) or []
        if not isinstance(layer, NORMALISED) or not _feeds_relu(node, modules):
            continue
        is_rows = len(shape) == 2 if isinstance(layer, nn.Linear) else len(shape) in NORMS
        if not is_rows:
            continue
        name = f"normalise_{node.name}"
        graph.model.add_submodule(name, NORMS[len(shape)](shape[1]))
        with graph.fx_graph.inserting_after(node):
            norm = graph.fx_graph.call_module(name, (node,))
        node.replace_all_uses_with(norm, delete_user_cb=lambda user, own=norm: user is not own)
    graph.model.recompile()
    return graph


def _feeds_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Return whether only a ReLU reads a node, and something else than the output reads that."""
    if len(node.users) != 1:
        return False
    (user,) = node.users
    op = op_of_node(user, modules)
    return op is not None and op.name == "relu" and all(n.op != "output" for n in user.users)


def fold_normalisations(context: SearchContext, model: nn.Module) -> MaseGraph:
    """The graph of a trained network, its normalisations part of layers or products."""
    graph, _ = fold_normalisation_transform_pass(context.graph(model.eval()))
    return graph


def make_teacher(setup: TeacherSetup, context: SearchContext) -> nn.Module:
    """The teacher before its training; its weights, where they are new, depend on the seed."""
    torch.manual_seed(context.seed + 1)
    if setup.hidden:
        model: nn.Module = perceptron(context, setup.hidden)
    elif setup.model:
        if setup.model not in MODELS:
            raise UnknownNameError("model", setup.model, MODELS, "search.strategy.setup.teacher")
        info = context.data_module.dataset_info
        model = get_model(setup.model, context.task, dataset_info=info, fetch=False)
    else:
        model = context.pristine()
    if setup.load_name is not None:
        model = load_model(setup.load_name, setup.load_type, model)
    return model.to(context.device)


def perceptron(context: SearchContext, hidden: list[int]) -> nn.Module:
    """A multilayer perceptron with batch normalisation, for whatever rows the search has."""
    features = next(iter(context.dummy_in.values()))
    layers: list[nn.Module] = [nn.Flatten()]
    before = features[0].numel()
    for size in hidden:
        layers += [nn.Linear(before, size), nn.BatchNorm1d(size), nn.ReLU()]
        before = size
    return nn.Sequential(*layers, nn.Linear(before, classes_of(context)))


def classes_of(context: SearchContext, model: nn.Module | None = None) -> int:
    """Return how many numbers a network, by default that of the search, gives for a row."""
    features = next(iter(context.dummy_in.values()))
    network = context.pristine() if model is None else model
    with torch.no_grad():
        scores = network.to(features.device).eval()(features[:2].clone())
    return 1 if scores.ndim == 1 else int(scores.shape[-1])


def check_teacher(teacher: nn.Module, context: SearchContext) -> None:
    """Refuse a teacher that does not fit the rows, or says something else of them."""
    wanted = classes_of(context)
    try:
        found = classes_of(context, teacher)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"the teacher cannot take the rows: {reason}") from None
    if found != wanted:
        raise ConfigError(f"the teacher gives {found} numbers for a row, the network {wanted}")


def train_float(
    name: str, model: nn.Module, rows: Rows, rate: float, epochs: int, path: Path
) -> nn.Module:
    """Train a float network for the epochs that are not done; return it in evaluation mode.

    Args:
        name: of the network, for messages.
        rate: at the start; it falls along a cosine.
        path: where each epoch is saved.
    """

    def factor(epoch: int, step: int, steps: int) -> float:
        done = (epoch * steps + step) / max(epochs * steps, 1)
        return max((1 + math.cos(math.pi * done)) / 2, LOWEST_RATE / rate)

    def diverged(epoch: int) -> str:
        return (
            f"{name}: the loss is not a finite number in epoch {epoch + 1}: the learning rate "
            f"{rate:g} is most likely too high; try {rate / 10:g}"
        )

    parts = [StepRates(factor), EpochLoss(diverged), SaveLast(path)]
    optimiser = make_adam([(model.parameters(), rate)])
    loop = Loop(model, optimiser, rows, rows.loss, parts, facts=empty_facts)
    resume(loop, path)
    loop.run(epochs)
    return model.eval()
