"""Text as rows of tokens: of a data set of ours, of a file, or of the package `datasets`."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from chop.dataset.data_module import MaseDataModule
from chop.dataset.info import DATASETS
from chop.dataset.rows import SPLITS
from chop.dataset.toy.words import WordTokenizer
from chop.errors import ConfigError, DataError
from chop.models.hf import tokenizer_of

TEXT, LABEL = "text", "label"
"""The columns of a file of text."""
LONGEST = 512


class TokenizedRows(Dataset[dict[str, Tensor]]):
    """Rows of tokens, each a dictionary as models of transformers take it.

    Args:
        tokens: numbers of words, one row for each text.
        labels: a class for each row, or for each token.
        pad: the token that short rows are filled up with.
    """

    def __init__(self, tokens: Tensor, labels: Tensor, pad: int = 0) -> None:
        self.tokens = tokens
        self.labels = labels
        self.pad = pad

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: Any) -> dict[str, Tensor]:
        tokens = self.tokens[row]
        mask = (tokens != self.pad).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": self.labels[row]}


Tokenized = dict[str, TokenizedRows]


def get_tokenized_dataset(
    dataset: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None = None,
    return_tokenizer: bool = False,
    *,
    max_token_len: int = LONGEST,
) -> Any:
    """The rows of each split as tokens; with `return_tokenizer`, the pair of these and a tokeniser.

    Args:
        dataset: a data set of tokens by its name here, which has its own tokeniser; a CSV file
            with the columns ``text`` and ``label``, or a folder with ``train.csv``, ``test.csv``;
            else a name for the package `datasets`, if that is installed.
        checkpoint: a folder with a tokeniser, or a name of the Hugging Face hub.
        max_token_len: longer texts are cut.
    """
    if str(dataset).lower() in DATASETS:
        return _ours(str(dataset), return_tokenizer)
    if checkpoint is None:
        raise ConfigError(f"dataset {str(dataset)!r} is text: checkpoint= names its tokeniser")
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer.pad_token_id is None:
        raise ConfigError(f"{checkpoint}: its tokeniser has no pad_token, which rows need")
    path = Path(dataset).expanduser()
    texts = _files(path) if path.exists() else _from_hub(str(dataset))
    rows = {
        split: _tokenize(split, *columns, tokenizer, max_token_len)
        for split, columns in texts.items()
    }
    return (rows, tokenizer) if return_tokenizer else rows


def _ours(name: str, return_tokenizer: bool) -> Any:
    data = MaseDataModule(name, batch_size=1)
    info = data.dataset_info
    if not info.tokens:
        raise ConfigError(f"data set {name!r} is not text; it has no tokens")
    parts = {split: data.split(split) for split in info.available_splits}
    rows = {
        split: TokenizedRows(part.tensors[0], part.tensors[1], info.pad_token_id)
        for split, part in parts.items()
        if isinstance(part, TensorDataset)
    }
    if not return_tokenizer:
        return rows
    if name.lower() not in ("agreement", "agreement-lm"):
        raise ConfigError(f"data set {name!r} has no tokeniser here")
    return rows, WordTokenizer()


Texts = dict[str, tuple[list[str], list[Any]]]


def _files(path: Path) -> Texts:
    """The texts and labels of a file, or of the files of a folder."""
    names = [path] if path.is_file() else [path / f"{split}.csv" for split in SPLITS]
    found = {"train" if path.is_file() else name.stem: _read(name)
             for name in names if name.is_file()}  # fmt: skip
    if not found:
        raise DataError(f"{path}: holds none of {', '.join(f'{split}.csv' for split in SPLITS)}")
    return found


def _read(path: Path) -> tuple[list[str], list[Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if not rows or not {TEXT, LABEL} <= rows[0].keys():
        raise DataError(f"{path}: wants rows with the columns {TEXT} and {LABEL}")
    return [str(row[TEXT]) for row in rows], [row[LABEL] for row in rows]


def _from_hub(name: str) -> Texts:
    """The same from the package `datasets`, which fetches by name."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            f"there is no data set or file {name!r} here, and the package datasets, which could "
            "fetch it, is not installed"
        ) from None
    try:
        found: Mapping[str, Any] = load_dataset(name)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"dataset {name!r} cannot be fetched: {reason}") from error
    return {split: (list(part[TEXT]), list(part[LABEL])) for split, part in found.items()}


def _tokenize(
    split: str, texts: list[str], labels: list[Any], tokenizer: Any, longest: int
) -> TokenizedRows:
    try:
        classes = torch.tensor([int(label) for label in labels])
    except (TypeError, ValueError):
        raise DataError(f"{split}: {LABEL} must be a whole number for each row") from None
    encoded = tokenizer(texts, truncation=True, max_length=longest, padding=True)
    return TokenizedRows(torch.tensor(encoded["input_ids"]), classes, tokenizer.pad_token_id)
