"""The page in a real browser: no complaints, plots drawn, hover, click and keys at work.

Screenshots are kept in the folder that CHOP_SCREENSHOTS names, for people to look at.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from report_pages import Page, browse, chromium, with_script
from test_page_hostile import hostile_run

from chop.actions.reporting import report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="chromium is not installed: apt-get install chromium"
)

WIDE, TALL = "--window-size=1180,900", "--window-size=1180,4000"
PROBE = """
(async () => {
  const found = {};
  Object.defineProperty(navigator, "clipboard",
    {value: {writeText: async (text) => { found.copied = text; }}});
  const wait = () => new Promise((done) => setTimeout(done, 50));
  const points = () => [...document.querySelectorAll(".point")];
  const detail = document.querySelector(".detail");
  found.points = points().length;
  found.front = document.querySelectorAll(".point.front").length;
  found.stops = document.querySelectorAll(".point[tabindex='0']").length;
  const label = () => [...document.querySelectorAll(".plot .label")].map((l) => l.textContent);
  found.labels = label();
  const other = points().find((each) => each.classList.contains("dominated"));
  other.dispatchEvent(new PointerEvent("pointerenter"));
  found.hovered = other.dataset.trial;
  found.hover = detail.textContent;
  other.dispatchEvent(new MouseEvent("click", {bubbles: true}));
  await wait();
  found.clicked = found.copied;
  found.status = document.querySelector(".status").textContent;
  const start = document.querySelector(".point[tabindex='0']");
  start.focus();
  found.focused = detail.querySelector("h4").textContent;
  start.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowUp", bubbles: true}));
  const next = document.activeElement;
  found.moved = next !== start && next.classList.contains("front") && next.tabIndex === 0
    && start.tabIndex === -1;
  next.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}));
  await wait();
  found.entered = next.dataset.trial;
  found.entered_toml = found.copied;
  const axis = document.querySelector(".axis-x");
  found.choices = [...axis.options].map((each) => each.textContent);
  axis.value = "3";
  axis.dispatchEvent(new Event("change"));
  found.labels_after = label();
  const coloured = (each) => !each.getAttribute("style").startsWith("--bits:0%");
  const box = [...document.querySelectorAll(".node")].find(coloured).querySelector("rect");
  const colour = () => getComputedStyle(box).fill;
  found.bits = colour();
  const select = document.querySelector(".colour-by");
  select.value = "error";
  select.dispatchEvent(new Event("change"));
  found.error = colour();
  window.dispatchEvent(new Event("beforeprint"));
  found.unfolded = [...document.querySelectorAll("details")].every((each) => each.open);
  const out = document.createElement("output");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
})();
"""
OVERFLOW = """
const root = document.documentElement;
document.title = String(root.scrollWidth - root.clientWidth);
"""


class Outcome(Page):
    """A page with the text of one element."""

    found = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.tags[-1] == ("output", {"id": "found"}) and self.open[-1] == "output":
            self.found += data
        super().handle_data(data)


@pytest.fixture(scope="session")
def probed(page_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened when the page was pointed at, clicked and typed into."""
    copy = with_script(page_file, PROBE)
    dom, complaints = browse(copy, tmp_path_factory.mktemp("profile"), "--dump-dom", WIDE)
    assert complaints == []
    found: dict[str, Any] = json.loads(Outcome(dom).found)
    return found


def test_the_plot_is_drawn_with_named_axes(probed: dict[str, Any]) -> None:
    assert probed["points"] == 12
    assert 1 <= probed["front"] < 12
    assert probed["stops"] == 1
    assert probed["labels"] == [
        "average_bitwidth (bits per parameter), less is better",
        "accuracy (fraction of rows), more is better",
    ]


def test_hover_shows_and_click_copies_the_configuration(
    probed: dict[str, Any], run_folder: Path
) -> None:
    log = json.loads((run_folder / "software/search_ckpts/log.json").read_text())
    config = log[probed["hovered"]]["user_attrs_sampled_config"]
    assert probed["hover"].startswith(f"Trial {probed['hovered']}, dominated")
    assert "accuracy" in probed["hover"]
    assert "seq_blocks_2: " in probed["hover"]
    for value in config["seq_blocks_2"]["config"].values():
        assert value is None or str(value) in probed["hover"]
    assert probed["status"] == f"The TOML of trial {probed['hovered']} is copied."
    tables = tomllib.loads(probed["clicked"])
    assert tables["model"] == "jsc-tiny"
    rules = tables["passes"]["quantize"]
    assert rules.pop("by") == "name"
    assert rules == json.loads(json.dumps(config).replace("null", '"NA"'))


def test_the_copied_file_is_one_that_ch_reads(probed: dict[str, Any], tmp_path: Path) -> None:
    from chop.config.layers import checked_file
    from chop.passes import PASSES

    path = tmp_path / "copied.toml"
    path.write_text(probed["clicked"], encoding="utf-8")
    PASSES["quantize"].parse(checked_file(path)["passes"]["quantize"])


def test_keys_do_what_the_mouse_does(probed: dict[str, Any], run_folder: Path) -> None:
    assert probed["focused"].endswith("on the front")
    assert probed["moved"]
    best = json.loads((run_folder / "software/search_ckpts/best.json").read_text())
    place = next(p for p, each in best.items() if str(each["number"]) == probed["entered"])
    stored = (run_folder / f"software/search_ckpts/best_{place}.toml").read_text()
    assert probed["entered_toml"] == stored


def test_axes_and_colours_can_be_chosen(probed: dict[str, Any]) -> None:
    assert probed["choices"] == ["loss", "accuracy", "average_bitwidth", "memory_density"]
    assert probed["labels_after"][0].startswith("memory_density")
    assert probed["bits"] != probed["error"]
    assert probed["unfolded"]


LOOKS = {
    "light": (TALL, "--blink-settings=preferredColorScheme=1"),
    "dark": (TALL, "--blink-settings=preferredColorScheme=0"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_complaints_and_a_screenshot(page_file: Path, tmp_path: Path, look: str) -> None:
    folder = Path(os.environ.get("CHOP_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    shot = folder / f"report-{look}.png"
    _, complaints = browse(page_file, tmp_path / "profile", f"--screenshot={shot}", *LOOKS[look])
    assert complaints == []
    assert shot.stat().st_size > 20_000


def test_a_phone_need_not_scroll_sideways(page_file: Path, tmp_path: Path) -> None:
    copy = with_script(page_file, OVERFLOW)
    frame = tmp_path / "phone.html"
    frame.write_text(
        f'<body style="margin:0"><iframe id="f" src="{copy.as_uri()}" '
        'style="width:390px;height:6000px;border:0"></iframe><script>onload = () => { '
        'document.title = "width " + document.getElementById("f").contentDocument.title; }'
        "</script></body>",
        encoding="utf-8",
    )
    folder = Path(os.environ.get("CHOP_SCREENSHOTS", tmp_path))
    shot = folder / "report-phone.png"
    flags = ("--allow-file-access-from-files", "--window-size=500,6000", f"--screenshot={shot}")
    dom, complaints = browse(frame, tmp_path / "profile", *flags, "--dump-dom")
    assert complaints == []
    assert "<title>width 0</title>" in dom


def test_no_foreign_script_runs(tmp_path: Path) -> None:
    page = report(hostile_run(tmp_path), tmp_path / "page.html")
    dom, complaints = browse(page, tmp_path / "one", "--dump-dom")
    assert complaints == []
    assert "<title>taken" not in dom
    intruded = with_script(page, 'document.title = "taken"', policy=True)
    dom, complaints = browse(intruded, tmp_path / "two", "--dump-dom")
    assert "<title>taken" not in dom
    assert len(complaints) == 1  # the policy of the page has stopped it
