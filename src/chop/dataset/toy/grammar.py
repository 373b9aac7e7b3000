"""A small language in which words far apart must agree, drawn sentence by sentence.

    these old dogs near a cat are sleeping        this dog that all children are following sings

The verb has the number of the first noun phrase, the head. Between the two stand other noun
phrases, the first of which always has the other number. So each sentence has a twin in which head
and that phrase have changed places: the same words, but wrong.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAD, BEGIN, END = "[PAD]", "[BOS]", "[EOS]"
DETERMINERS = (("this", "these"), ("a", "some"), ("every", "all"))
ADJECTIVES = ("old", "small", "happy", "quiet")
PREPOSITIONS = ("near", "behind", "with")
ADVERBS = ("today", "here", "again")
THAT = "that"
NOUNS = (
    ("dog", "dogs"), ("cat", "cats"), ("bird", "birds"), ("child", "children"),
    ("farmer", "farmers"), ("friend", "friends"), ("teacher", "teachers"), ("horse", "horses"),
)  # fmt: skip
AUXILIARIES = (("is", "are"), ("was", "were"))
INTRANSITIVE = ("sleeping", "running", "singing", "waiting", "laughing", "swimming")
TRANSITIVE = ("seeing", "calling", "hearing", "following")

VOCABULARY: tuple[str, ...] = (
    PAD, BEGIN, END, *ADJECTIVES, *PREPOSITIONS, *ADVERBS, THAT, *INTRANSITIVE, *TRANSITIVE,
    *(form for forms in (*DETERMINERS, *AUXILIARIES, *NOUNS) for form in forms),
)  # fmt: skip
"""The words by number; number 0 is padding."""
LENGTH = 16
"""Tokens of the longest sentence: both ends, three noun phrases, two prepositions, verb, adverb."""


@dataclass(frozen=True)
class Sentence:
    """A sentence, and what it took to choose it.

    Args:
        head: where the noun phrase stands that the verb agrees with.
        other: where the next one stands, which has the other number.
        nats: minus the logarithm of the probability that exactly this sentence is drawn.
    """

    words: tuple[str, ...]
    head: slice
    other: slice
    nats: float

    @property
    def twin(self) -> tuple[str, ...]:
        """The same words with those two phrases exchanged, which makes the verb wrong."""
        words, head, other = self.words, self.head, self.other
        between, rest = words[head.stop : other.start], words[other.stop :]
        return (*words[: head.start], *words[other], *between, *words[head], *rest)


class Speaker:
    """Draws sentences; the same seed says the same on every machine."""

    def __init__(self, seed: int) -> None:
        # numpy keeps the numbers of this generator the same in all its versions.
        self._numbers = np.random.RandomState(seed)
        self._words: list[str] = []
        self._nats = 0.0

    def sentence(self) -> Sentence:
        """The next sentence."""
        self._words, self._nats = [BEGIN], 0.0
        number = self._below(2)
        head = self._noun_phrase(number)
        if self._below(2):
            self._words.append(THAT)
            other = self._noun_phrase(1 - number)
            self._verb(1 - number, TRANSITIVE)
        else:
            other = self._prepositional_phrase(1 - number)
            if self._below(2):
                self._prepositional_phrase(self._below(2))
        self._verb(number, INTRANSITIVE)
        self._perhaps(ADVERBS)
        self._words.append(END)
        return Sentence(tuple(self._words), head, other, self._nats)

    def _prepositional_phrase(self, number: int) -> slice:
        self._word(PREPOSITIONS)
        return self._noun_phrase(number)

    def _noun_phrase(self, number: int) -> slice:
        """Determiner, perhaps an adjective, noun; where they stand."""
        start = len(self._words)
        self._word([forms[number] for forms in DETERMINERS])
        self._perhaps(ADJECTIVES)
        self._word([forms[number] for forms in NOUNS])
        return slice(start, len(self._words))

    def _verb(self, number: int, verbs: tuple[str, ...]) -> None:
        self._word([forms[number] for forms in AUXILIARIES])
        self._word(verbs)

    def _perhaps(self, words: tuple[str, ...]) -> None:
        if self._below(2):
            self._word(words)

    def _word(self, words: tuple[str, ...] | list[str]) -> None:
        self._words.append(words[self._below(len(words))])

    def _below(self, count: int) -> int:
        self._nats += math.log(count)
        return int(self._numbers.random_sample() * count)


def distinct_sentences(count: int, seed: int) -> list[Sentence]:
    """The first `count` different sentences."""
    speaker = Speaker(seed)
    found: dict[tuple[str, ...], Sentence] = {}
    while len(found) < count:
        sentence = speaker.sentence()
        found[sentence.words] = sentence
    return list(found.values())


NUMBER_OF = {word: number for number, word in enumerate(VOCABULARY)}


def encode(words: tuple[str, ...] | list[str]) -> list[int]:
    """The numbers of words, without padding."""
    return [NUMBER_OF[word] for word in words]


def pad_sentences(sentences: list[tuple[str, ...]], length: int = LENGTH) -> NDArray[np.int64]:
    """One row of numbers for each sentence, filled up with padding."""
    rows = np.zeros((len(sentences), length), np.int64)
    for row, words in zip(rows, sentences, strict=True):
        row[: len(words)] = encode(words)
    return rows
