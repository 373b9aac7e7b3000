"""The rows that learned widths are trained on: pictures change as asked, teachers see them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learned_cases import rows
from torch import nn

from chop.dataset.augmentation import Augmentation
from chop.search.learned.rows import Rows


def small_pictures(changes: str | None) -> Any:
    loader = rows(128, 1, 6, 6)["train"]
    loader.augmentation = None if changes is None else Augmentation.parse(changes)
    return SimpleNamespace(
        device=torch.device("cpu"), seed=0, targets=None, task="cls",
        data_module=SimpleNamespace(train_dataloader=lambda: loader),
    )  # fmt: skip


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))


def test_pictures_are_changed_as_the_loader_says() -> None:
    model = convolution()
    plain, changed = (
        [x for x, _ in Rows(small_pictures(how)).batches(3, model)] for how in (None, "crop:2")
    )
    assert len(plain) == len(changed) == 2
    assert not torch.equal(plain[0], changed[0])
    again = [x for x, _ in Rows(small_pictures("crop:2")).batches(3, model)]
    assert all(map(torch.equal, changed, again))  # a resumed run sees the same
    assert plain[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("changes", [None, "flip,crop:2"])
def test_a_teacher_predicts_from_the_pictures_that_are_learned(changes: str | None) -> None:
    teacher = convolution().eval()
    for x, targets in Rows(small_pictures(changes), teacher, share=1.0).batches(0, convolution()):
        with torch.no_grad():
            assert torch.allclose(targets, teacher(x).softmax(1), atol=1e-6)
