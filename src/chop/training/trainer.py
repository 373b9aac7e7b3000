"""Training and evaluation of tokenised text, called as the tutorials call them."""

import inspect
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx, nn

from chop.dataset.data_module import TensorLoader
from chop.dataset.own import FromLoaders
from chop.errors import ConfigError
from chop.loading.tokenized import TokenizedRows
from chop.models.hf import TokenModel
from chop.training.job import Job, evaluate_job
from chop.training.metrics import TokenEvaluation
from chop.training.settings import TrainingSettings
from chop.validation import parse

Metric = Literal["accuracy", "perplexity"]


class LogitsOf(nn.Module):
    """A model or graph that takes inputs by name, as one that takes tokens and gives logits.

    A graph has all its inputs in every call, so that those which only a loss would need, or which
    say that all tokens belong to one text, are zeros.
    """

    def __init__(self, model: nn.Module, pad: int, by_token: bool) -> None:
        super().__init__()
        self.model = model
        self.pad = pad
        self.by_token = by_token
        self.names = input_names(model)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of tokens."""
        if "input_ids" not in self.names:
            return logits_in(self.model(x))
        known = {"input_ids": x, "attention_mask": (x != self.pad).long()}
        if isinstance(self.model, fx.GraphModule):
            zeros = torch.zeros_like(x)
            known |= {"token_type_ids": zeros, "labels": zeros if self.by_token else zeros[:, 0]}
        given = {name: known[name] for name in self.names if name in known}
        return logits_in(self.model(**given))


def input_names(model: nn.Module) -> list[str]:
    """The names of a model's inputs."""
    if isinstance(model, fx.GraphModule):
        return [str(node.target) for node in model.graph.nodes if node.op == "placeholder"]
    return list(inspect.signature(model.forward).parameters)


def logits_in(result: Any) -> Tensor:
    """The logits in what a model gives: a tensor, what has logits, or the first of several."""
    if isinstance(result, Tensor):
        return result
    found = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if found is None and isinstance(result, Sequence) and result:
        found = result[0]
    if not isinstance(found, Tensor):
        raise ConfigError(f"the model gives a {type(result).__name__} without logits")
    return found


class TrainOutput(NamedTuple):
    """The steps, the loss and the metrics of a training."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class TextTrainer:
    """Trains and evaluates a model on tokenised rows; `model` itself learns."""

    def __init__(
        self,
        model: nn.Module,
        rows: Mapping[str, TokenizedRows],
        settings: TrainingSettings,
        batch_size: int,
        output_dir: Path | None,
    ) -> None:
        first = next(iter(rows.values()))
        self.model = model
        self.settings = settings
        self.output_dir = output_dir
        by_token = first.labels.ndim == 2
        is_ready = isinstance(model, TokenModel)
        self.network = model if is_ready else LogitsOf(model, first.pad, by_token)
        loaders = {
            split: TensorLoader(part.tokens, part.labels, batch_size, shuffle=split == "train",
                                seed=settings.seed)
            for split, part in rows.items()
        }  # fmt: skip
        self.data = FromLoaders(loaders, "train")

    def _job(self) -> Job:
        folder = self.output_dir or Path()
        return Job(self.network, self.data, folder, name=type(self.model).__name__)

    def train(self) -> TrainOutput:
        """Train for the epochs asked for."""
        from chop.training.fit import fit, fit_in_memory

        job = self._job()
        if self.output_dir is None:
            history = fit_in_memory(job, self.settings)
        else:
            history = fit(job, self.settings).history
        last = dict(history[-1])
        metrics = {name: float(value) for name, value in last.items()}
        return TrainOutput(int(last["step"]), metrics["train_loss"], metrics)

    def evaluate(self) -> dict[str, float]:
        """Loss, accuracy and, of a language model, perplexity.

        On test rows, or on validation rows where there are no others.
        """
        split = "test" if "test" in self.data.splits() else "val"
        began = time.perf_counter()
        found = evaluate_job(self._job(), self.settings, split)
        result = {"eval_loss": found.loss, "eval_accuracy": found.value}
        if isinstance(found, TokenEvaluation):
            result["eval_perplexity"] = found.perplexity
        return {**result, "eval_runtime": time.perf_counter() - began}


def get_trainer(  # noqa: PLR0913, PLR0917  (the tutorials' signature)
    model: nn.Module,
    tokenized_dataset: Mapping[str, Any],
    tokenizer: Any = None,
    evaluate_metric: Metric = "accuracy",
    output_dir: str | os.PathLike[str] | None = None,
    use_mps_device: bool = False,
    report_to: str | None = None,
    num_train_epochs: int = 1,
    *,
    batch_size: int = 32,
    **settings: Any,
) -> TextTrainer:
    """An object that trains and evaluates `model`: ``trainer.train()``, ``trainer.evaluate()``.

    Args:
        model: of transformers, of this package, or the ``model`` of a graph.
        tokenized_dataset: the rows of `get_tokenized_dataset`, by split.
        tokenizer: of the rows; its padding must be theirs.
        evaluate_metric: one of those that `evaluate` gives, accuracy or perplexity.
        output_dir: where checkpoints go; by default nothing is written.
        report_to: only None or "none": an `output_dir` gets a table and curves.
        settings: further fields of `TrainingSettings`, such as ``learning_rate``.
    """
    rows = _checked_rows(tokenized_dataset, tokenizer)
    by_token = next(iter(rows.values())).labels.ndim == 2
    if evaluate_metric not in ("accuracy", "perplexity"):
        raise ConfigError(f"evaluate_metric: accuracy or perplexity (got {evaluate_metric!r})")
    if evaluate_metric == "perplexity" and not by_token:
        raise ConfigError("evaluate_metric: perplexity is that of a language model, not of classes")
    if report_to not in (None, "none"):
        raise ConfigError(f"report_to: {report_to!r} is not offered here; output_dir gets a table")
    given = {"max_epochs": num_train_epochs, "learning_rate": 5e-5, "scheduler": "linear"}
    given |= {"accelerator": "mps"} if use_mps_device else {}
    chosen = parse(TrainingSettings, {**given, **settings}, "get_trainer")
    folder = None if output_dir is None else Path(output_dir)
    return TextTrainer(model, rows, chosen, batch_size, folder)


def _checked_rows(given: Mapping[str, Any], tokenizer: Any) -> dict[str, TokenizedRows]:
    """The rows by split, if they are ours and padded as the tokeniser says."""
    if not isinstance(given, Mapping) or "train" not in given:
        raise ConfigError("tokenized_dataset: the rows of get_tokenized_dataset are wanted")
    for split, part in given.items():
        if not isinstance(part, TokenizedRows):
            raise ConfigError(f"tokenized_dataset: {split} is a {type(part).__name__}")
        pad = getattr(tokenizer, "pad_token_id", None)
        if pad is not None and pad != part.pad:
            raise ConfigError(f"rows are padded with {part.pad}, but the tokenizer says {pad}")
    if "test" not in given and "validation" not in given:
        raise ConfigError("tokenized_dataset: there are neither test nor validation rows")
    return dict(given)
