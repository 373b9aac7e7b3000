"""Every verb on every kind of batch and model: the numbers of a bare loop, or one line."""

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import chop

Batches = list[Any]


def rows(count: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(count, 3, generator=draw)
    return x, (x.sum(1) > 0).long()


def cut(size: int = 16) -> list[tuple[Tensor, Tensor]]:
    x, y = rows()
    return list(zip(x.split(size), y.split(size), strict=True))


class Named(nn.Module):
    """Takes its inputs by name, as transformers do, and gives what has logits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        return {"logits": self.fc2(self.fc1(pixel_values).relu())}


class Output(Named):
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        return SimpleNamespace(logits=super().forward(pixel_values)["logits"])


class First(Named):
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> Any:
        return (super().forward(pixel_values)["logits"], None)


class Two(nn.Module):
    """Takes two inputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.fc(left - 2 * right)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def by_name(size: int = 16) -> Batches:
    return [{"pixel_values": x, "labels": y} for x, y in cut(size)]


def of_two() -> Batches:
    return [{"left": x, "right": x.flip(1), "label": y} for x, y in cut()]


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batches]]] = {
    "pairs": (plain, cut),
    "lists": (plain, lambda: [[x, y] for x, y in cut()]),
    "single rows": (plain, lambda: cut(1)),
    "uneven": (plain, lambda: [*cut(39)]),
    "doubles": (plain, lambda: [(x.double(), y) for x, y in cut()]),
    "short labels": (plain, lambda: [(x, y.to(torch.uint8)) for x, y in cut()]),
    "half": (lambda: plain().half(), cut),
    "bfloat16": (lambda: plain().bfloat16(), cut),
    "double model": (lambda: plain().double(), cut),
    "dictionaries": (Named, by_name),
    "uneven dictionaries": (Named, lambda: by_name(39)),
    "inputs by name and labels": (Named, lambda: [({"pixel_values": x}, y) for x, y in cut()]),
    "an object with logits": (Output, by_name),
    "pairs to an object with logits": (Output, cut),
    "a tuple": (First, cut),
    "two inputs": (Two, of_two),
}


def bare(model: nn.Module, batches: Iterable[Any]) -> tuple[float, float]:
    """The mean loss and the accuracy of a loop that is written out."""
    dtype = next(model.parameters()).dtype
    loss, right, count = 0.0, 0, 0
    for batch in batches:
        if isinstance(batch, dict):
            inputs = {k: v for k, v in batch.items() if k not in ("labels", "label")}
            labels = batch.get("labels", batch.get("label"))
        else:
            inputs, labels = batch
        with torch.no_grad():
            if isinstance(inputs, dict):
                out = model(**{name: each.to(dtype) for name, each in inputs.items()})
            else:
                out = model(inputs.to(dtype))
        out = out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)
        out = (out[0] if isinstance(out, tuple) else out).double()
        loss += float(F.cross_entropy(out, labels.long(), reduction="sum"))
        right += int((out.argmax(1) == labels).sum())
        count += len(labels)
    return loss / count, right / count


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, batches = KINDS[kind]
    torch.manual_seed(1)
    model = make()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    result: Any = chop.evaluate(model, batches())
    loss, right = bare(model, batches())
    assert result.loss == pytest.approx(loss, rel=1e-5)
    assert result.accuracy == right
    assert model.training
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", KINDS)
def test_train(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, batches = KINDS[kind]
    torch.manual_seed(1)
    model = make()
    settings = {"max_epochs": 2, "learning_rate": 0.01, "project": tmp_path / "p"}
    if kind == "half":
        with pytest.raises(chop.errors.ConfigError, match="float16 have too few digits to learn"):
            chop.train(model, batches(), batches(), **settings)
        assert not (tmp_path / "p").exists()
        return
    result = chop.train(model, batches(), batches(), **settings)
    loss, right = bare(model.eval(), batches())
    assert result.history[-1]["val_loss_epoch"] == pytest.approx(loss, rel=1e-5)
    assert result.history[-1]["val_acc_epoch"] == pytest.approx(right)
    assert capsys.readouterr().out == ""
    stored = torch.load(result.last, weights_only=True)["state_dict"]
    own = {name.removeprefix("model."): each for name, each in stored.items()}
    assert own.keys() == model.state_dict().keys()
    assert all(torch.equal(each, own[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_search(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, batches = KINDS[kind]
    torch.manual_seed(1)
    model = make()
    full = copy.deepcopy(model).float() if kind in ("half", "bfloat16") else model
    _, right = bare(full, batches())
    setup: Any = {"strategy": "tpe", "n_trials": 1, "plots": False, "project": tmp_path}
    front = chop.search(model, train=batches(), val=batches(), test=batches(), **setup)
    assert front.start is not None
    assert front.start.chosen_by.value == pytest.approx(right)
    assert front[0].test is not None
    assert capsys.readouterr().out == ""


def words(lengths: tuple[int, ...] = (7, 5)) -> Batches:
    """Sentences that are padded to the longest of each batch."""
    draw = torch.Generator().manual_seed(5)
    found = []
    for length in lengths:
        ids = torch.randint(1, 30, (6, length), generator=draw)
        mask = torch.ones_like(ids)
        ids[0, length - 2 :] = mask[0, length - 2 :] = 0
        found.append({"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2})
    return found


SMALL: dict[str, Any] = {"vocab_size": 30, "pad_token_id": 0}


def test_a_classifier_of_transformers_and_its_batches(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            **SMALL,
        )
    )
    result: Any = chop.evaluate(model, words())
    with torch.no_grad():
        wanted = [float(model(**batch).loss) for batch in words()]
    assert result.loss == pytest.approx(sum(wanted) / 2, rel=1e-5)
    done = chop.train(model, words(), words(), max_epochs=1, learning_rate=0.01, project=tmp_path)
    with torch.no_grad():
        wanted = [float(model.eval()(**batch).loss) for batch in words()]
    assert done.history[-1]["val_loss_epoch"] == pytest.approx(sum(wanted) / 2, rel=1e-5)


def test_a_language_model_of_transformers_is_asked_for_the_next_word() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=16, **SMALL)
    model = transformers.GPT2LMHeadModel(config).eval()
    batches = [{**batch, "labels": batch["input_ids"]} for batch in words((7,))]
    result: Any = chop.evaluate(model, batches, task="lm")
    with torch.no_grad():
        wanted = float(model(**batches[0]).loss)
    assert result.loss == pytest.approx(wanted, rel=1e-5)
    assert result.rows == 6 * 6


@pytest.mark.parametrize("kind", ["pairs", "dictionaries", "doubles", "half"])
def test_sensitivity(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, batches = KINDS[kind]
    found = chop.sensitivity(
        make(), train=batches(), val=batches(), widths=(2, 16), project=tmp_path
    )
    assert len(found.layers) == 2
    assert capsys.readouterr().out == ""


X, Y = rows()
WRONG: dict[str, tuple[Batches, str]] = {
    "no batches": ([], "there are no rows|no batch"),
    "no labels": ([{"pixel_values": X}], "a batch has no labels: it has pixel_values"),
    "no labels in the second": ([(X, Y), X], r"must be a pair \(.*labels\).* not Tensor"),
    "a single tensor": ([X], r"must be a pair \(inputs, labels\)"),
    "three parts": ([(X, X, Y)], r"must be a pair \(inputs, labels\)"),
    "labels of text": ([(X, ["a"] * 40)], "must be tensors, not Tensor, list"),
    "too many features": ([(X.repeat(1, 2), Y)], r"cannot take a batch of shape \(40, 6\)"),
    "another number of features": ([(X, Y), (X[:, :2], Y)], "shapes cannot be multiplied"),
    "fewer labels": ([(X, Y[:30])], "a batch has 40 rows, but 30 labels"),
    "a label too large": ([(X, Y + 1)], "tells 2 classes apart; a label is 2"),
    "a label too large later": ([(X, Y), (X, Y + 5)], "a label is [56], but the model tells 2"),
    "a label below zero": ([(X, Y - 1)], "classes are numbered from 0; a label is -1"),
    "labels in rows": ([(X, torch.stack([Y, Y], 1))], "must be class indices, one for each row"),
    "features of whole numbers": ([(X.long(), Y)], "cannot take a batch of shape|same dtype"),
    "shapes that differ": (
        [{"left": X, "right": X[:, :2], "labels": Y}], "must have one shape and kind"
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["evaluate", "train", "search"])
@pytest.mark.parametrize("kind", WRONG)
def test_mistakes_are_one_line(kind: str, verb: str, tmp_path: Path) -> None:
    batches, message = WRONG[kind]
    project = tmp_path / "p"
    calls: dict[str, Callable[[], Any]] = {
        "evaluate": lambda: chop.evaluate(plain(), batches),
        "train": lambda: chop.train(plain(), batches, max_epochs=1, project=project),
        "search": lambda: chop.search(
            plain(), train=batches, val=batches, strategy="tpe", n_trials=1, project=project
        ),
    }
    with pytest.raises(chop.errors.ChopError) as raised:
        calls[verb]()
    assert "\n" not in str(raised.value)
    if verb != "search":
        raised.match(message)
