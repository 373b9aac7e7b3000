"""How good a candidate becomes when it is trained for a while."""

from pathlib import Path
from typing import Literal

import torch
from pydantic import AliasChoices, Field

from chop.search.context import Candidate
from chop.search.runners.base import RunnerArgs, software_runner
from chop.search.runners.quiet import quietly
from chop.search.runners.software import LoaderName
from chop.tools.training.metrics import evaluate
from chop.tools.training.settings import TrainingSettings


class TrainArgs(RunnerArgs):
    """How to train, then which rows to evaluate on."""

    max_epochs: int = Field(1, ge=1)
    max_steps: int = Field(-1, ge=-1)
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    scheduler: Literal["cosine", "linear", "constant"] = Field(
        "cosine", validation_alias=AliasChoices("scheduler", "lr_scheduler")
    )
    accumulate_grad_batches: int = Field(
        1, ge=1, validation_alias=AliasChoices("accumulate_grad_batches",
                                               "gradient_accumulation_steps")
    )  # fmt: skip
    data_loader: LoaderName = Field(
        "val_dataloader", validation_alias=AliasChoices("data_loader", "dataloader")
    )
    num_samples: int | None = Field(None, ge=1)


@software_runner("basic_train", metrics=("loss", "accuracy"))
def basic_train(candidate: Candidate, args: TrainArgs) -> dict[str, float]:
    """Loss and accuracy after some epochs of (quantisation-aware) training of a private copy."""
    from chop.tools.training.fit import fit_in_memory
    from chop.tools.training.job import Job

    context = candidate.context
    settings = TrainingSettings(
        seed=context.seed,
        accelerator="cpu" if context.device.type == "cpu" else "auto",
        **args.model_dump(exclude={"data_loader", "num_samples"}),
    )
    torch.manual_seed(context.seed)
    with quietly():
        fit_in_memory(Job(candidate.model, context.data_module, Path()), settings)
    batches = context.batches(args.data_loader, args.num_samples)
    result = evaluate(candidate.model.to(context.device), batches, context.device)
    return {"loss": result.loss, "accuracy": result.accuracy}
