"""A few of the networks that `make harden PARTS=integers` compares with their integers."""

from typing import Any

import pytest
import torch

from chop.lowering import Engine
from harden import integer_examples, integers


def test_networks_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "EXPORTED_EVERY", 8)
    monkeypatch.setattr(integer_examples, "JETS", ("jsc-rs1923",))
    networks, examples, exports = integers.run(0.008)
    assert (networks.tried, networks.failures) == (16, ())
    assert (examples.tried, examples.failures) == (160 * 17, ())  # 8 modes; one in batches of 1
    assert exports.tried > 4
    assert exports.failures == ()


def test_a_wrong_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Engine.run

    def wrong(self: Engine, codes: Any) -> Any:
        return tuple(each + 1 for each in right(self, codes))

    monkeypatch.setattr(Engine, "run", wrong)
    monkeypatch.setattr(integers, "EXPORTED_EVERY", 10**6)
    monkeypatch.setattr(integer_examples, "JETS", ("jsc-tiny",))
    networks, examples, _ = integers.run(0.001)
    assert examples.lost == 17
    assert networks.tried == networks.lost == 2
    assert "simulation in batches of 1" in networks.failures[0]
    assert torch.get_num_threads() == 1
