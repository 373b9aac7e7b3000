"""Completion as the shells do it: each script is run by its shell."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chop.catalogue import TOPICS, read_catalogue
from chop.cli import main
from chop.config.command_line import action_help
from chop.config.verb import all_options, flags_of, verbs
from chop.verbs.completion import SHELLS, completion_script

RUNS = ("train", "test", "transform", "search")
Complete = Callable[..., list[str]]


@pytest.fixture
def bash(tmp_path: Path) -> Complete:
    """What bash offers for the last of some words, which is the one being typed."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    script = tmp_path / "completion.bash"
    script.write_text(completion_script("bash", read_catalogue()))

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("ch", *words))
        ask = (
            f"source '{script}'; cd '{tmp_path}'; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; "
            "_shtab_ch; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(
            [shell, "--norc", "-uc", ask], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return [line for line in done.stdout.split("\n") if line]

    return complete


def test_bash_registers_the_function(bash: Complete, tmp_path: Path) -> None:
    ask = f"source {tmp_path / 'completion.bash'}; complete -p ch"
    done = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("complete ")
    assert done.stdout.endswith(" ch\n")


def test_bash_offers_the_commands(bash: Complete) -> None:
    assert bash("") == list(verbs())
    assert bash("tr") == ["train", "transform"]


@pytest.mark.parametrize("command", RUNS)
def test_bash_offers_models_then_data_sets(bash: Complete, command: str) -> None:
    assert bash(command, "") == list(read_catalogue()["models"])
    assert bash(command, "jsc-tiny", "") == list(read_catalogue()["datasets"])
    assert bash(command, "jsc-tiny", "jsc-sim", "") == []


def test_bash_does_not_count_options_as_words(bash: Complete) -> None:
    datasets = ["jsc", "jsc-sim"]
    assert bash("train", "--batch-size", "3", "jsc-tiny", "js") == datasets
    assert bash("--config", "x.toml", "train", "--resume", "jsc-tiny", "js") == datasets
    assert bash("train", "--quiet", "jsc-toy") == ["jsc-toy"]


@pytest.mark.parametrize("topic", TOPICS)
def test_bash_offers_what_there_is_of_a_topic(bash: Complete, topic: str) -> None:
    assert bash("info", topic[:3]) == [topic]
    assert set(read_catalogue()[topic]) <= set(bash("info", topic, ""))


@pytest.mark.parametrize("name", [name for name, each in all_options().items() if each.choices])
def test_bash_offers_the_choices_of_an_option(bash: Complete, name: str) -> None:
    flag = flags_of(all_options()[name])[-1]
    action = next(verb for verb, each in verbs().items() if name in each.options)
    assert set(all_options()[name].choices) <= set(bash(action, flag, ""))
    first = all_options()[name].choices[0]
    assert first in bash(action, flag, first[:2])


def test_bash_offers_the_options_of_the_command(bash: Complete) -> None:
    for command, known in verbs().items():
        offered = bash(command, "--")
        long = {flag for name in known.options for flag in flags_of(all_options()[name])
                if flag.startswith("--")}  # fmt: skip
        assert long <= set(offered), command
    assert "--batch-size" not in bash("report", "run", "--")
    assert bash("transform", "--spl") == []
    assert bash("test", "--spl") == ["--split"]
    assert bash("--ver") == ["--version"]


def test_bash_offers_paths_where_paths_are_expected(bash: Complete, tmp_path: Path) -> None:
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run.toml").touch()
    assert sorted(bash("train", "--config", "my")) == ["my run", "my run.toml"]
    assert bash("train", "--project-dir", "my") == ["my run"]
    assert bash("report", "my") == ["my run"]
    assert bash("train", "--batch-size", "my") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_in_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(completion_script(shell, read_catalogue()))
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ch tr", ["train", "transform"]),
        ("ch train --batch-size 3 jsc-tiny js", ["jsc", "jsc-sim"]),
        ("ch train --load-type p", ["pl", "pt"]),
        ("ch info passes prune", ["prune", "prune_detach_hook"]),
        ("ch doctor --q", ["--quiet"]),
    ],
)
def test_fish_completes(line: str, expected: list[str], tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = tmp_path / "ch.fish"
    script.write_text(completion_script("fish", read_catalogue()))
    ask = f"source {script}; complete -C '{line}'"
    done = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, check=True)
    assert sorted(each.partition("\t")[0] for each in done.stdout.splitlines()) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_names_every_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    dashes = "-l " if shell == "fish" else "--"
    actions = [each for action in verbs() for each in action_help(action)._actions]
    flags = {
        flag
        for each in actions
        for flag in each.option_strings
        if flag.startswith("--") and each.help != "==SUPPRESS=="
    }
    assert [flag for flag in flags if f"{dashes}{flag[2:]}" not in script] == []
    names = [name for topic in read_catalogue().values() for name in topic]
    assert [name for name in names if name not in script] == []


def test_the_topics_are_those_of_the_catalogue() -> None:
    assert verbs()["info"].words["topic"].values == ("all", *TOPICS)
