"""Widths that learn: all weights of a network rounded in one step, and what their bits cost.

Each quantiser of the format `integer_trained` can round by itself. `LearnedWidths` does it for the
whole network before every forward pass, as one node of the graph of gradients, which takes half the
time; the node also gives the cost, an estimate of effective bit operations (EBOPs), whose gradient
is known in closed form and worked out again every few steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from chop.errors import CheckpointError, ConfigError
from chop.nn.bit_cost import (
    BitCost,
    Gradients,
    OperandPair,
    Parts,
    learned_bits,
    learns_widths,
    pairs_of_call,
    quantizers_of,
)
from chop.nn.chain import can_take
from chop.nn.learned_nodes import LearnedChain, LearningChain, RoundAll
from chop.nn.quantized import QuantizedModule
from chop.numerics.trained import TrainedData, floor_of_sum

DECAY = 0.985
"""By how much the ranges of data shrink at each refresh, so that they follow values down, too."""


class LearnedWidths:
    """All that learns widths in a model, rounded together before each forward pass in training.

        widths = LearnedWidths(model)
        loss = cross_entropy(model(x), y) + weight * widths.cost

    It owns no parameters: they are those of the quantisers. In evaluation, and after `remove`, each
    quantiser rounds by itself, to the same numbers.

    Args:
        model: a network with layers in the format `integer_trained`.
        refresh: steps after which cost and ranges are worked out again.
        magnitude: how much more the gradient of the cost is, with respect to a weight, than that
            of its bits before the point: what draws weights to fewer of them.
    """

    def __init__(self, model: nn.Module, refresh: int = 8, magnitude: float = 2.0) -> None:
        if refresh < 1 or magnitude < 0:
            raise ConfigError(
                "learned widths: refresh must be at least 1 and magnitude at least 0 "
                f"(got {refresh} and {magnitude})"
            )
        if not learns_widths(model):
            raise ConfigError(
                "nothing in this network learns its widths: quantise it to the format "
                "'integer_trained' first"
            )
        if LearnedWidths.of(model) is not None:
            raise ConfigError(
                "the widths of this network are being learned already: remove() ends that"
            )
        self.model, self.refresh, self.magnitude = model, refresh, magnitude
        self.step = 0
        self.meetings: list[OperandPair] = []
        self.gradients: Gradients | None = None
        self.complete = False
        """Whether the last count knew all ranges and all shapes."""
        self.value = torch.zeros(())
        self.cost = self.value
        self.due = True
        self._parts: Parts | None = None
        self._chain: LearningChain | None = None
        self._tensors: list[Tensor] | None = None
        """What a step that is one node works on, until it does."""
        self._watches: list[Any] = []
        self._noted: list[OperandPair] = []
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after, always_call=True)
        model.__dict__["forward"] = self._forward

    @staticmethod
    def of(model: nn.Module) -> "LearnedWidths | None":
        """The object that learns the widths of a model already, if there is one."""
        owners = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
        return next((each for each in owners if isinstance(each, LearnedWidths)), None)

    @property
    def parts(self) -> Parts:
        """The quantisers that learn; found once, and again in a copy."""
        if self._parts is None:
            self._parts = Parts.of(self.model)
            for each in self._parts.quantizers:
                each.fused = True
        return self._parts

    @property
    def chain(self) -> LearningChain:
        """The chain of linear layers that the model is; it has no links if it is none."""
        if self._chain is None:
            self._chain = LearningChain.of(self.model, self.parts)
        return self._chain

    def parameters_of_bits(self) -> list[nn.Parameter]:
        """The bits after the point, which an optimiser may give a separate rate."""
        return learned_bits(self.model)

    def clamp(self) -> None:
        """Keep all bits within their limits."""
        for each in self.parts.quantizers:
            each.clamp()

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Tensor | Mapping[str, Any]]) -> None:
        """Set the bits before the point of all data from the values that batches give."""
        with self._watching():
            for batch in batches:
                _ = self.model(**batch) if isinstance(batch, Mapping) else self.model(batch)
        if not any(each.seen for each in self.parts.data):
            raise ConfigError("calibration needs at least one batch")
        for name, layer in self.parts.layers.items():
            for role, each in quantizers_of(layer).items():
                if isinstance(each, TrainedData) and each.seen and not each.usable:
                    raise ConfigError(
                        f"calibration: {role} of {name!r} saw values that are NaN or infinite"
                    )

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Evaluate with new ranges, which nothing saturates at."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        for each in self.parts.data:
            each.forget()
            each.watching = True
        try:
            yield
        finally:
            for each in self.parts.data:
                each.watching = None
            for module, training in modes:
                module.training = training

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs beside that of the model."""
        return {
            "step": self.step,
            "complete": self.complete,
            "meetings": [(m.layer, list(m.operands), m.macs) for m in self.meetings],
            "value": self.value,
            "gradients": None if self.gradients is None else [list(g) for g in self.gradients],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        given = state["gradients"]
        if given is not None:
            found, parts = Gradients(*map(list, given)), self.parts
            learning = [weight.value for weight in parts.weights[: parts.learning]]
            bits = [weight.quantizer.frac_width for weight in parts.weights[: parts.learning]]
            wanted = Gradients(bits, [each.frac_width for each in parts.data], learning)
            if [[t.shape for t in g] for g in found] != [[t.shape for t in g] for g in wanted]:
                raise CheckpointError("the state of the learned widths is that of another network")
            device = parts.weights[0].value.device if parts.weights else None
            given = Gradients(*([t.to(device) for t in g] for g in found))
        self.step, self.complete = int(state["step"]), bool(state["complete"])
        self.meetings = [
            OperandPair(name, (a, b), macs) for name, (a, b), macs in state["meetings"]
        ]
        self.value, self.gradients = state["value"].clone(), given

    def remove(self) -> None:
        """Let every quantiser round by itself again."""
        self.model.__dict__.pop("forward", None)
        for hooks in (self.model._forward_pre_hooks, self.model._forward_hooks):
            for key, hook in list(hooks.items()):
                if getattr(hook, "__self__", None) is self:
                    del hooks[key]
                    for marks in (
                        self.model._forward_hooks_always_called,
                        self.model._forward_pre_hooks_with_kwargs,
                    ):
                        marks.pop(key, None)
        for each in self.parts.quantizers:
            each.fused, each.given = False, None

    def __getstate__(self) -> dict[str, Any]:
        # A copy finds its parts in the copied model; the cost belongs to a forward pass.
        return self.__dict__ | {
            "_parts": None, "_chain": None, "_tensors": None, "_watches": [], "cost": self.value
        }  # fmt: skip

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.meetings and not self._watches:
            self._watch_layers((*args, *kwargs.values()))
        if not (model.training and torch.is_grad_enabled()):
            return
        parts = self.parts
        self.due = self.step % self.refresh == 0 or not self.complete
        if self.due and self.step and parts.data:
            torch._foreach_mul_(
                [bound for each in parts.data for bound in (each.lo, each.hi)], DECAY
            )
        self.step += 1
        count = len(parts.weights)
        bits = [each.frac_width for each in (*(w.quantizer for w in parts.weights), *parts.data)]
        values = [weight.value for weight in parts.weights]
        if self.meetings and len(args) == 1 and not kwargs and can_take(self.chain.links, args[0]):
            self._tensors = [*values, *bits]
            return
        *results, self.cost = RoundAll.apply(self, *values, *bits)  # type: ignore[no-untyped-call]
        for weight, rounded in zip(parts.weights, results, strict=False):
            weight.quantizer.__dict__["given"] = rounded
        scales = results[count:]
        reciprocals = torch._foreach_reciprocal([s.detach() for s in scales]) if scales else ()
        for each, *scaling in zip(parts.data, scales, reciprocals, strict=True):
            state = each.__dict__  # which is quicker to set than attributes of a module
            state["given"], state["watching"] = scaling, self.due

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors, self._tensors = self._tensors, None
        if tensors is None:
            return type(self.model).forward(self.model, *args, **kwargs)
        scores, self.cost = LearnedChain.apply(self, *args, *tensors)  # type: ignore[no-untyped-call]
        return scores

    def round_data(self, quantizer: TrainedData, scale: Tensor, x: Tensor) -> Tensor:
        """Return data as training rounds them; their range is noted where the cost needs it."""
        if self.due:
            quantizer.see(x)
        return floor_of_sum(x, scale).mul_(scale.reciprocal())

    def _after(self, model: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """Nothing of a step outlives its forward pass."""
        if self._watches:
            for watch in self._watches:
                watch.remove()
            self.meetings = self._noted if result is not None else []
            self._watches, self._noted = [], []
        parts = self.parts
        for weight in parts.weights:
            weight.quantizer.__dict__["given"] = None
        for each in parts.data:
            state = each.__dict__
            if state["given"] is not None:
                state["given"] = state["watching"] = None

    def count(self, rounded: Sequence[Tensor], scales: Sequence[Tensor]) -> None:
        """Work out the cost and its gradients from the weights as they are rounded now."""
        cost = BitCost(self.parts, rounded, scales, self.magnitude)
        for meeting in self.meetings:
            cost.add(meeting)
        self.complete = cost.complete
        like = self.parts.quantizers[0].frac_width
        self.value = torch.as_tensor(cost.total, dtype=like.dtype, device=like.device)
        self.gradients = cost.gradients

    def _watch_layers(self, inputs: tuple[Any, ...]) -> None:
        """Find out in one forward pass how often the operands of each layer meet."""
        rows = next((len(each) for each in inputs if isinstance(each, Tensor) and each.dim()), 1)

        def note(name: str, layer: QuantizedModule, *call: Any) -> None:
            self._noted += pairs_of_call(name, layer, call, rows)

        self._watches = [
            layer.register_forward_hook(partial(note, name), with_kwargs=True)
            for name, layer in self.parts.layers.items()
        ]
