"""Statistics against numpy, fed sample by sample and batch by batch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from chop.errors import ConfigError, GraphError, UnknownNameError
from chop.passes.graph.analysis.statistical_profiler.stat import (
    STAT_NAME_TO_CLS,
    Record,
    Statistic,
    VarianceOnline,
    create_new_stat,
)

SHAPE = (3, 4)  # of one row; a sample of a batch has a leading 1
DIMS: list[Any] = ["all", None, [1], [0, 2], [-1], [0, 1, 2]]


def batches(sizes: tuple[int, ...] = (8, 1, 5)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, *SHAPE, generator=generator) * 3 + 100 for size in sizes]


def stacked(dims: Any, values: list[Tensor], absolute: bool = False) -> tuple[np.ndarray, Any, int]:
    """All samples with their leading 1, the axes to reduce, and how many values that reduces."""
    array = np.concatenate([v.numpy()[:, None] for v in values]).astype(np.float64)
    array = np.abs(array) if absolute else array
    axes = tuple(range(4)) if dims == "all" else (0, *(d % 3 + 1 for d in dims or ()))
    return array, axes, int(np.prod([array.shape[axis] for axis in axes]))


def fed(name: str, values: list[Tensor], one_by_one: bool, **kwargs: Any) -> dict[str, Any]:
    stat = create_new_stat(name, **kwargs)
    for batch in values:
        if one_by_one:
            for row in batch:
                stat.update_a_sample(row.unsqueeze(0))
        else:
            stat.update_a_batch(batch)
    return stat.export()


def quantiles(array: np.ndarray, axes: Any, q: float) -> tuple[np.ndarray, np.ndarray]:
    return np.quantile(array, 1 - q, axis=axes), np.quantile(array, q, axis=axes)


ORACLES: dict[str, tuple[dict[str, Any], Any]] = {
    "variance_online": ({}, lambda a, x: {"mean": a.mean(x), "variance": a.var(x, ddof=1)}),
    "variance_precise": ({}, lambda a, x: {"mean": a.mean(x), "variance": a.var(x, ddof=1)}),
    "range_min_max": ({}, lambda a, x: {"min": a.min(x), "max": a.max(x)}),
    "range_quantile": (
        {"quantile": 0.9},
        lambda a, x: dict(zip(("min", "max"), quantiles(a, x, 0.9), strict=True)),
    ),
    "range_n_sigma": (
        {"num_sigma": 2},
        lambda a, x: {
            "min": a.mean(x) - 2 * a.std(x, ddof=1),
            "max": a.mean(x) + 2 * a.std(x, ddof=1),
        },
    ),
    "abs_mean": ({}, lambda a, x: {"abs_mean": np.abs(a).mean(x)}),
}


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("name", ORACLES)
def test_statistics_are_those_of_numpy(name: str, one_by_one: bool, dims: Any) -> None:
    kwargs, oracle = ORACLES[name]
    values = batches()
    found = fed(name, values, one_by_one, dims=dims, **kwargs)
    array, axes, count = stacked(dims, values)
    expected = oracle(array, axes)
    assert found["count"] == count
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5)
    if "max" in expected:
        np.testing.assert_allclose(found["range"], expected["max"] - expected["min"], rtol=1e-4)


@pytest.mark.parametrize("name", ["range_min_max", "range_quantile", "range_n_sigma"])
def test_absolute_values_can_be_taken_first(name: str) -> None:
    kwargs, oracle = ORACLES[name]
    values = [batch - 100 for batch in batches()]
    found = fed(name, values, False, abs=True, **kwargs)
    array, axes, _ = stacked("all", values, absolute=True)
    for key, value in oracle(array, axes).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5)


@pytest.mark.parametrize("mode", ["online", "precise"])
def test_both_modes_of_n_sigma_agree(mode: str) -> None:
    found = fed("range_n_sigma", batches(), False, var_mode=mode, dims=[1])
    expected = fed("range_n_sigma", batches(), False, dims=[1])
    np.testing.assert_allclose(found["min"], expected["min"], rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_welford_equals_the_unbiased_variance_however_batches_are_cut(
    sizes: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(n, 5, generator=generator, dtype=torch.float64) + 1e4 for n in sizes]
    stat = VarianceOnline()
    for batch in values:
        stat.update_a_batch(batch)
    found = stat.export()
    everything = torch.cat(values)
    assert found["count"] == everything.numel()
    if everything.numel() > 1:
        assert found["variance"] == pytest.approx(everything.var().item(), rel=1e-9)
        assert found["mean"] == pytest.approx(everything.mean().item(), rel=1e-12)


def test_the_median_is_at_both_ends_of_the_middle_quantile() -> None:
    found = fed("range_quantile", [torch.tensor([[1.0], [2], [10]])], False, quantile=0.5)
    assert (found["min"], found["max"], found["range"]) == (2, 2, 0)


def test_quantiles_of_more_values_than_torch_takes() -> None:
    size = 2**24 + 3
    values = torch.arange(size, dtype=torch.float32).flip(0)
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(values, 0.5)
    found = fed("range_quantile", [values], False, quantile=0.75)
    assert found["count"] == size
    assert found["min"] == pytest.approx((size - 1) * 0.25)
    assert found["max"] == pytest.approx((size - 1) * 0.75)


def test_record_keeps_everything() -> None:
    values = batches()
    for one_by_one in (True, False):
        found = fed("record", values, one_by_one)
        assert torch.equal(torch.tensor(found["data"]), torch.cat(values))
        assert found["count"] == 14
        assert found["size_in_bytes"] == 14 * 12 * 4
        found = fed("record", values, one_by_one, add_new_dim_before_concat=True)
        assert torch.tensor(found["data"]).shape == (14, 1, *SHAPE)


def test_a_record_is_not_changed_by_what_happens_to_the_samples() -> None:
    stat, batch = Record(), torch.ones(2, 2)
    stat.update_a_batch(batch)
    batch.zero_()
    stat.update_a_batch(batch)
    assert stat.export()["data"] == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert stat.export()["count"] == 4


@pytest.mark.parametrize("name", STAT_NAME_TO_CLS)
def test_nothing_at_all_is_na(name: str) -> None:
    found = create_new_stat(name).export()
    assert found.pop("count") == 0
    assert found.pop("size_in_bytes", 0) == 0
    assert set(found.values()) == {"NA"}


@pytest.mark.parametrize("name", STAT_NAME_TO_CLS)
def test_a_single_value_is_defined(name: str) -> None:
    found = fed(name, [torch.tensor([[-2.0]])], False)
    expected = {
        "record": {"data": [[-2.0]], "count": 1, "size_in_bytes": 4},
        "abs_mean": {"abs_mean": 2.0, "count": 1},
    }
    for kind in ("variance_online", "variance_precise"):
        expected[kind] = {"mean": -2.0, "variance": "NA", "count": 1}
    for kind in ("range_min_max", "range_quantile"):
        expected[kind] = {"min": -2.0, "max": -2.0, "range": 0.0, "count": 1}
    expected["range_n_sigma"] = {"min": "NA", "max": "NA", "range": "NA", "count": 1}
    assert found == expected[name]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("name", ["variance_online", "variance_precise", "abs_mean"])
def test_any_dtype_is_taken(name: str, dtype: torch.dtype) -> None:
    found = fed(name, [torch.tensor([[0, 1, 1, 0]]).to(dtype)], False)
    assert found.get("mean", found.get("abs_mean")) == 0.5


def test_samples_of_any_shape_reduce_to_one_number() -> None:
    for name in ORACLES:
        found = fed(name, [torch.ones(2, 3), torch.ones(4, 5)], False)
        assert found["count"] == 26
    scalar = create_new_stat("abs_mean")
    scalar.update_a_batch(torch.tensor(-3.0))
    assert scalar.export() == {"abs_mean": 3.0, "count": 1}


@pytest.mark.parametrize("name", ORACLES)
def test_samples_may_differ_only_where_they_are_reduced(name: str) -> None:
    rows = [torch.randn(2, 3, 4), torch.randn(2, 5, 4)]
    assert fed(name, rows, False, dims=[1])["count"] == 16
    for dims in (None, [2]):
        with pytest.raises(GraphError, match="samples of different shape need dims='all'"):
            fed(name, rows, False, dims=dims)


@pytest.mark.parametrize("name", STAT_NAME_TO_CLS)
def test_an_empty_batch_adds_nothing(name: str) -> None:
    values = batches()
    assert fed(name, [torch.ones(0, *SHAPE), *values], False) == fed(name, values, False)


@pytest.mark.parametrize("name", ["range_min_max", "range_quantile"])
def test_ranges_of_integers_and_truth_values(name: str) -> None:
    found = fed(
        name,
        [torch.tensor([True, False])],
        False,
        abs=True,
        **{"quantile": 1.0} if "q" in name else {},
    )
    assert (found["min"], found["max"], found["range"]) == (0, 1, 1)
    found = fed(
        name, [torch.tensor([2**30 + 1, 0])], False, **{"quantile": 1.0} if "q" in name else {}
    )
    assert found["max"] == 2**30 + 1


def test_gradients_are_not_kept() -> None:
    stat = create_new_stat("record")
    stat.update_a_batch(torch.ones(2, 2, requires_grad=True))
    assert isinstance(stat, Statistic)
    assert not stat.compute()["data"].requires_grad


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("varianse_online", {}, UnknownNameError, "did you mean 'variance_online'"),
        ("range_quantile", {"quantile": 1.5}, ConfigError, "statistic 'range_quantile': quantile"),
        ("range_quantile", {"quantil": 0.5}, ConfigError, "unknown key 'quantil': did you mean"),
        ("range_n_sigma", {"var_mode": "fast"}, ConfigError, "var_mode"),
        ("abs_mean", {"dims": "some"}, ConfigError, "dims"),
    ],
)
def test_wrong_arguments_are_named(
    name: str, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_new_stat(name, **kwargs)


def test_a_dimension_that_is_not_there_is_named() -> None:
    with pytest.raises(GraphError, match=r"samples of shape \[1, 2\] have no dimension 2"):
        fed("abs_mean", [torch.ones(1, 2)], False, dims=[2])
