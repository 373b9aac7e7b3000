"""The sentences that the package makes: the same everywhere, beyond bags of words, learnable."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from chop.dataset import MaseDataModule
from chop.dataset.toy.grammar import (
    AUXILIARIES,
    DETERMINERS,
    LENGTH,
    NOUNS,
    VOCABULARY,
    distinct_sentences,
)
from chop.dataset.toy.words import WordTokenizer
from chop.errors import DataError
from chop.models import get_model
from chop.tasks import IGNORED
from chop.training.fit import fit_in_memory
from chop.training.job import Job
from chop.training.settings import TrainingSettings

SPLITS = ("train", "validation", "test")
NUMBER = {form: n for forms in (*DETERMINERS, *AUXILIARIES, *NOUNS) for n, form in enumerate(forms)}


def rows_of(name: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = MaseDataModule(name, batch_size=1).split(split).tensors  # type: ignore[attr-defined]
    return tokens, labels


def test_the_same_sentences_on_every_machine() -> None:
    assert MaseDataModule("agreement", 1).fingerprint[:16] == "3fc33e89e12a6da0"
    assert MaseDataModule("agreement-lm", 1).fingerprint[:16] == "889be10ff71691fb"


def agrees(words: list[str]) -> bool:
    """Whether the last auxiliary has the number of the first determiner, by rules of our own."""
    head = next(NUMBER[word] for word in words if any(word in forms for forms in DETERMINERS))
    verbs = [NUMBER[word] for word in words if any(word in forms for forms in AUXILIARIES)]
    return verbs[-1] == head


@pytest.mark.parametrize("split", SPLITS)
def test_labels_say_whether_verb_and_head_agree(split: str) -> None:
    tokens, labels = rows_of("agreement", split)
    tokenizer = WordTokenizer()
    for row, label in zip(tokens[:300], labels[:300], strict=True):
        assert agrees(tokenizer.decode(row).split()) == bool(label)


@pytest.mark.parametrize("split", SPLITS)
def test_no_bag_of_words_tells_right_from_wrong(split: str) -> None:
    """Each bag is as often right as wrong, so that any function of it is right on one half."""
    tokens, labels = rows_of("agreement", split)
    counts: Counter[tuple[int, ...]] = Counter()
    for row, label in zip(tokens.sort(dim=1).values.tolist(), labels.tolist(), strict=True):
        counts[tuple(row)] += 2 * label - 1
    assert set(counts.values()) == {0}


def test_no_sentence_is_in_two_splits() -> None:
    seen = [{tuple(row) for row in rows_of("agreement", split)[0].tolist()} for split in SPLITS]
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    sentences = distinct_sentences(400, 3)
    assert len({each.words for each in sentences}) == 400
    assert max(len(each.words) for each in distinct_sentences(4_000, 3)) == LENGTH


def test_text_to_be_continued_asks_for_no_padding() -> None:
    tokens, labels = rows_of("agreement-lm", "test")
    assert torch.equal(labels[:, :-1][tokens[:, 1:] != 0], tokens[:, 1:][tokens[:, 1:] != 0])
    assert bool((labels[tokens == 0] == IGNORED).all())
    assert int((labels == VOCABULARY.index("[EOS]")).sum()) == len(tokens)


def test_words_and_numbers() -> None:
    tokenizer = WordTokenizer()
    both = tokenizer(["this dog is waiting", "some happy cats are singing today"])
    assert [len(row) for row in both["input_ids"]] == [8, 8]
    assert both["attention_mask"][0] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert tokenizer.decode(both["input_ids"][0]) == "this dog is waiting"
    assert tokenizer("this dog is waiting")["input_ids"] == both["input_ids"][0][:6]
    with pytest.raises(DataError, match=r"'barks' is not a word"):
        tokenizer.encode("this dog barks")


def test_two_layers_learn_the_language_in_an_epoch() -> None:
    """Words alone leave a perplexity of 41, the grammar itself one of 4.76.

    That encoder-tiny tells all test rows right from wrong is in benchmarks/bench_text.py.
    """
    torch.manual_seed(0)
    data = MaseDataModule("agreement-lm", batch_size=64)
    model = get_model("decoder-tiny", "lm", data.dataset_info)
    settings = TrainingSettings(learning_rate=3e-3, max_epochs=1, num_threads=1, accelerator="cpu")
    history = fit_in_memory(Job(model, data, Path()), settings)
    assert 4.7 < history[-1]["val_perplexity_epoch"] < 6.5
