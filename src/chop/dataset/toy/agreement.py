"""Sentences of a small grammar, to be told right from wrong, or to be continued."""

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chop.dataset.info import register_dataset
from chop.dataset.rows import Splits
from chop.dataset.toy.grammar import LENGTH, VOCABULARY, Sentence, distinct_sentences, pad_sentences
from chop.tasks import IGNORED

SEED = 17
SIZES = (8_000, 1_000, 2_000)
"""Sentences for training, validation and testing; no sentence is in two of them."""
CLASSES = ("wrong", "right")

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]


@register_dataset(
    "agreement",
    sequence_classification=True,
    num_features=LENGTH,
    num_classes=len(CLASSES),
    class_names=CLASSES,
    vocab_size=len(VOCABULARY),
)
def agreement() -> Splits:
    """Sentences of a small grammar, right or wrong; word order decides."""
    train, validation, test = (_both(part, seed) for seed, part in enumerate(_sentences()))
    source = f"agreement: {2 * sum(SIZES):,} sentences of a small grammar, made here"
    return Splits(train, validation, test, source=source, class_names=CLASSES)


@register_dataset(
    "agreement-lm",
    causal_LM=True,
    num_features=LENGTH - 1,
    num_classes=len(VOCABULARY),
    class_names=VOCABULARY,
    vocab_size=len(VOCABULARY),
)
def agreement_lm() -> Splits:
    """The right sentences of the same grammar, for predicting each next word."""
    train, validation, test = (_next_tokens(part) for part in _sentences())
    source = f"agreement-lm: {sum(SIZES):,} sentences of a small grammar, made here"
    return Splits(train, validation, test, source=source, class_names=VOCABULARY)


@cache
def _sentences() -> tuple[list[Sentence], ...]:
    """The sentences of each split, drawn once per process."""
    drawn = distinct_sentences(sum(SIZES), SEED)
    ends = np.cumsum((0, *SIZES))
    return tuple(drawn[start:end] for start, end in pairwise(ends))


def _both(sentences: list[Sentence], seed: int) -> Rows:
    """Each sentence and its twin in a mixed order: a bag of words is as often right as wrong."""
    tokens = pad_sentences([each.words for each in sentences] + [each.twin for each in sentences])
    labels = np.repeat([1, 0], len(sentences))
    order = np.random.RandomState(seed).permutation(len(labels))
    return tokens[order], labels[order]


def _next_tokens(sentences: list[Sentence]) -> Rows:
    """All tokens but the last, and for each the one that follows; padding is not asked for."""
    tokens = pad_sentences([each.words for each in sentences])
    following = tokens[:, 1:]
    return tokens[:, :-1], np.where(following == 0, IGNORED, following)
