import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chop.dataset.rows as chunked
import chop.dataset.rows as subject
from chop.dataset.preprocess import standardise
from chop.dataset.rows import (
    carve_validation,
    distinct_rows,
    original_split,
    seeded_split,
)


def slow_distinct(features: np.ndarray, labels: np.ndarray) -> list[int]:
    seen: set[tuple[float, ...]] = set()
    kept = []
    for index, row in enumerate(np.column_stack([features, labels]).tolist()):
        if tuple(row) not in seen:
            seen.add(tuple(row))
            kept.append(index)
    return kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_distinct_rows_are_the_first_of_each(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.integers(-1, 2, (rows, 2)).astype(np.float32)
    features[rng.random((rows, 2)) < 0.2] = -0.0
    labels = rng.integers(0, 2, rows)
    assert distinct_rows(features.copy(), labels).tolist() == slow_distinct(features, labels)


def test_distinct_rows_are_exact_when_every_hash_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "_hashes", lambda words, labels: np.zeros(len(labels), np.uint64))
    features = np.array([[1, 2], [3, 4], [1, 2], [3, 5]], np.float32)
    assert distinct_rows(features, np.array([0, 0, 0, 0])).tolist() == [0, 1, 3]
    assert distinct_rows(features, np.array([0, 0, 1, 0])).tolist() == [0, 1, 2, 3]


def test_the_split_of_the_original() -> None:
    """`train_test_split(range(10), test_size=0.2, random_state=42)` of scikit-learn."""
    training, testing = original_split(10)
    assert testing.tolist() == [8, 1]
    assert training.tolist() == [5, 0, 7, 2, 9, 4, 3, 6]
    assert [len(part) for part in original_split(986_806)] == [789_444, 197_362]


@pytest.mark.parametrize("rows", [10, 11, 999])
def test_splits_cover_all_rows_once(rows: int) -> None:
    training, testing = original_split(rows)
    parts = [*carve_validation(training), testing]
    assert sorted(np.concatenate(parts)) == list(range(rows))
    parts = list(seeded_split(rows, 3))
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert all(len(part) for part in parts)


def test_splits_depend_on_the_seed_alone() -> None:
    first, again, other = (seeded_split(100, seed)[0].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_standardised_on_the_training_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_ROWS", 37)
    rng = np.random.default_rng(0)
    train = rng.normal((5, -3, 100), (2, 0.1, 30), (500, 3)).astype(np.float32)
    other = train[:50] + np.float32(1)
    raw = train.astype(np.float64)
    expected = (raw - raw.mean(0)) / raw.std(0)
    expected_other = (other - raw.mean(0)) / raw.std(0)
    standardise(train, other)
    np.testing.assert_allclose(train, expected, atol=1e-4)
    np.testing.assert_allclose(other, expected_other, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8, -7.3])
def test_a_column_that_does_not_vary(value: float) -> None:
    train = np.full((50, 1), value, np.float32)
    other = np.full((5, 1), value + 1, np.float32)
    standardise(train, other)
    assert np.abs(train).max() <= 1e-6 * max(1, abs(value))
    np.testing.assert_allclose(other, np.float32(value + 1) - np.float32(value), atol=1e-5)


def test_images_are_standardised_by_channel() -> None:
    images = np.random.default_rng(0).random((40, 3, 4, 5), np.float32) * np.float32(9) + 2
    images[:, 1] *= 50
    standardise(images, channels=True)
    np.testing.assert_allclose(images.mean((0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(images.std((0, 2, 3)), 1, atol=1e-4)
