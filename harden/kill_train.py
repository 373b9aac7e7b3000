"""Training that is killed and goes on: what must be true of it."""

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chop.errors import ChopError
from chop.models.weights import read_checkpoint
from harden.kill_server import Answer, Request, Server

OWN_MODEL = """
from torch import nn
from chop.models import register_model

@register_model("forgetful")
def forgetful(info):
    "Draws random numbers while it trains, so a resumed run must go on with the same ones."
    return nn.Sequential(
        nn.Linear(info.num_features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(16, info.num_classes),
    )
"""
COMMON = "jsc-sim --project-dir . --project out --accelerator cpu --max-epochs 5"
FLAVOURS = {
    "adam": "train jsc-tiny --learning-rate 1e-2 --batch-size 512 --report-to none",
    "dropout": "train forgetful --import own.py --learning-rate 1e-1 --batch-size 512"
    " --training-optimizer sgd --accumulate-grad-batches 3 --report-to none --seed 5",
    "tensorboard": "train jsc-tiny --learning-rate 1e-2 --batch-size 1024 --log-every-n-steps 5",
    "patience": "train jsc-tiny --learning-rate 3e-1 --batch-size 512 --report-to none"
    " --early-stopping 2 --scheduler constant",
}
"""What is trained, as the command line says it."""
OF_TWO = {
    "two processes": "train jsc-tiny --learning-rate 1e-2 --batch-size 512 --report-to none"
    " --num-devices 2",
    "two with dropout": "train forgetful --import own.py --learning-rate 1e-1 --batch-size 512"
    " --training-optimizer sgd --report-to none --num-devices 2",
}
"""What two processes train together, the second of which begins by importing torch."""
CHECKPOINTS = Path("out", "software", "training_ckpts")
CHANGING = ("seconds", "record")
"""What a checkpoint holds that may differ between two runs: times and the command."""


def arguments(flavour: str, resume: bool = False) -> list[str]:
    """The command line of a run."""
    action, model, *rest = (FLAVOURS | OF_TWO)[flavour].split()
    more = ["--resume"] if resume else []
    return [action, model, *COMMON.split(), *rest, *more]


def project(folder: Path) -> Path:
    """A folder to train in."""
    folder.mkdir(parents=True)
    (folder / "own.py").write_text(OWN_MODEL)
    return folder


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed: where it is, how long it took, how many file operations."""

    folder: Path
    seconds: float
    operations: int


def undisturbed(server: Server, folder: Path, flavour: str) -> Reference:
    """Train without any kill."""
    work = project(folder / f"reference-{flavour}")
    request = Request([arguments(flavour)], str(work), str(work / "said"))
    answer = server.run(request)
    if answer.codes != [0]:
        raise RuntimeError(f"{flavour}: {answer.codes}: {request.output(0).read_text()[-2000:]}")
    return Reference(work, answer.seconds, answer.operations)


@dataclass
class Disturbed:
    """One project that is killed, perhaps several times, and then left alone."""

    server: Server
    folder: Path
    flavour: str
    reference: Reference
    number: int = 0
    done: int = 0
    """Epochs that the last checkpoint holds."""

    def killed(self, kill_after: float | None = None, **how: Any) -> tuple[bool, list[str]]:
        """Train until a moment or a file operation; whether it was killed, and what is wrong."""
        answer, said = self._train(kill_after=kill_after, **how)
        before, (self.done, wrong) = self.done, saved_epochs(self.folder / CHECKPOINTS)
        if answer.left_behind:
            wrong.append("a process of a killed run is still at work")
        if not answer.killed and not (how.get("helpers") and gave_up(answer, said)):
            failed = answer.codes != [0]
            return False, wrong + ([f"ended with {answer.codes}: {said[-300:]}"] if failed else [])
        announced = len(re.findall(r"Epoch \d+: 100%", said))
        # The next epoch begins when a checkpoint is whole, so only the last one may be missing.
        if self.done < before + announced - 1:
            wrong.append(f"epochs were done: {before + announced - 1}, and are saved: {self.done}")
        return True, wrong

    def finished(self) -> list[str]:
        """Go on to the end; what is not as it would have been without the kills."""
        answer, said = self._train()
        if answer.codes != [0]:
            return [f"--resume ended with {answer.codes}: {said[-300:]}"]
        trained = [int(each) for each in re.findall(r"Epoch (\d+): 100%", said)]
        expected = len(rows(self.reference.folder))
        wrong = [] if trained == list(range(self.done, expected)) else [
            f"{self.done} epochs were saved, and --resume trained {trained} of {expected}"
        ]  # fmt: skip
        return wrong + differences(self.reference.folder, self.folder)

    def _train(self, **how: Any) -> tuple[Answer, str]:
        command = arguments(self.flavour, resume=self.number > 0)
        self.number += 1
        request = Request(
            [command], str(self.folder), str(self.folder / "said"), f"run{self.number}", **how
        )
        answer = self.server.run(request)
        return answer, request.output(0).read_text(errors="replace")


def gave_up(answer: Answer, said: str) -> bool:
    """Whether a run ended by itself, and in order, when another process of it was killed."""
    return answer.codes == [2] and "Traceback" not in said


def saved_epochs(folder: Path) -> tuple[int, list[str]]:
    """How many epochs the last checkpoint holds, and which checkpoints cannot be read."""
    wrong = unreadable(folder)
    last = folder / "last.ckpt"
    done = int(read_checkpoint(last)["epoch"]) + 1 if last.exists() and not wrong else 0
    return done, wrong


def unreadable(folder: Path) -> list[str]:
    """The checkpoints in a folder that cannot be read, with the reason."""
    wrong = []
    for path in sorted(folder.glob("*.ckpt")):
        try:
            read_checkpoint(path)
        except ChopError as error:
            if path.exists():
                wrong.append(f"unreadable: {error}")
    return wrong


def differences(one: Path, other: Path) -> list[str]:
    """What two projects differ in: files, weights and states bit for bit, rows of the table."""
    files = [{p.name for p in (each / CHECKPOINTS).glob("[!.]*")} for each in (one, other)]
    if files[0] != files[1]:
        return [f"files are {sorted(files[1])}, not {sorted(files[0])}"]
    wrong = []
    for name in ("last.ckpt", "best.ckpt"):
        pair = [read_checkpoint(each / CHECKPOINTS / name) for each in (one, other)]
        wrong += [f"{name}: {place} differs" for place in itertools.islice(unequal(*pair), 3)]
    if rows(one) != rows(other):
        wrong.append("training_log.csv differs")
    return wrong


def rows(folder: Path) -> list[dict[str, str]]:
    """The table of the epochs, without their times."""
    with (folder / CHECKPOINTS / "training_log.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if name not in CHANGING} for row in found]


def unequal(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two checkpoints differ, to the last bit."""
    if type(one) is not type(other):
        yield place
    elif isinstance(one, Mapping):
        names = {name for name in one.keys() | other.keys() if name not in CHANGING}
        for name in sorted(names, key=str):
            yield from unequal(one.get(name), other.get(name), f"{place}/{name}")
    elif isinstance(one, list | tuple):
        for index, pair in enumerate(itertools.zip_longest(one, other)):
            yield from unequal(*pair, f"{place}/{index}")
    elif not (same_tensors(one, other) if isinstance(one, torch.Tensor) else one == other):
        yield place


def same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are of one kind and equal bit for bit."""
    return one.dtype == other.dtype and torch.equal(one, other)
