import pytest
import torch
from torch import Tensor

from chop.dataset.data_module import CHUNK_BYTES, CHUNK_ROWS, TensorLoader, permutation


def loader(rows: int = 1_000, batch_size: int = 64, **options: int) -> TensorLoader:
    features = torch.arange(rows, dtype=torch.float32).repeat_interleave(2).view(rows, 2)
    return TensorLoader(features, torch.arange(rows), batch_size, **options)


def served(batches: TensorLoader) -> Tensor:
    return torch.cat([y for _, y in batches])


@pytest.mark.parametrize("rows", [1, 63, 64, 65, CHUNK_ROWS + 1, 3 * CHUNK_ROWS])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_row_once_and_features_with_their_labels(
    rows: int, shuffle: bool, drop_last: bool
) -> None:
    batches = loader(rows, shuffle=shuffle, drop_last=drop_last)
    all_of_them = list(batches)
    assert len(all_of_them) == len(batches)
    if drop_last:
        assert all(len(y) == 64 for _, y in all_of_them)
    for x, y in all_of_them:
        assert torch.equal(x[:, 0].long(), y)
    if all_of_them and not drop_last:
        found = torch.cat([y for _, y in all_of_them])
        assert torch.equal(found.sort().values, torch.arange(rows))
    assert len(batches.dataset) == rows


def test_as_they_lie_without_shuffling() -> None:
    batches = loader()
    assert batches.order() is None
    assert torch.equal(served(batches), torch.arange(1_000))


def test_each_iteration_is_the_next_epoch_and_set_epoch_is_exact() -> None:
    batches = loader(shuffle=True, seed=4)
    epochs = [served(batches) for _ in range(3)]
    assert batches.epoch == 2
    for epoch, rows in enumerate(epochs):
        assert torch.equal(rows, permutation(1_000, 4, epoch))
        resumed = loader(shuffle=True, seed=4)
        resumed.set_epoch(epoch)
        order = resumed.order()
        assert order is not None
        assert torch.equal(order, rows)
        assert torch.equal(served(resumed), rows)
        assert torch.equal(resumed.order(), rows)
    assert not torch.equal(epochs[0], epochs[1])


def test_a_broken_off_iteration_counts_as_an_epoch() -> None:
    batches = loader(shuffle=True)
    next(iter(batches))
    assert torch.equal(served(batches), permutation(1_000, 0, 1))


def test_the_global_generator_is_neither_used_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = served(loader(shuffle=True, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(served(loader(shuffle=True, seed=1)), first)
    assert not torch.equal(served(loader(shuffle=True, seed=2)), first)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_model_that_works_in_place_cannot_spoil_the_data(shuffle: bool) -> None:
    batches = loader(shuffle=shuffle)
    before = batches.features.clone()
    for x, y in batches:
        x.mul_(0)
        y.zero_()
    assert torch.equal(batches.features, before)
    assert torch.equal(batches.labels, torch.arange(1_000))


def test_of_pictures_only_some_are_gathered_at_a_time() -> None:
    pictures = torch.zeros(2_000, 3, 64, 64)  # 48 KiB each
    batches = TensorLoader(pictures, torch.zeros(2_000, dtype=torch.long), 32, shuffle=True)
    first, _ = next(iter(batches))
    assert 32 * 49_152 <= first.untyped_storage().nbytes() <= CHUNK_BYTES
    assert len(list(batches)) == len(batches) == 63
