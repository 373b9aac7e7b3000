"""The tokeniser of the sentences that the package makes."""

from collections.abc import Iterable
from typing import Any

from chop.dataset.toy.grammar import BEGIN, END, LENGTH, NUMBER_OF, PAD, VOCABULARY, encode
from chop.errors import DataError


class WordTokenizer:
    """Sentences as numbers of words and back, with the names that transformers has for this."""

    pad_token, bos_token, eos_token = PAD, BEGIN, END
    pad_token_id, bos_token_id, eos_token_id = (NUMBER_OF[word] for word in (PAD, BEGIN, END))
    vocab_size = len(VOCABULARY)
    model_max_length = LENGTH

    def encode(self, text: str) -> list[int]:
        """The numbers of the words of a sentence, between those of its beginning and its end."""
        words = text.split()
        for word in words:
            if word not in NUMBER_OF:
                raise DataError(f"{word!r} is not a word of this language")
        return encode([BEGIN, *words, END])

    def decode(self, ids: Iterable[Any], skip_special_tokens: bool = True) -> str:
        """The sentence that numbers stand for."""
        special = (PAD, BEGIN, END) if skip_special_tokens else ()
        words = (VOCABULARY[int(each)] for each in ids)
        return " ".join(word for word in words if word not in special)

    def __call__(self, text: str | list[str], padding: bool = True) -> dict[str, list[Any]]:
        """Numbers and masks of one sentence, or of several, filled up to the longest."""
        rows = [self.encode(each) for each in ([text] if isinstance(text, str) else text)]
        longest = max(map(len, rows)) if padding else 0
        ids = [row + [self.pad_token_id] * (longest - len(row)) for row in rows]
        masks = [[int(i < len(row)) for i in range(len(each))]
                 for row, each in zip(rows, ids, strict=True)]  # fmt: skip
        found: dict[str, list[Any]] = {"input_ids": ids, "attention_mask": masks}
        return {key: value[0] for key, value in found.items()} if isinstance(text, str) else found
