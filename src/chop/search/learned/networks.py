"""The float network and its teacher: made, trained, and made ready for widths that learn."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn, optim

from chop.errors import ConfigError, TrainingError, UnknownNameError
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_model
from chop.models.info import MODELS, get_model
from chop.ops.op import op_of_node
from chop.passes.graph.transforms.fusion import (
    conv_bn_fusion_transform_pass,
    linear_bn_fusion_transform_pass,
    recorded_result_shape,
)
from chop.search.learned.rows import Rows
from chop.search.learned.setup import TeacherSetup
from chop.search.learned.state import fitting, optimiser_state, read_state, write_state
from chop.search.spaces.space import Batch, SearchContext
from chop.training.optimisers import FUSED_DEVICES, LOWEST_RATE, OWN_RATE, step_function

NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
"""What normalises results of so many dimensions, the batch among them."""
NORMALISED = (nn.Linear, nn.Conv1d, nn.Conv2d)


def normalised(graph: MaseGraph) -> MaseGraph:
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
    """Whether only a ReLU reads a node, and something else than the output reads that."""
    if len(node.users) != 1:
        return False
    (user,) = node.users
    op = op_of_node(user, modules)
    return op is not None and op.name == "relu" and all(n.op != "output" for n in user.users)


def folded(context: SearchContext, model: nn.Module) -> MaseGraph:
    """The graph of a trained network, with normalisations folded into the layers before them."""
    graph = context.graph(model.eval())
    graph, _ = conv_bn_fusion_transform_pass(graph)
    graph, _ = linear_bn_fusion_transform_pass(graph)
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
    """How many numbers a network, by default that of the search, gives for a row."""
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


def make_adam(groups: Iterable[tuple[Iterable[Tensor], float]]) -> optim.Adam:
    """Adam with a rate for each group of parameters, fused where the device can."""
    stated: list[dict[str, Any]] = [{"params": list(each), "lr": rate} for each, rate in groups]
    stated = [group for group in stated if group["params"]]
    devices = {value.device.type for group in stated for value in group["params"]}
    optimiser = optim.Adam(stated, fused=devices <= FUSED_DEVICES)
    for group in optimiser.param_groups:
        group[OWN_RATE] = group["lr"]
    return optimiser


def train_epoch(  # what a training consists of
    model: nn.Module,
    batches: Iterable[Batch],
    optimiser: optim.Optimizer,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    factor: Callable[[int], float],
    cost: Callable[[], Tensor] | None = None,
) -> float:
    """Train for one epoch; the mean loss, which need not be a finite number.

    Args:
        loss_of: the loss of outputs and targets.
        factor: what the rates of a step are multiplied by.
        cost: what is added to the loss of a step.
    """
    losses: list[Tensor] = []
    parameters = [value for group in optimiser.param_groups for value in group["params"]]
    take_step = step_function(optimiser)
    for step, (features, targets) in enumerate(batches):
        share = factor(step)
        for group in optimiser.param_groups:
            group["lr"] = group[OWN_RATE] * share
        loss = loss_of(model(features), targets)
        if cost is not None:
            loss = loss + cost()
        for value in parameters:
            value.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        take_step()
        losses.append(loss.detach())
    if not losses:
        raise ConfigError("there are no batches to train on: give more rows or a smaller batch")
    return float(torch.stack(losses).mean())


class FloatTraining:
    """The training of a float network, epoch by epoch; each is kept in a file.

    Args:
        name: of the network, for messages.
        path: where the state is kept.
    """

    def __init__(self, name: str, model: nn.Module, rate: float, path: Path) -> None:
        self.name, self.model, self.path = name, model, path
        self.optimiser = make_adam([(model.parameters(), rate)])
        self.rate = rate

    def run(self, rows: Rows, epochs: int) -> nn.Module:
        """Train for the epochs that are not done; the network in evaluation mode."""
        for epoch in range(self._resume(), epochs):
            steps = epochs * rows.steps

            def factor(step: int, first: int = epoch * rows.steps, steps: int = steps) -> float:
                cosine = (1 + math.cos(math.pi * (first + step) / max(steps, 1))) / 2
                return max(cosine, LOWEST_RATE / self.rate)

            self.model.train()
            batches = rows.batches(epoch, self.model)
            loss = train_epoch(self.model, batches, self.optimiser, rows.loss, factor)
            if not math.isfinite(loss):
                raise TrainingError(
                    f"{self.name}: the loss is not a finite number in epoch {epoch + 1}: the "
                    f"learning rate {self.rate:g} is most likely too high; try {self.rate / 10:g}"
                )
            self._keep(epoch + 1)
        return self.model.eval()

    def _keep(self, done: int) -> None:
        state = {"epochs": done, "model": self.model.state_dict()}
        write_state(self.path, {**state, "optimiser": self.optimiser.state_dict()})

    def _resume(self) -> int:
        """Put back what was kept; the epochs that are done."""
        state = read_state(self.path)
        if state is None:
            return 0
        with fitting(self.path):
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(optimiser_state(state["optimiser"]))
            return int(state["epochs"])
