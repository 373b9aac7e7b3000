"""Damaged files cost their section and are named; bugs of our own are not taken for damage."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_pages import a_result, logged, page_of, put

from chop.cli import main
from chop.verbs.report import report

ODD: tuple[Any, ...] = (
    None, True, -1, 10**400, 1e308, float("nan"), "x", "", [], [[]], {}, {"x": 1}, [10**400], "NA",
)  # fmt: skip
ROUNDS = 12
FILES = {
    "training_ckpts/training_log.csv": "training",
    "checkpoints/test_results.json": "test",
    "run_train.json": "run",
    "search_ckpts/run_search.json": "run",
    "transform/transformed_ckpt/graph.json": "graph",
    "search_ckpts/log.json": "search-0",
    "search_ckpts/best.json": "search-0",
    "search_ckpts/best_0.toml": "search-0",
    "search_ckpts/search.json": "search-0",
}


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree with each key of it."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(pairs):
        yield content, key
        if isinstance(value, dict | list):
            yield from places(value)


def odd_value(text: str, luck: random.Random) -> str:
    """A JSON file in which one value is not what it should be, or is missing."""
    content = json.loads(text)
    owner, key = luck.choice(list(places(content)))
    if luck.random() < 0.2:
        del owner[key]
    else:
        owner[key] = luck.choice(ODD)
    return json.dumps(content)


def odd_line(text: str, luck: random.Random) -> str:
    """The same for files of lines."""
    lines = text.splitlines()
    place = luck.randrange(len(lines))
    name, equals, _ = lines[place].partition("=")
    odd = luck.choice(("3", "-1", "1e308", "nan", '"x"', "[]", "{}", "true", "", "1" + "0" * 400))
    cells = lines[place].split(",")
    cells[luck.randrange(len(cells))] = odd
    lines[place] = f"{name}= {odd}" if equals else ",".join(cells)
    return "\n".join(lines) + "\n"


def torn(text: str, luck: random.Random) -> str:
    return text[: luck.randrange(len(text))]


def scrambled(text: str, luck: random.Random) -> str:
    place = luck.randrange(len(text))
    return text[:place] + "".join(luck.choices('{}[]",:=\x00é0', k=4)) + text[place + 4 :]


@pytest.fixture(scope="module")
def copied(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run, to be damaged."""
    target = tmp_path_factory.mktemp("damage") / "all"
    skipped = shutil.ignore_patterns("*.png", "tensorboard", "*.html")
    shutil.copytree(run_folder, target, ignore=skipped)
    return target


@pytest.mark.parametrize("file", FILES)
def test_no_damage_breaks_the_page(copied: Path, file: str) -> None:
    path = copied / "software" / file
    whole = path.read_text(encoding="utf-8")
    luck = random.Random(file)
    value: Callable[..., str] = odd_value if file.endswith(".json") else odd_line
    try:
        for place in range(ROUNDS):
            damage = (value, value, torn, scrambled)[place % 4]
            path.write_text(damage(whole, luck), encoding="utf-8")
            sections = page_of(report(copied)).sections
            others = set(FILES.values()) - {FILES[file]}
            assert others <= set(sections)
    finally:
        path.write_text(whole, encoding="utf-8")


@pytest.mark.parametrize("file", ["training_ckpts/last.ckpt", "search_ckpts/study.log"])
def test_files_that_are_not_text(copied: Path, file: str) -> None:
    path = copied / "software" / file
    whole = path.read_bytes()
    records = [
        *copied.glob("software/run_train*.json"),
        copied / "software/search_ckpts/search.json",
    ]
    kept = {record: record.read_bytes() for record in records}
    luck = random.Random(1)
    try:
        for record in records:  # so that the page has to look into the other files
            record.unlink()
        for damaged in (whole[: len(whole) // 2], luck.randbytes(300), b""):
            path.write_bytes(damaged)
            assert "test" in page_of(report(copied)).sections
    finally:
        path.write_bytes(whole)
        for record, content in kept.items():
            record.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("training_ckpts/training_log.csv", b"epoch,train_loss\n0,\xff\xfe"),
        ("checkpoints/test_results.json", '{"test_acc_epoch": '),
        ("checkpoints/test_results.json", '{"test_acc_epoch": "many"}'),
        ("checkpoints/test_results.json", "[]"),
        ("checkpoints/test_results.json", json.dumps(a_result(rows=10**400))),
        ("checkpoints/test_results.json", json.dumps(a_result(confusion_matrix=[[10**400]]))),
        ("transform/transformed_ckpt/graph.json", "{}"),
        ("search_ckpts/log.json", "[1]"),
        ("search_ckpts/log.json", '{"0": {"number": 0}}'),
        ("run_train.json", '{"settings": 3}'),
    ],
)
def test_the_damaged_file_is_named(tmp_path: Path, file: str, content: str | bytes) -> None:
    software = tmp_path / "p" / "software"
    put(software / "search_ckpts/best.json", {})
    if "test" not in file:
        put(software / "checkpoints/test_results-v1.json", a_result())
    put(software / file, "")
    path = software / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    page = page_of(report(tmp_path / "p"))
    assert page.sections[-1] == "problems"
    named = "transformed_ckpt" if "graph" in file else "search_ckpts" if "log.json" in file else ""
    assert (named or path.name) in page.texts["problems"]
    assert ("test" in page.sections) == ("test" not in file)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    software = tmp_path / "p" / "software"
    put(software / "checkpoints/test_results.json", a_result())
    put(software / "training_ckpts/training_log.csv", "epoch,train_loss\n0,1\n")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("chop.views.sections.run.csv.DictReader", refuse)
    page = page_of(report(tmp_path / "p"))
    assert page.sections == ["test", "run", "problems"]
    assert "training_log.csv: cannot be read" in page.texts["problems"]


def test_a_bug_of_ours_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "p/software/training_ckpts/training_log.csv", "epoch,train_loss\n0,1\n")

    def buggy(*_: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("chop.views.sections.run.training_charts", buggy)
    with pytest.raises(KeyError):
        report(tmp_path / "p")
    assert main(["report", str(tmp_path / "p")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--debug" in error
    assert main(["report", str(tmp_path / "p"), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert not (tmp_path / "p/report.html").exists()


def test_a_space_larger_than_any_float_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "p/software/search_ckpts"
    put(folder / "log.json", {"0": logged(0, 0.5, 4)})
    put(folder / "best.json", {"0": {"number": 0}})
    put(folder / "search.json", {"space_size": 10**400})
    words = page_of(report(tmp_path / "p")).texts["search-0"]
    assert "1 distinct configuration of 1.00e+400 evaluated" in words


def test_a_choice_that_is_not_a_number_is_shown_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "p/software/search_ckpts"
    config = {"fc": {"config": {"name": "x", "scale": float("nan"), "list": [float("inf")]}}}
    put(folder / "log.json", {"0": logged(0, 0.5, 4, user_attrs_sampled_config=config)})
    put(folder / "best.json", {"0": {"number": 0}})
    page = page_of(report(tmp_path / "p"))
    assert page.json["search-0-data"]["options"] == [["x"], ["nan"], ["[inf]"]]
