import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from jet_files import JetFiles

import chop.dataset.physical.jsc as subject
from chop.dataset import MaseDataModule
from chop.dataset.physical.jets import CLASSES, FEATURES, check_cernbox, read_jets
from chop.errors import DataError

SHIPPED = Path(subject.__file__).parent / "data" / "jsc-sim.npz"
SHA256 = "f7c3fcd261390b3c22e5cef7f5ce5b0306f16ac1f3a0f2c8109fa80c1ee3628f"
FORMS: dict[str, Callable[[JetFiles], Path]] = {
    "table": JetFiles.hdf5,
    "group": JetFiles.hdf5_group,
    "arff": JetFiles.arff,
    "parquet": JetFiles.parquet,
}


def module(path: Path | None, **options: object) -> MaseDataModule:
    return MaseDataModule("jsc", batch_size=64, path=path, **options)


def split_rows(data: MaseDataModule) -> list[set[bytes]]:
    datasets = (data.train_dataset, data.val_dataset, data.test_dataset)
    return [{row.numpy().tobytes() for row in part.tensors[0]} for part in datasets]


@pytest.mark.parametrize("form", FORMS)
def test_columns_and_classes_in_our_order(jets: JetFiles, form: str) -> None:
    found = read_jets(FORMS[form](jets))
    np.testing.assert_array_equal(found.features, jets.features)
    np.testing.assert_array_equal(found.labels, jets.labels)
    origin = "OpenML 42468" if form in ("arff", "parquet") else "CERNBox"
    assert f"1,000 jets in the form of the {origin} row set" in found.row_set


def test_no_row_is_in_two_splits(jets: JetFiles) -> None:
    parts = split_rows(module(jets.hdf5()))
    assert [len(part) for part in parts] == [720, 80, 200]
    for one, other in itertools.combinations(parts, 2):
        assert not one & other


def test_rows_are_standardised_on_the_training_part(jets: JetFiles) -> None:
    train = module(jets.hdf5()).train_dataset.tensors[0]
    torch.testing.assert_close(train.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(16), atol=1e-5, rtol=0)


def test_the_test_rows_are_those_of_the_original(jets: JetFiles) -> None:
    labels = module(jets.hdf5()).test_dataset.tensors[1]
    expected = jets.labels[np.random.RandomState(42).permutation(1_000)[:200]]
    np.testing.assert_array_equal(labels.numpy(), expected)


def test_duplicates_are_dropped(jets: JetFiles) -> None:
    table = jets.table()
    table[500:700] = table[:200]
    data = module(jets.hdf5(table=table))
    assert sum(len(part) for part in split_rows(data)) == 800
    assert "200 duplicates dropped" in data.source


def test_the_two_row_sets_are_told_apart(jets: JetFiles, cache: Path) -> None:
    other = JetFiles(jets.folder, rows=1_000)
    other.features += 1
    cernbox, openml = module(jets.hdf5()), module(other.arff())
    assert "CERNBox" in cernbox.source
    assert "OpenML" in openml.source
    assert cernbox.fingerprint != openml.fingerprint
    assert len(list((cache / "preprocessed" / "jsc").glob("*/about.json"))) == 2


def test_the_same_rows_have_the_same_fingerprint_in_any_format(jets: JetFiles) -> None:
    found = {module(write(jets)).fingerprint for write in FORMS.values()}
    assert len(found) == 1


def test_the_second_start_reads_nothing_again(
    jets: JetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chop.dataset.cache.SETTLED_NS", 0)  # as if the file were not brand-new
    path = jets.hdf5()
    first = module(path)
    rows, source = split_rows(first), first.source
    monkeypatch.setattr(subject, "read_jets", lambda path: pytest.fail("read again"))
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: pytest.fail("summed again"))
    again = module(path)
    assert split_rows(again) == rows
    assert again.source == source


def test_without_the_cache_it_is_read_again(
    jets: JetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = jets.hdf5(), []
    module(path).setup()
    monkeypatch.setattr(subject, "read_jets", lambda file: calls.append(file) or read_jets(file))
    module(path, load_from_cache_file=False).setup()
    assert calls == [path]


@pytest.mark.parametrize("harm", ["truncate", "remove", "about", "labels"])
def test_a_damaged_cache_is_built_again(jets: JetFiles, cache: Path, harm: str) -> None:
    path = jets.hdf5()
    rows = split_rows(module(path))
    (folder,) = (cache / "preprocessed" / "jsc").glob("*/")
    if harm == "truncate":
        content = (folder / "train_x.npy").read_bytes()
        (folder / "train_x.npy").write_bytes(content[:1_000])
    elif harm == "remove":
        (folder / "test_y.npy").unlink()
    elif harm == "about":
        (folder / "about.json").write_text("{", encoding="utf-8")
    else:
        (folder / "train_y.npy").write_bytes(b"nothing")
    assert split_rows(module(path)) == rows


def test_what_a_model_does_to_rows_never_reaches_the_cache(jets: JetFiles) -> None:
    path = jets.hdf5()
    data = module(path)
    rows = split_rows(data)
    data.train_dataset.tensors[0].zero_()
    assert split_rows(module(path)) == rows


def test_a_changed_file_is_read_again(jets: JetFiles) -> None:
    before = module(jets.hdf5()).fingerprint
    jets.features += 1
    assert module(jets.hdf5()).fingerprint != before


def test_the_environment_names_a_file(jets: JetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOP_JSC", str(jets.hdf5()))
    assert "jets.z" in module(None).source


def spoil(jets: JetFiles, how: str) -> Path:
    path = jets.hdf5("spoilt.h5")
    content = path.read_bytes()
    if how == "cut short":
        path.write_bytes(content[: len(content) // 2])
    elif how == "html":
        path.write_text("<html>Please log in</html>", encoding="utf-8")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no group":
        with h5py.File(path, "w") as file:
            file["jets"] = jets.table()
    elif how == "no column":
        kept = [name for name in jets.table().dtype.names or () if name != "j_mass_mmdt"]
        jets.hdf5("spoilt.h5", jets.table()[kept].copy())
    elif how == "not finite":
        table = jets.table()
        table["j_zlogz"][3] = np.inf
        jets.hdf5("spoilt.h5", table)
    elif how == "two classes":
        table = jets.table()
        table["j_g"] = table["j_q"] = 1
        jets.hdf5("spoilt.h5", table)
    else:
        jets.hdf5("spoilt.h5", jets.table()[:4])
    return path


WRONG = {
    "cut short": "damaged or cut short",
    "html": "neither HDF5 nor ARFF nor Parquet",
    "empty": "neither HDF5 nor ARFF nor Parquet",
    "no group": "has no group 't_allpar_new'",
    "no column": "lacks the columns j_mass_mmdt",
    "not finite": "column 'j_zlogz' has values that are not finite",
    "two classes": "exactly one of j_g",
    "few": "has 4 jets, too few",
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_file_is_one_line_and_never_cached(jets: JetFiles, cache: Path, how: str) -> None:
    with pytest.raises(DataError, match=WRONG[how]) as error:
        module(spoil(jets, how)).setup()
    assert "spoilt.h5" in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((cache / "preprocessed").glob("jsc/*/"))


def test_wrong_tables(jets: JetFiles) -> None:
    path = jets.arff()
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("'q'", "'higgs'"), encoding="utf-8")
    with pytest.raises(DataError, match="unknown classes higgs"):
        module(path).setup()
    path.write_text(text.replace("mass_mmdt", "mess"), encoding="utf-8")
    with pytest.raises(DataError, match="lacks the columns j_mass_mmdt"):
        module(path).setup()
    path.write_text(text.partition("@DATA")[0], encoding="utf-8")
    with pytest.raises(DataError, match="no @data line"):
        module(path).setup()
    parquet = jets.parquet()
    parquet.write_bytes(parquet.read_bytes()[:500])
    with pytest.raises(DataError, match="damaged or not a Parquet file"):
        module(parquet).setup()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        module(tmp_path / "none.h5").setup()


def test_the_structure_check_of_a_download(jets: JetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="has 1,000 jets, not 986,806"):
        check_cernbox(jets.hdf5())
    monkeypatch.setattr("chop.dataset.physical.jets.CERNBOX_ROWS", 1_000)
    check_cernbox(jets.hdf5())
    with pytest.raises(DataError, match="not HDF5"):
        check_cernbox(jets.arff())


def test_jsc_sim_is_the_shipped_file() -> None:
    assert hashlib.sha256(SHIPPED.read_bytes()).hexdigest() == SHA256
    with np.load(SHIPPED, allow_pickle=False) as stored:
        assert tuple(stored["feature_names"]) == FEATURES
        assert tuple(stored["class_names"]) == CLASSES
        features, labels = stored["features"], stored["labels"]
    data = MaseDataModule("jsc-sim", batch_size=64)
    parts = [data.train_dataset, data.val_dataset, data.test_dataset]
    assert [len(part) for part in parts] == [60_000, 20_000, 20_000]
    found = torch.cat([part.tensors[1] for part in parts])
    np.testing.assert_array_equal(found.numpy(), labels)
    train, _, test = (part.tensors[0].numpy() for part in parts)
    raw = features[:60_000].astype(np.float64)
    expected = (features[80_000:] - raw.mean(0)) / raw.std(0)
    np.testing.assert_allclose(test, expected, atol=1e-3)
    np.testing.assert_allclose(train.std(0), 1, atol=1e-3)


def test_jsc_sim_says_that_it_is_not_jsc() -> None:
    data = MaseDataModule("jsc-sim", batch_size=64)
    assert "not the JSC data set" in data.source
    assert data.dataset_info.feature_names == FEATURES
    readme = SHIPPED.with_name("README.md").read_text(encoding="utf-8")
    assert SHA256 in readme
