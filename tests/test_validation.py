import pytest
from pydantic import BaseModel, ConfigDict, Field

from chop.errors import ConfigError
from chop.validation import parse


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sparsity: float = Field(default=0.0, ge=0, lt=1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    weight: Inner | None = None
    names: list[Inner] = []
    count: int


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": 1, "wieght": {}}, "here: unknown key 'wieght': did you mean 'weight'?"),
        ({"cuont": 1}, "here: unknown key 'cuont': did you mean 'count'?"),
        ({}, "here: count: field required"),
        (
            {"count": 1, "weight": {"sparsity": 1.5}},
            "here: weight.sparsity: input should be less than 1 (got 1.5)",
        ),
        (
            {"count": 1, "weight": {"sparsty": 1}},
            "here: weight: unknown key 'sparsty': did you mean 'sparsity'?",
        ),
    ],
)
def test_one_line_says_what_is_wrong_and_what_would_be_right(
    data: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Outer, data, "here")
    assert str(caught.value) == message


def test_the_callers_dictionary_stays_as_it_was() -> None:
    data = {"count": 3, "weight": {"sparsity": 0.5}}
    assert parse(Outer, data, "here").weight == Inner(sparsity=0.5)
    assert data == {"count": 3, "weight": {"sparsity": 0.5}}
