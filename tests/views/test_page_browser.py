"""The page in a real browser: no complaints, plots drawn, hover, click and keys at work.

Screenshots are kept in the folder that CHOP_SCREENSHOTS names, for people to look at.
"""

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_browser import Browser, browsing, chromium
from report_pages import with_script
from test_page_hostile import hostile_run

from chop.verbs.report import report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="chromium is not installed: apt-get install chromium"
)

LONE = """(() => {
  // The dominated point that has most room around it, and is not all float.
  const at = (each) => each.getBoundingClientRect();
  const away = (a, b) => Math.hypot(at(a).x - at(b).x, at(a).y - at(b).y);
  const points = [...document.querySelectorAll(".point")];
  const room = (a) => Math.min(...points.filter((b) => b !== a).map((b) => away(a, b)));
  return points.filter((each) => each.classList.contains("dominated"))
    .filter((each) => !each.ariaLabel.includes("average_bitwidth 32 "))
    .reduce((a, b) => (room(a) >= room(b) ? a : b)).dataset.trial;
})()"""
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const brush = canvas.getContext("2d", {willReadFrequently: true});
  const painted = (colours) => {
    for (const each of colours) { brush.fillStyle = each; brush.fillRect(0, 0, 1, 1); }
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (each) => {
    const found = [];
    for (let at = each; at; at = at.parentElement) {
      const box = at.classList.contains("node") ? at.querySelector("rect") : null;
      found.unshift(box ? getComputedStyle(box).fill : getComputedStyle(at).backgroundColor);
    }
    return ["#fff", ...found];
  };
  const faint = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !each.getClientRects().length || each.closest("script, title, option")) continue;
    const style = getComputedStyle(each);
    const ink = each.namespaceURI.endsWith("svg") ? style.fill : style.color;
    const back = behind(each);
    const [one, two] = [light(painted(back)), light(painted([...back, ink]))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) faint.push(`${each.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""
BARE = """(() => {
  // What a reader who cannot see the page would be left alone with.
  const named = (each) => each.ariaLabel || each.getAttribute("aria-labelledby")
    || each.textContent.trim() || each.closest("label");
  const found = [...document.querySelectorAll(
    "svg, select, button, a, section, nav, [tabindex='0'], [role]")]
    .filter((each) => !named(each) && each.role !== "status");
  return found.map((each) => each.outerHTML.slice(0, 80));
})()"""
UNLABELLED = """[...document.querySelectorAll("figure svg, .plot svg")]
  .filter((each) => !each.querySelector(".label")).map((each) => each.ariaLabel)"""
SAID = """new Promise((done) => {
  const said = document.querySelector(".status");
  const look = (left) => (said.textContent || !left ? done(said.textContent)
    : setTimeout(() => look(left - 1), 20));
  look(250);
})"""
CLIPPED = """[...document.querySelectorAll(".cards")]
  .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.ariaLabel)"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"prefers_color_scheme": "light"},
    "dark": {"prefers_color_scheme": "dark"},
    "phone": {"width": 390, "height": 844, "prefers_color_scheme": "light"},
    "phone-dark": {"width": 390, "height": 844, "prefers_color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        browser.allow_clipboard()
        yield browser


@pytest.fixture
def browser(chrome: Browser, page_file: Path) -> Iterator[Browser]:
    """The page, just opened; whatever happens to it, it has nothing to complain about."""
    chrome.open(page_file)
    yield chrome
    assert chrome.complaints == []


def detail(browser: Browser) -> str:
    return str(browser.run("document.querySelector('.detail').textContent"))


def status(browser: Browser) -> str:
    """What the page says that it has done; it takes a moment to copy."""
    return str(browser.run(SAID))


def labels(browser: Browser) -> list[str]:
    found: list[str] = browser.run(
        "[...document.querySelectorAll('.plot .label')].map((each) => each.textContent)"
    )
    return found


def logged_config(run_folder: Path, trial: str) -> dict[str, Any]:
    log = json.loads((run_folder / "software/search_ckpts/log.json").read_text())
    config: dict[str, Any] = log[trial]["user_attrs_sampled_config"]
    return config


def best_file(run_folder: Path, trial: str) -> str:
    """The text of ``best_<n>.toml`` of a trial on the front."""
    folder = run_folder / "software/search_ckpts"
    best = json.loads((folder / "best.json").read_text())
    place = next(place for place, each in best.items() if str(each["number"]) == trial)
    return (folder / f"best_{place}.toml").read_text()


def test_the_plot_is_drawn_with_named_axes(browser: Browser) -> None:
    assert browser.run("document.querySelectorAll('.point').length") == 12
    assert 1 <= browser.run("document.querySelectorAll('.point.front').length") < 12
    assert browser.run("document.querySelectorAll('.point[tabindex=\"0\"]').length") == 1
    assert labels(browser) == [
        "average_bitwidth (bits per parameter), less is better",
        "accuracy (fraction of rows), more is better",
    ]
    assert "on the front" in detail(browser)  # something is chosen from the start


def test_hover_shows_and_click_copies_the_configuration(
    browser: Browser, run_folder: Path, tmp_path: Path
) -> None:
    from chop.config.layers import checked_file
    from chop.passes import PASSES

    trial = browser.run(LONE)
    config = logged_config(run_folder, trial)
    browser.point(f".point[data-trial='{trial}']")
    shown = detail(browser)
    assert shown.startswith(f"Trial {trial}, dominated")
    assert "accuracy" in shown
    assert "seq_blocks_2: " in shown
    for value in config["seq_blocks_2"]["config"].values():
        assert value is None or str(value) in shown
    browser.click(f".point[data-trial='{trial}']")
    assert status(browser) == f"The TOML of trial {trial} is copied."
    tables = tomllib.loads(browser.clipboard)
    assert tables["model"] == "jsc-tiny"
    rules = dict(tables["passes"]["quantize"])
    assert rules.pop("by") == "name"
    assert rules == json.loads(json.dumps(config).replace("null", '"NA"'))
    copied = tmp_path / "copied.toml"
    copied.write_text(browser.clipboard, encoding="utf-8")
    PASSES["quantize"].parse(checked_file(copied)["passes"]["quantize"])


def test_near_a_point_is_near_enough(browser: Browser) -> None:
    trial = browser.run(LONE)
    x, y = browser.centre(f".point[data-trial='{trial}']")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 4, y=y + 4)
    assert detail(browser).startswith(f"Trial {trial},")


def test_keys_do_what_the_mouse_does(browser: Browser, run_folder: Path) -> None:
    focused = "document.activeElement.classList.contains('point')"
    for _ in range(200):
        browser.press("Tab")
        if browser.run(focused):
            break
    assert browser.run(focused)
    assert "on the front" in detail(browser)
    ring = "getComputedStyle(document.querySelector('.ring')).strokeWidth"
    with_focus = browser.run(ring)
    first = browser.run("document.activeElement.dataset.trial")
    browser.press("ArrowDown")
    trial = browser.run("document.activeElement.dataset.trial")
    assert trial != first
    assert detail(browser).startswith(f"Trial {trial}, on the front")
    browser.press("Enter")
    assert status(browser) == f"The TOML of trial {trial} is copied."
    assert browser.clipboard == best_file(run_folder, trial)
    browser.press("ArrowLeft")
    browser.press("ArrowRight")
    assert browser.run("document.activeElement.dataset.trial") == trial
    browser.press("Tab")  # the points are one stop on the way through the page
    assert not browser.run(focused)
    assert browser.run(ring) != with_focus


def test_a_button_copies_too(browser: Browser, run_folder: Path) -> None:
    trial = str(browser.run("document.querySelector('.point[tabindex=\"0\"]').dataset.trial"))
    browser.click(".detail button")
    assert status(browser) == f"The TOML of trial {trial} is copied."
    assert browser.clipboard == best_file(run_folder, trial)


def test_axes_can_be_any_metric_and_keep_what_is_chosen(browser: Browser) -> None:
    options = browser.run(
        "[...document.querySelector('.axis-x').options].map((each) => each.textContent)"
    )
    assert options == ["accuracy", "average_bitwidth", "loss", "memory_density"]
    before = detail(browser)
    browser.run("document.querySelector('.axis-x').focus()")
    browser.press("ArrowDown", times=2)
    assert labels(browser)[0].startswith("memory_density (times denser")
    browser.press("ArrowUp")
    assert labels(browser)[0].startswith("loss (nats)")
    assert detail(browser) == before


def test_costs_of_several_sizes_are_drawn_by_their_ratios(
    chrome: Browser, run_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_folder / "software/search_ckpts", tmp_path / "p/software/search_ckpts")
    path = tmp_path / "p/software/search_ckpts/log.json"
    log = json.loads(path.read_text())
    for place, trial in enumerate(log.values()):
        trial["user_attrs_hardware_metrics"]["average_bitwidth"] = 2.0 * 2**place
    path.write_text(json.dumps(log))
    chrome.open(report(tmp_path / "p"))
    numbers = "[...document.querySelectorAll('.plot text:not(.label)')].map((e) => e.textContent)"
    shown = chrome.run(numbers)
    assert [each for each in shown if each in ("1", "10", "100", "1,000", "10,000")]
    assert any(each.startswith("float network: 0.") for each in shown)
    line = chrome.run("Number(document.querySelector('.plot .baseline').getAttribute('y1'))")
    assert 0 < line < chrome.run("document.querySelector('.plot svg').viewBox.baseVal.height")
    assert chrome.complaints == []


def test_colours_can_be_chosen(browser: Browser) -> None:
    fills = (
        "[...document.querySelectorAll('.node rect')].map((each) => getComputedStyle(each).fill)"
    )
    by_bits = browser.run(fills)
    assert len(set(by_bits)) == 2
    browser.run("document.querySelector('.colour-by').focus()")
    browser.press("ArrowDown")
    by_error = browser.run(fills)
    assert len(set(by_error)) == 2
    assert set(by_bits) - set(by_error)
    assert "dB" in browser.run("document.querySelector('.legend').innerText")


@pytest.mark.parametrize("look", LOOKS)
def test_it_can_be_read_by_everyone(
    chrome: Browser, page_file: Path, tmp_path: Path, look: str
) -> None:
    chrome.open(page_file, **LOOKS[look])
    chrome.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert chrome.run(TOO_WIDE) == 0
    if look.startswith("phone"):
        assert chrome.run(CLIPPED) == []
    assert chrome.run(CONTRASTS) == []
    assert chrome.run(BARE) == []
    assert chrome.run(UNLABELLED) == []
    is_dark = chrome.run("getComputedStyle(document.body).backgroundColor") != "rgb(246, 247, 249)"
    assert is_dark == look.endswith("dark")
    folder = Path(os.environ.get("CHOP_SCREENSHOTS", tmp_path)).resolve()
    shot = chrome.screenshot(folder / f"report-{look}.png")
    assert shot.stat().st_size > 20_000
    assert chrome.complaints == []


def test_it_can_be_printed(chrome: Browser, page_file: Path, tmp_path: Path) -> None:
    chrome.open(page_file, width=720)  # what A4 has between its margins
    chrome.call("Emulation.setEmulatedMedia", media="print", features=[])
    chrome.run("window.dispatchEvent(new Event('beforeprint'))")
    folds = "[...document.querySelectorAll('details:not(.minor)')]"
    assert chrome.run(f"{folds}.every((each) => each.open)")
    assert chrome.run(TOO_WIDE) == 0
    assert chrome.run("document.querySelector('nav').getClientRects().length") == 0
    folder = Path(os.environ.get("CHOP_SCREENSHOTS", tmp_path)).resolve()
    printed = chrome.pdf(folder / "report.pdf").read_bytes()
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 40
    assert chrome.complaints == []


def test_no_foreign_script_runs(chrome: Browser, tmp_path: Path) -> None:
    page = report(hostile_run(tmp_path), tmp_path / "page.html")
    chrome.open(page)
    assert chrome.complaints == []
    assert not chrome.run("document.title").startswith("taken")
    chrome.point(".point")
    chrome.click(".point")
    assert chrome.run("document.querySelectorAll('img').length") == 0
    assert chrome.complaints == []
    chrome.open(with_script(page, 'document.title = "taken"'))
    assert not chrome.run("document.title").startswith("taken")
    assert len(chrome.complaints) == 1  # the policy of the page has stopped it
