from pathlib import Path

import pytest

from chop.dataset.info import DATASETS
from chop.errors import RegistrationError, UnknownNameError
from chop.loading.user_code import import_user_code
from chop.models import MODELS
from chop.registry import Registry


@pytest.fixture
def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape")

    @registry.register("circle", "disc")
    class Circle:
        """A round thing.

        With more to say.
        """

    return registry


def test_several_names_stand_for_one_thing(shapes: Registry[type]) -> None:
    assert shapes["circle"] is shapes["disc"]
    assert list(shapes) == ["circle", "disc"]
    assert len(shapes) == 2


def test_the_nearest_name_is_suggested(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shapes["cricle"]
    assert str(caught.value) == "unknown shape 'cricle': did you mean 'circle'?"


def test_all_names_are_listed_where_none_is_near(shapes: Registry[type]) -> None:
    with pytest.raises(UnknownNameError, match="known are circle, disc$"):
        shapes["pentagon"]


def test_a_taken_name_is_refused(shapes: Registry[type]) -> None:
    with pytest.raises(RegistrationError, match="shape 'disc' is already registered"):
        shapes.add("disc", int)
    assert shapes["disc"] is shapes["circle"]


def test_it_is_a_mapping(shapes: Registry[type]) -> None:
    assert shapes.get("square") is None
    assert "square" not in shapes
    assert 3 not in shapes


def test_descriptions_are_first_lines(shapes: Registry[type]) -> None:
    assert shapes.descriptions() == {"circle": "A round thing.", "disc": "A round thing."}


def test_a_notebook_may_run_its_cells_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_entries", "_owners"):  # other tests list all models
        monkeypatch.setattr(MODELS, table, dict(getattr(MODELS, table)))
    cell = compile(
        "from chop.models import register_model\n"
        "@register_model('from-a-cell')\n"
        "def build(info):\n    'A network.'\n",
        "<cell>",
        "exec",
    )
    for _ in range(2):
        exec(cell, {"__name__": "__main__"})
    with pytest.raises(RegistrationError, match="'from-a-cell' is already registered"):
        exec(cell, {"__name__": "another_module"})


MODEL = """
from chop.models import register_model

@register_model({name!r})
def build(info):
    'A network of my own.'
    raise ValueError('mine')
"""
DATA = """
from chop.dataset import register_dataset

@register_dataset({name!r})
def rows():
    'Rows of my own.'
    raise ValueError('mine')
"""


@pytest.mark.parametrize(
    ("code", "registry", "name", "kind"),
    [
        (MODEL, MODELS, "jsc-tiny-x10", "model"),
        (DATA, DATASETS, "jsc-sim", "data set"),
    ],
)
def test_a_users_own_takes_the_place_of_a_built_in_one(
    code: str,
    registry: Registry[object],
    name: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for table in ("_entries", "_owners"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    files = [tmp_path / "mine.py", tmp_path / "other.py"]
    for path in files:
        path.write_text(code.format(name=name))
    with caplog.at_level("WARNING", logger="chop"):
        import_user_code([str(files[0])])
    assert registry.descriptions()[name].endswith("of my own.")
    assert [record.getMessage() for record in caplog.records] == [
        f"{files[0]} takes the place of the built-in {kind} '{name}'"
    ]
    mine = registry[name]
    with pytest.raises(RegistrationError) as caught:
        import_user_code([str(files[1])])
    assert f"{kind} {name!r} is already registered by {files[0]}" in str(caught.value)
    assert registry[name] is mine


@pytest.mark.parametrize(
    "code",
    [
        "from chop.passes import transform_pass\ntransform_pass('quantize')(lambda graph: graph)\n",
        "from chop.numerics import FORMATS\nFORMATS.add('integer', int)\n",
        "from chop.ops.table import OPS\nOPS.add('linear', None)\n",
    ],
)
def test_what_files_and_metrics_rest_on_is_not_replaced(code: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(RegistrationError, match="is already registered: take another name"):
        import_user_code([str(tmp_path / "mine.py")])


def test_a_notebook_may_replace_a_built_in_model_again_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for table in ("_entries", "_owners"):
        monkeypatch.setattr(MODELS, table, dict(getattr(MODELS, table)))
    cell = compile(MODEL.format(name="toy"), "<cell>", "exec")
    with caplog.at_level("WARNING", logger="chop"):
        for _ in range(3):
            exec(cell, {"__name__": "__main__"})
    assert [record.getMessage() for record in caplog.records] == [
        "__main__ takes the place of the built-in model 'toy'"
    ]
