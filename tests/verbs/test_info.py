"""``ch info`` tells all that registries hold: runners and their metrics, spaces, traits."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from chop import catalogue
from chop.cli import main
from chop.errors import UnknownNameError
from chop.search.runners import SW_RUNNERS
from chop.verbs import info

RUNNER = '''
from chop.search.runners import Candidate, software_runner

@software_runner("steadiness", metrics=("wobble",))
def steadiness(candidate: Candidate) -> dict[str, float]:
    """How little the scores change."""
    return {"wobble": 0.0}
'''


@pytest.mark.parametrize("topic", ["sw_runners", "hw_runners", "spaces", "samplers"])
def test_every_entry_is_listed(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", topic]) == 0
    text = capsys.readouterr().out
    assert text.split()[:2] == [topic, "description"]
    listed = [line.split()[0] for line in text.splitlines()[2:] if line[0] != " "]
    assert listed == sorted(catalogue.read_catalogue()[topic])
    assert set(listed) <= set(catalogue.live()[topic])  # to which other tests may have added


def test_runners_show_what_they_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "runners"]) == 0
    text = capsys.readouterr().out
    traits = catalogue.stored_traits()
    runners = [*traits["sw_runners"].values(), *traits["hw_runners"].values()]
    measured = {metric["name"] for runner in runners for metric in runner["metrics"]}
    assert measured >= {"accuracy", "latency", "memory_density"}
    assert all(name in text for name in measured)


def test_one_runner(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "average_bitwidth"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("average_bitwidth (hw_runners): Bits of a parameter")
    assert [line.split()[:2] for line in rest] == [
        ["measures", "average_bitwidth"],
        ["measures", "memory_density"],
    ]


def test_a_users_runner_is_one_decorated_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SW_RUNNERS, "_entries", dict(SW_RUNNERS))  # without it when this ends
    (tmp_path / "mine.py").write_text(RUNNER)
    assert main(["info", "steadiness", "--import", str(tmp_path / "mine.py")]) == 0
    assert (
        capsys.readouterr().out
        == "steadiness (sw_runners): How little the scores change.\nmeasures wobble\n"
    )


@dataclass(frozen=True)
class Traits:
    learns: bool
    needs: str
    resumes: str


METRIC = SimpleNamespace(name="latency", unit="ms", direction="minimize")


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({}, ""),
        ({"learns": False, "needs": ""}, "learns: no"),
        ({"learns": True, "needs": "scipy"}, "learns: yes; needs: scipy"),
        (Traits(True, "", "by replaying"), "learns: yes; resumes: by replaying"),
    ],
    ids=str,
)
def test_traits_in_words(traits: object, words: str) -> None:
    entry = SimpleNamespace(traits=traits, metrics=(METRIC, "loss"))
    found = catalogue.traits_of(entry)
    assert catalogue.trait_words(found) == words
    shown = [catalogue.metric_words(metric) for metric in found["metrics"]]
    assert shown == ["latency (ms, less is better)", "loss"]


def test_an_entry_that_says_nothing_has_no_traits() -> None:
    assert catalogue.traits_of(object()) == {}


def test_traits_stand_below_the_description(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"samplers": {"gp": {"learns": True, "needs": "scipy"}}}
    monkeypatch.setattr(catalogue, "stored_traits", lambda: said)
    assert main(["info", "samplers"]) == 0
    lines = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["samplers", "description"]
    place = next(number for number, line in enumerate(lines) if line[0] == "gp")
    assert lines[place + 1] == ["learns:", "yes; needs: scipy"]
    assert main(["info", "gp"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "learns: yes; needs: scipy"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_all_topics_fit_on_one_screen(columns: int) -> None:
    known, traits = catalogue.read_catalogue(), catalogue.stored_traits()
    lines = info.topics_overview(known, traits, columns).splitlines()
    assert len(lines) <= 3 + 2 * len(known) + 4
    assert max(map(len, lines[1:-1])) <= columns
    heads = [line.split()[0] for line in lines[1:-2] if line[0] != " "]
    assert heads == [*known, "metrics"]
    for topic, names in known.items():
        start = next(n for n, line in enumerate(lines) if line.split()[:1] == [topic])
        text = " ".join(
            line[12:]
            for line in lines[start : start + 2]
            if line[0] == " " or line.startswith(topic)
        )
        shown, _, left = text.partition("… ")
        listed = [name.strip() for name in shown.split(",") if name.strip()]
        assert listed == list(names)[: len(listed)]
        assert len(listed) + int(left.split()[0] if left else 0) == len(names)


def test_info_alone_is_the_screen_and_all_is_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    screen = capsys.readouterr().out
    assert "ebops" in screen.partition("\nmetrics ")[2]
    assert main(["info", "all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 5 * len(screen.splitlines())


def test_metrics_are_a_topic_too() -> None:
    text = info.info("metrics")
    assert "mae (units of the target, less is better)" in text
    assert info.info("metrics", "mae") == info.info("mae")
    assert "regression_evaluation, regression_train" in info.info("mae")
    assert info.info("latency").startswith("latency (sw_runners)")  # the runner
    assert "luts\n" in info.info("metrics", names_only=True)
    with pytest.raises(UnknownNameError, match="unknown metric 'acuracy': did you mean 'accuracy'"):
        info.info("metrics", "acuracy")
