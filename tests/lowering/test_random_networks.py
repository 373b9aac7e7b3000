"""Random networks in random formats: nothing the analysis calls exact may differ in a bit."""

import os

import pytest
import torch
from lowering_nets import forward
from random_networks import random_network

from chop.lowering import Engine, LoweringError, analyse, lower

COUNT = int(os.environ.get("CHOP_RANDOM_NETWORKS", "160"))  # 2000 are checked before a release
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_random_networks(part: int) -> None:
    exact = refused = 0
    seeds = range(part, COUNT, PARTS)
    for seed in seeds:
        graph, x = random_network(seed)
        try:
            program = lower(graph)
        except LoweringError:
            refused += 1
            continue
        integers, fast = (Engine(program, how)(x)[0] for how in ("int64", "fast"))
        assert torch.equal(integers, fast), seed
        if analyse(program).exact("float32"):
            exact += 1
            assert torch.equal(forward(graph, x), integers), seed
            assert torch.equal(forward(graph, x[:2], 1), integers[:2]), seed
    assert refused < len(seeds) / 4
    assert exact > len(seeds) / 2
