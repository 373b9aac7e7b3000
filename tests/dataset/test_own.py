import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from chop.dataset import DATASETS, MaseDataModule, Preprocessing, Splits, register_dataset
from chop.dataset.tables import class_indices
from chop.errors import DataError

ROWS = 200
RNG = np.random.default_rng(3)
FEATURES = RNG.normal((1, 100), (2, 5), (ROWS, 2)).astype(np.float32)
KINDS = RNG.choice(["cat", "dog", "eel"], ROWS)


def csv(folder: Path, delimiter: str = ",", label: str = "label") -> Path:
    lines = [delimiter.join(["length", label, '"weight"'])]
    lines += [
        delimiter.join([repr(float(a)), f'"{kind}"', repr(float(b))])
        for (a, b), kind in zip(FEATURES, KINDS, strict=True)
    ]
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def npz(folder: Path) -> Path:
    path = folder / "mine.npz"
    np.savez(path, x=FEATURES, y=KINDS)
    return path


def parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet as pq

    path = folder / "mine.parquet"
    table = {"length": FEATURES[:, 0], "label": KINDS, "weight": FEATURES[:, 1]}
    pq.write_table(pyarrow.table(table), path)
    return path


WRITERS = {"csv": csv, "npz": npz, "parquet": parquet}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_of_the_users(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    data = MaseDataModule(kind, batch_size=16, path=path, seed=4)
    info = data.dataset_info
    assert (info.num_features, info.num_classes) == (2, 3)
    assert info.class_names == ("cat", "dog", "eel")
    assert info.physical_data_point_classification
    if kind != "npz":
        assert info.feature_names == ("length", "weight")
    parts = [data.train_dataset, data.val_dataset, data.test_dataset]
    assert [len(part) for part in parts] == [140, 20, 40]
    train = parts[0].tensors[0]
    torch.testing.assert_close(train.mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    assert str(path) in data.source


def test_the_same_rows_whatever_the_format(tmp_path: Path) -> None:
    modules = [
        MaseDataModule(kind, batch_size=16, path=write(tmp_path), seed=4)
        for kind, write in WRITERS.items()
    ]
    assert len({data.fingerprint for data in modules}) == 1
    first, *others = (data.train_dataset.tensors for data in modules)
    for other in others:
        assert torch.equal(first[0], other[0])
        assert torch.equal(first[1], other[1])


def test_splits_are_drawn_by_the_seed(tmp_path: Path) -> None:
    def test_rows(seed: int) -> torch.Tensor:
        data = MaseDataModule("csv", batch_size=16, path=csv(tmp_path), seed=seed)
        rows: torch.Tensor = data.test_dataset.tensors[1]
        return rows

    assert torch.equal(test_rows(1), test_rows(1))
    assert not torch.equal(test_rows(1), test_rows(2))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_label_columns(delimiter: str, tmp_path: Path) -> None:
    path = csv(tmp_path, delimiter, label="species")
    data = MaseDataModule("csv", batch_size=16, path=path, label_column="species")
    assert data.dataset_info.num_features == 2


def test_images_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, data=np.arange(40 * 3 * 4 * 4).reshape(40, 3, 4, 4), target=np.arange(40) % 4)
    info = MaseDataModule("npz", batch_size=4, path=path).dataset_info
    assert info.image_size == (3, 4, 4)
    assert info.image_classification
    assert not info.physical_data_point_classification


def test_classes_are_sorted_by_value_or_name() -> None:
    here = Path("here")
    labels, names = class_indices(np.array(["10", "2", "2", "-1"]), here)
    assert names == ("-1", "2", "10")
    assert labels.tolist() == [2, 1, 1, 0]
    labels, names = class_indices(np.array([5.0, 3.0]), here)
    assert names == ("3", "5")
    assert class_indices(np.array([True, False]), here)[0].tolist() == [1, 0]
    assert class_indices(np.array([" b", "a'"]), here)[1] == ("a", "b")


HEADER = "length,label,weight\n"
GOOD = "1.5,cat,2\n2.5,dog,3\n" * 10
WRONG = {
    "a,label\n" + "1,cat\nred,dog\n" * 9: "column 'a' does not hold numbers \\(row 2 says 'red'\\)",
    HEADER + GOOD + "1.5,cat,\n": "column 'weight' does not hold numbers \\(row 21 says ''\\)",
    HEADER + GOOD + "nan,cat,4\n": "column 'length' has values that are missing or not finite",
    HEADER + GOOD + "1.5,cat\n": "row 21|column",
    HEADER: "has no rows",
    "": "which column is the label",
    "PK\x03\x04,label\n1,2\n": "is not a text file: its first line holds control characters",
    "a,b\n1,2\n": "which column is the label.*the columns are a, b",
    HEADER + GOOD.replace("dog", "cat"): "all rows are of one class",
    HEADER + GOOD.replace("dog", "0.5").replace("cat", "1"): "real numbers, not classes",
    HEADER + GOOD + "1.5,,2\n": "some rows have no class",
    HEADER + GOOD[:40]: "4 rows are too few|too few",
    "label\n" + "cat\ndog\n" * 9: "no rows of features|column",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_text_is_one_line_and_never_cached(text: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=WRONG[text]) as error:
        MaseDataModule("csv", batch_size=4, path=path).setup()
    assert "wrong.csv" in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((cache / "preprocessed").glob("csv/*/"))


def test_wrong_label_column_and_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no label column 'lable': did you mean 'label'"):
        MaseDataModule("csv", 4, path=csv(tmp_path), label_column="lable").setup()
    with pytest.raises(DataError, match="no such file"):
        MaseDataModule("csv", 4, path=tmp_path / "none.csv").setup()
    with pytest.raises(DataError, match="name it with --dataset-path"):
        MaseDataModule("csv", 4).setup()


def test_a_text_column_in_parquet_is_named(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet as pq

    path = tmp_path / "wrong.parquet"
    pq.write_table(pyarrow.table({"label": [1, 2], "colour": ["red", "blue"]}), path)
    with pytest.raises(DataError, match="column 'colour' does not hold numbers"):
        MaseDataModule("parquet", 4, path=path).setup()
    pq.write_table(pyarrow.table({"label": [1, 2], "height": [1.0, None]}), path)
    with pytest.raises(DataError, match="column 'height' has values that are missing"):
        MaseDataModule("parquet", 4, path=path).setup()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FEATURES}, "the arrays are x"),
        ({"y": KINDS, "z": FEATURES}, "needs one array called features or x or data or images"),
        (
            {"x": FEATURES, "y": KINDS, "feature_names": ["a", "b", "c"]},
            "3 feature_names for 2 features",
        ),
        (
            {"x": FEATURES, "y": KINDS, "class_names": ["cat", "dog"]},
            "class 'eel' is not one of the 2",
        ),
        ({"x": FEATURES, "y": KINDS, "class_names": ["cat", "cat"]}, "two different names"),
        ({"x": FEATURES, "y": KINDS, "class_names": np.arange(3)}, "must be a list of texts"),
        (
            {"x": FEATURES, "y": KINDS, "class_names": np.array(["a", None])},
            r"array 'class_names' is pickled; save it as text: np\.array\(names, dtype=str\)",
        ),
        (
            {"x": FEATURES, "y": np.arange(ROWS) % 4, "class_names": ["cat", "dog", "eel"]},
            "class '3' is not one of the 3 class_names, and no place from 0 to 2",
        ),
        ({"x": FEATURES[:9], "y": KINDS}, "must be"),
        ({"x": KINDS[:, None], "y": KINDS}, "does not hold numbers"),
        ({"x": np.array([object()] * ROWS), "y": KINDS}, "damaged or not a NumPy archive"),
    ],
)
def test_wrong_archives(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        MaseDataModule("npz", 4, path=path).setup()


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_files_cut_short(kind: str, tmp_path: Path) -> None:
    path = WRITERS[kind](tmp_path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="is damaged or not a"):
        MaseDataModule(kind, 4, path=path).setup()


@pytest.mark.parametrize(
    "labels", [np.arange(ROWS) % 2, np.array(["dog", "cat"])[np.arange(ROWS) % 2]]
)
def test_names_in_an_archive_are_used(labels: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "named.npz"
    names = ["dog", "cat", "eel"]  # of which no row is one
    np.savez(
        path, features=FEATURES, labels=labels, class_names=names, feature_names=["long", "heavy"]
    )
    data = MaseDataModule("npz", 16, path=path)
    info = data.dataset_info
    assert (info.class_names, info.num_classes) == (("dog", "cat", "eel"), 3)
    assert info.feature_names == ("long", "heavy")
    assert data.preprocessing.names == ("long", "heavy")
    found = {
        (row.numpy().tobytes(), int(label))
        for batch in data.all_dataloader()
        for row, label in zip(*batch, strict=True)
    }
    scaled = (FEATURES - np.float32(data.preprocessing.mean)) / np.float32(data.preprocessing.scale)
    assert found == {(row.tobytes(), n % 2) for n, row in enumerate(scaled)}


def test_images_by_that_name(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, images=np.arange(40 * 12).reshape(40, 3, 2, 2), labels=np.arange(40) % 4)
    data = MaseDataModule("npz", batch_size=4, path=path)
    assert data.dataset_info.image_size == (3, 2, 2)
    assert (data.preprocessing.kind, len(data.preprocessing.mean)) == ("channels", 3)


@pytest.mark.parametrize("kind", WRITERS)
def test_all_rows_of_a_file(kind: str, tmp_path: Path) -> None:
    data = MaseDataModule(kind, batch_size=16, path=WRITERS[kind](tmp_path))
    loader = data.all_dataloader()
    batches = list(loader)
    assert (len(loader), sum(len(labels) for _, labels in batches)) == (len(batches), ROWS)
    assert [len(labels) for _, labels in loader] == [len(labels) for _, labels in batches]


def test_what_was_done_is_kept_with_cached_rows(tmp_path: Path, cache: Path) -> None:
    path = csv(tmp_path)
    first, again = (MaseDataModule("csv", 16, path=path) for _ in range(2))
    assert first.preprocessing == again.preprocessing
    assert again.preprocessing.names == ("length", "weight")
    (about,) = cache.glob("preprocessed/csv/*/about.json")
    content = json.loads(about.read_text())
    del content["preprocessing"], content["checksum"]  # rows that an earlier version has kept
    about.write_text(json.dumps({**content, "checksum": zlib.crc32(json.dumps(content).encode())}))
    assert MaseDataModule("csv", 16, path=path).preprocessing == first.preprocessing


def test_a_statement_that_does_not_fit_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (FEATURES, np.arange(ROWS) % 2)
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS.items()))
    register_dataset("three")(
        lambda: Splits(rows, preprocessing=Preprocessing("features", (0, 0, 0), (1, 1, 1)))
    )
    register_dataset("text")(lambda: Splits(rows, preprocessing="standardised"))
    with pytest.raises(DataError, match=r"is of 3 features, but a row has the shape \(2,\)"):
        MaseDataModule("three", 16).setup()
    with pytest.raises(DataError, match="preprocessing is a str, not Preprocessing"):
        MaseDataModule("text", 16).setup()
    with pytest.raises(DataError, match="a scale or divisor is not above 0"):
        Preprocessing("features", (0,), (0,))


def test_a_text_file_is_continued_byte_by_byte(tmp_path: Path) -> None:
    words = "".join(f"line {number}: café\n" for number in range(4000))
    path = tmp_path / "mine.txt"
    path.write_text(words, encoding="utf-8")
    whole = path.read_bytes()
    data = MaseDataModule("text", batch_size=8, path=path, task="lm")
    rows = 0
    for split in ("train", "validation", "test"):
        tokens, following = data.split(split).tensors  # type: ignore[attr-defined]
        rows += len(tokens)
        for row, after in zip(tokens[::16], following[::16], strict=True):
            start = whole.index(bytes(row.tolist()))
            assert bytes(after.tolist()) == whole[start + 1 : start + 129]
    assert rows == (len(whole) - 1) // 2048 * 16
    path.write_bytes(whole + b"\0")
    with pytest.raises(DataError, match="bytes of zero"):
        MaseDataModule("text", batch_size=8, path=path).setup()
    path.write_bytes(whole[:5000])
    with pytest.raises(DataError, match="5,000 bytes are too few; give 20,481"):
        MaseDataModule("text", batch_size=8, path=path).setup()
