"""Lab 3 as a script, and what it must show."""

import json
import re
from pathlib import Path

from warm import python

SCRIPT = Path(__file__).parents[2] / "examples" / "lab3.py"


def test_lab_3(tmp_path: Path) -> None:
    done = python(SCRIPT, "--quick", "--output", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout
    assert "not the JSC data set" in printed
    by_hand = re.findall(r"^\|(?: +[\d.]+ +\|){10}$", printed, re.MULTILINE)
    assert len(by_hand) == 16
    for line in by_hand:
        data, _, weight, *_, bitops, _ = [float(cell) for cell in line.split("|")[1:-1]]
        assert bitops == 960 * data * weight  # as many multiplications, of these widths
    assert "the same in reverse order: True\nfloat again: True\n" in printed
    assert printed.count("Best trial(s):\n") == 2
    front = json.loads((tmp_path / "brute" / "best.json").read_text("utf-8"))
    assert f"{len(front)} points of the front, the same when measured again: True" in printed
    assert re.search(r"^\| tpe +\| 20 +\| [01]\.\d+ ", printed, re.MULTILINE)
    assert re.search(r"^\| brute +\| 64 +\| 1\.000 ", printed, re.MULTILINE)
    for sampler in ("tpe", "brute"):
        for file in ("best.json", "best_0.toml", "log.json", "trials.csv", "front.png"):
            assert (tmp_path / sampler / file).is_file()
