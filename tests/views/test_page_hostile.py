"""Names in files are text on the page, whatever they are."""

import json
from pathlib import Path

from report_pages import HOSTILE, Page, a_result, logged, put

from chop.markup import escape
from chop.verbs.report import report


def hostile_run(folder: Path) -> Path:
    software = folder / HOSTILE.replace("/", "_").encode("ascii", "ignore").decode() / "software"
    setting = {"name": HOSTILE, "default": HOSTILE, "file": HOSTILE, "effective": HOSTILE}
    put(
        software / "run_test.json",
        {"action": HOSTILE, "command": ["ch", HOSTILE], "settings": [setting], "data": HOSTILE,
         "fingerprint": HOSTILE, "versions": {HOSTILE: HOSTILE}},
    )  # fmt: skip
    names = [HOSTILE, "</td>"]
    put(
        software / "checkpoints/test_results.json",
        a_result(class_names=names, load_name=HOSTILE, run={"command": [HOSTILE]}),
    )
    metrics = {HOSTILE: 0.5, "accuracy": 0.5}
    rows = [
        logged(0, 0.5, 2, user_attrs_software_metrics=metrics,
               user_attrs_sampled_config={HOSTILE: {"config": {"name": HOSTILE, HOSTILE: 3}}}),
        logged(1, 0.6, 4),
        logged(2, None, 4, user_attrs_reason=HOSTILE),
    ]  # fmt: skip
    put(software / "search_ckpts/log.json", {str(n): row for n, row in enumerate(rows)})
    put(software / "search_ckpts/best.json", {"0": {"number": 0}, "1": {"number": 1}})
    put(software / "search_ckpts/best_0.toml", f'model = "x"\n[{json.dumps(HOSTILE)}]\na = 1\n'
        .encode("utf-8", "ignore").decode())  # fmt: skip
    return software.parent


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    path = report(hostile_run(tmp_path))
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.tags if tag == "img"] == []
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert [attrs.get("type") for attrs in scripts] == ["application/json", None]
    assert page.sections == ["search-0", "test", "run"]
    assert all('document.title="taken"' in page.texts[name] for name in page.sections)
    assert page.json["search-0-data"]["metrics"][0]["name"].startswith("<script>")


def test_a_graph_that_was_tampered_with_is_refused(run_folder: Path, tmp_path: Path) -> None:
    source = run_folder / "software/transform/transformed_ckpt"
    target = tmp_path / "p/software/transform/transformed_ckpt"
    for file in source.iterdir():
        target.mkdir(parents=True, exist_ok=True)
        (target / file.name).write_bytes(file.read_bytes())
    graph = (target / "graph.json").read_text(encoding="utf-8")
    (target / "graph.json").write_text(graph.replace("seq_blocks_2", "<script>x"), encoding="utf-8")
    page = Page(report(tmp_path / "p").read_text(encoding="utf-8"))
    assert page.sections == ["problems"]
    assert "graph.json" in page.texts["problems"]
    assert page.count("script") == 1


def test_no_mark_turns_text_round() -> None:
    assert escape("a\u202eb\u2066c\x9b") == "a\ufffdb\ufffdc\ufffd"
