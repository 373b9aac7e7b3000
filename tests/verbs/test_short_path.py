"""From a model of one's own to a front and an export, in a few lines."""

import csv
from pathlib import Path

import pytest
import torch
from warm import python

import chop

SCRIPT = """\
import chop, torch
from my_parts import Net, loaders
from chop.dataset import MaseDataModule
from torch import nn
train, val, test = loaders()
q = chop.quantize(Net(), next(iter(val))[0], width=8, calibrate=train)
print(q(next(iter(test))[0]).shape, len(q.info["quantized"]))
front = chop.search(Net(), train=train, val=val, test=test, strategy="tpe", n_trials=4)
print(front, front[0].export("c"))
data = MaseDataModule("csv", path="rows.csv", label_column="y", batch_size=50)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
print(chop.search(net, data=data, cycles=2, epochs=2, float_epochs=1)[0].export("integer"))
"""
PARTS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 3, stride=2), nn.Linear(18, 3)
    def forward(self, image):
        return self.out(self.conv(image).relu().flatten(1))

def loaders():
    torch.manual_seed(0)
    x, y = torch.randn(300, 1, 8, 8), torch.randint(3, (300,))
    parts = [(x[a:b], y[a:b]) for a, b in ((0, 200), (200, 250), (250, 300))]
    return [DataLoader(TensorDataset(*part), 50) for part in parts]
"""


def test_twelve_lines_quantise_search_and_export_two_networks(tmp_path: Path) -> None:
    assert len(SCRIPT.splitlines()) <= 12
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "my_parts.py").write_text(PARTS)
    with (tmp_path / "rows.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "c", "y"])
        for row in torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).tolist():
            writer.writerow([*row, "up" if sum(row) > 0 else "down"])
    done = python("script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([50, 3]) 2" in done.stdout
    assert "best_0" in done.stdout
    assert (tmp_path / "mase_output/Net/software/search_ckpts/export_c_best_0/model.c").is_file()
    assert list(tmp_path.glob("mase_output/*/software/search_ckpts/export_integer_best_0"))


def test_what_there_is_shows_itself() -> None:
    assert {"quantize", "search", "train", "evaluate", "export", "report"} <= set(dir(chop))
    assert all(callable(getattr(chop, name)) for name in dir(chop) if name != "__version__")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "tep"}, "unknown strategy 'tep': did you mean 'tpe'?"),
        ({"objectives": ["accuracy", "ebosp"]}, "unknown objective 'ebosp': did you mean 'ebops'?"),
        ({"strategy": "tpe", "n_trails": 3}, "n_trails"),
        ({"train": None}, "give train= and val=, or data="),
    ],
)
def test_mistakes(given: dict[str, object], message: str, tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    loader = torch.utils.data.DataLoader(rows, 2)
    given = {"train": loader, "val": loader, "project": tmp_path / "p", **given}
    with pytest.raises(chop.errors.ChopError, match=message.replace("?", r"\?")):
        chop.search(torch.nn.Linear(3, 2), **given)
    assert not (tmp_path / "p").exists()


class Inner(torch.nn.Module):
    """Changes its input, and has a part that is called `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.model(x.mul_(2))


def loader() -> torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    rows = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))
    return torch.utils.data.DataLoader(rows, 20)


def test_a_part_called_model_is_not_taken_for_the_model() -> None:
    net = Inner()
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in loader())
    assert chop.evaluate(net, loader()).right == right
    with pytest.raises(chop.errors.ConfigError, match="evaluate takes a torch.nn.Module, not int"):
        chop.evaluate(3, loader())


def test_a_network_that_changes_its_rows_is_tested_on_the_rows_as_they_are(tmp_path: Path) -> None:
    rows = [(x, y) for x, y in loader()]  # the very same tensors each time
    before = [x.clone() for x, _ in rows]
    found = chop.search(
        Inner(), train=rows, val=rows, test=rows, strategy="tpe", n_trials=2, project=tmp_path / "p"
    )
    assert all(torch.equal(x, was) for (x, _), was in zip(rows, before, strict=True))
    assert found.start.chosen_by == found.start.test
    assert found.start.is_float


def test_a_search_that_starts_from_a_quantised_network_does_not_call_it_float(
    tmp_path: Path,
) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    q = chop.quantize(net, torch.randn(4, 3), width=6)
    rows = loader()
    front = chop.search(q, train=rows, val=rows, strategy="tpe", n_trials=2, project=tmp_path / "p")
    assert [line.split()[0] for line in str(front).splitlines()][2] == "start"
    assert "etwork at the start" in front.report().read_text(encoding="utf-8")
