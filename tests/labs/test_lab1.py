"""Lab 1 as a script, and what it must show."""

from pathlib import Path

from warm import python

SCRIPT = Path(__file__).parents[2] / "examples" / "lab1.py"


def test_lab_1(tmp_path: Path) -> None:
    done = python(SCRIPT, "--quick", "--output", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {
        cells[1]: cells
        for line in done.stdout.splitlines()
        if line.startswith("| jsc")
        for cells in [[cell.strip() for cell in line.split("|")]]
    }
    assert list(rows) == ["jsc-tiny", "jsc-tiny-x10", "jsc-mine"]
    assert rows["jsc-tiny"][2] == "117"
    tiny, large = (float(rows[name][4].split()[0]) for name in ("jsc-tiny", "jsc-tiny-x10"))
    assert 0.3 < tiny < large
    assert "not the JSC data set" in done.stdout
    for name in rows:
        for file in ("best.ckpt", "last.ckpt", "training_log.csv", "learning_curves.png"):
            assert (tmp_path / name / file).is_file()
