"""Fixed point is bit for bit what two reports printed, the sign of zero included."""

import pytest
import torch
from printed_weights import PAIRS

from chop.numerics import Integer


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{len(before)}" for before, _ in PAIRS])
def test_printed_weights(pair: tuple[list[str], list[str]]) -> None:
    before, after = pair
    weights = torch.tensor([float(number) for number in before])
    rounded = Integer(width=8, frac_width=4)(weights)
    assert [f"{number:.4f}" for number in rounded.tolist()] == after


def test_all_pairs_are_there() -> None:
    assert sum(len(before) for before, _ in PAIRS) == 209
