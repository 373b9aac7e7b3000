import pytest

from chop.errors import RegistrationError, UnknownNameError
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


def test_a_notebook_may_run_its_cells_again() -> None:
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
