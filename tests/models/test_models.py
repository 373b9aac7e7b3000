from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from chop.errors import ChopError, ConfigError, RegistrationError, UnknownNameError
from chop.models import MODELS, get_model, get_model_info, get_tokenizer, register_model
from chop.models.info import DataShape, MaseModelInfo
from chop.models.physical import PHYSICAL_MODELS
from chop.models.toys.toy import ToyConvNet, ToyNet
from chop.models.toys.toy_custom_fn import ToyCustomFnNet
from chop.models.utils import MaseModelInfo as FromUtils
from chop.models.utils import ModelSource, ModelTaskType

ROWS = DataShape(num_features=16, num_classes=5)
PARAMETERS = {
    "jsc-tiny": 117,
    "jsc-toy": 327,
    "jsc-s": 5_807,
    "jsc-new": 1_223,
    "jsc-tiny-x10": 1_997,
    "jsc-rs1923": 3_285,
    "jsc-mlp": 4_389,
}


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(MODELS)
    yield
    MODELS._entries.clear()
    MODELS._entries.update(before)


def example(name: str, batch: int) -> Tensor:
    info = get_model_info(name)
    if info.is_nlp_model:
        tokens = torch.randint(1, 256, (batch, 32))
        tokens[:, 20:] = 0
        return tokens
    return torch.randn(batch, 16) if info.is_physical_model else torch.randn(batch, 3, 32, 32)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_runs_trains_and_can_be_traced(name: str) -> None:
    torch.manual_seed(0)
    info = get_model_info(name)
    model = get_model(name, "lm" if info.causal_LM else "cls")
    classes = {"physical": 5, "vision": 10, "nlp": 2}[info.task_type]
    scores = model(example(name, 3))
    assert scores.shape == ((3, 32, classes) if info.causal_LM else (3, classes))
    labels = torch.arange(scores[..., 0].numel()) % classes
    nn.functional.cross_entropy(scores.flatten(0, -2), labels).backward()
    assert all(each.grad is not None for each in model.parameters())
    traced = fx.symbolic_trace(model.eval())
    for batch in (1, 4):
        x = example(name, batch)
        assert torch.equal(traced(x.clone()), model(x))
    assert len(MODELS.descriptions()[name]) > 20
    assert get_model_info(name).name == name
    assert get_model_info(name).is_fx_traceable


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name: str) -> None:
    model = get_model(name, "cls", ROWS, False)
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]


def layers(name: str) -> list[str]:
    return [type(layer).__name__ for layer in get_model(name).seq_blocks]


def test_jsc_tiny_prints_as_the_labs_show_it() -> None:
    text = [str(layer) for layer in get_model("jsc-tiny").seq_blocks]
    assert text[0].startswith("BatchNorm1d(16, eps=1e-05, momentum=0.1, affine=True")
    assert text[1:] == [
        "ReLU(inplace=True)",
        "Linear(in_features=16, out_features=5, bias=True)",
        "ReLU(inplace=True)",
    ]


def test_jsc_new_is_the_network_of_the_report() -> None:
    """Its histogram is 4 batch norms, 3 linears, 4 ReLUs; its first weight has 128 values."""
    block = ["BatchNorm1d", "ReLU", "Linear"]
    assert layers("jsc-new") == [*block * 3, "BatchNorm1d", "ReLU"]
    model = get_model("jsc-new")
    assert model.get_parameter("seq_blocks.2.weight").numel() == 128
    widths = [layer.num_features for layer in model.modules() if isinstance(layer, nn.BatchNorm1d)]
    assert 8 * 4 * sum(widths) == 2_976  # what the report's counter found in a batch of 8


def test_jsc_tiny_x10_is_the_network_of_the_report() -> None:
    assert layers("jsc-tiny-x10") == ["BatchNorm1d", "ReLU", "Linear"] * 3


def test_networks_fit_other_data() -> None:
    model = get_model("jsc-s", dataset_info=DataShape(num_features=7, num_classes=3))
    assert model(torch.randn(4, 7)).shape == (4, 3)
    for name in ("toy", "toy_convnet", "toy_custom_fn", "toy_tiny"):
        tiny = get_model(name, dataset_info=DataShape(image_size=(1, 2, 2), num_classes=2))
        assert tiny(torch.randn(8, 1, 2, 2)).shape == (8, 2)
    for name in ("vgg7", "resnet18"):
        digits = get_model(name, dataset_info=DataShape(image_size=(1, 28, 28), num_classes=10))
        assert digits(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    large = get_model("resnet18", dataset_info=DataShape(image_size=(3, 96, 96), num_classes=4))
    assert large(torch.randn(2, 3, 96, 96)).shape == (2, 4)


def test_data_of_the_wrong_kind_is_one_line() -> None:
    with pytest.raises(ConfigError, match="takes rows of features"):
        get_model("jsc-tiny", dataset_info=DataShape(image_size=(3, 4, 4), num_classes=2))
    with pytest.raises(ConfigError, match="takes images"):
        get_model("toy", dataset_info=ROWS)


def test_requests_that_cannot_be_met_raise() -> None:
    with pytest.raises(ChopError, match="has no pretrained weights"):
        get_model("jsc-tiny", pretrained=True)
    with pytest.raises(ChopError, match="no such file"):
        get_model("jsc-tiny", checkpoint="none.ckpt")
    with pytest.raises(ConfigError, match="task must be 'cls'"):
        get_model("jsc-tiny", task="lm")
    with pytest.raises(ConfigError, match="use the quantize pass"):
        get_model("jsc-tiny", quant_config={"name": "integer"})
    with pytest.raises(UnknownNameError, match="did you mean 'jsc-tiny'"):
        get_model("jsc-tinny")
    with pytest.raises(ConfigError, match="needs the name of a model"):
        get_model(checkpoint="best.ckpt")
    with pytest.raises(ConfigError, match="no tokenizer"):
        get_tokenizer("jsc-tiny")
    assert isinstance(get_model(checkpoint="jsc-tiny"), nn.Module)


def test_a_class_of_the_users_becomes_a_model(tmp_path: Path) -> None:
    @register_model("mine")
    class Mine(nn.Module):
        def __init__(self, info: DataShape) -> None:
            super().__init__()
            assert info.num_features is not None
            self.fc = nn.Linear(info.num_features, 5)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.fc(x)
            return scores

    info = get_model_info("mine")
    assert info == MaseModelInfo(
        "mine", "manual", "physical", physical_data_point_classification=True, is_fx_traceable=True
    )
    assert isinstance(get_model("mine"), Mine)
    assert "mine" in PHYSICAL_MODELS
    assert MODELS.descriptions()["mine"] == "the model Mine builds"
    with pytest.raises(RegistrationError, match="already registered"):
        register_model("mine")(Mine)


def test_a_model_asks_for_facts_by_name_and_keeps_its_other_defaults() -> None:
    @register_model("named")
    class Named(nn.Module):
        def __init__(self, num_features: int, width: int = 3, num_classes: int = 10) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(num_features, width), nn.Linear(width, num_classes)
            )

    built: Any = get_model("named", dataset_info={"num_features": 7, "num_classes": 4})
    assert [(each.in_features, each.out_features) for each in built.layers] == [(7, 3), (3, 4)]


def test_functions_and_other_facts() -> None:
    @register_model("pixels", task_type="vision", model_source="toy")
    def pixels() -> nn.Module:
        """Looks at pixels."""
        return nn.Identity()

    assert get_model_info("pixels").image_classification
    assert MODELS.descriptions()["pixels"] == "Looks at pixels."
    assert "pixels" not in list(PHYSICAL_MODELS)
    assert isinstance(get_model("pixels"), nn.Identity)
    with pytest.raises(RegistrationError, match=r"one argument, not \(a, b\)"):
        register_model("two")(lambda a, b: nn.Identity())
    with pytest.raises(UnknownNameError, match="did you mean 'is_lora'"):
        register_model("typo", is_lorra=True)(nn.Identity)


def test_pretrained_loads_the_registered_weights(tmp_path: Path) -> None:
    source = nn.Linear(16, 5)
    torch.save(source.state_dict(), tmp_path / "weights.pt")
    register_model("trained", weights=tmp_path / "weights.pt")(lambda info: nn.Linear(16, 5))
    model = get_model("trained", pretrained=True)
    assert torch.equal(model.weight, source.weight)


def test_physical_models_is_the_registry_as_the_labs_edit_it() -> None:
    assert PHYSICAL_MODELS["jsc-tiny"]["info"] is get_model_info("jsc-tiny")
    info = MaseModelInfo(
        "jsc-s",
        model_source="physical",
        task_type="physical",
        physical_data_point_classification=True,
        is_fx_traceable=True,
    )
    PHYSICAL_MODELS["jsc-x"] = {"model": lambda info: nn.Linear(16, 5), "info": info}
    assert isinstance(get_model("jsc-x", dataset_info=ROWS), nn.Linear)
    assert get_model_info("jsc-x").name == "jsc-x"
    assert len(PHYSICAL_MODELS) == len(list(PHYSICAL_MODELS))
    for wrong in ({"model": nn.Identity}, {"model": nn.Identity, "info": "jsc"}):
        with pytest.raises(RegistrationError, match="give"):
            PHYSICAL_MODELS["jsc-y"] = wrong
    with pytest.raises(RegistrationError, match="already registered"):
        PHYSICAL_MODELS["jsc-x"] = {"model": nn.Identity, "info": info}
    with pytest.raises(RegistrationError, match="stay"):
        del PHYSICAL_MODELS["jsc-x"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (("hugging", "vision", True), "unknown model_source 'hugging'"),
        (("toy", "vison", True), "unknown task_type 'vison': did you mean 'vision'"),
        (("toy", "vision"), "needs a task: image_classification"),
        (("toy", "vision", False, True), "cannot have the task physical_data_point"),
        (("toy", "vision", 1), "image_classification must be true or false"),
    ],
)
def test_facts_that_make_no_sense_are_one_line(facts: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        MaseModelInfo("mine", *facts)
    assert "\n" not in str(error.value)


def test_names_of_the_labs() -> None:
    from chop.models.toy import ToyNet as other_path
    from chop.models.toy.toy import ToyConvNet as other_conv
    from chop.models.toy.toy_custom_fn import ToyCustomFnNet as other_custom

    assert (other_path, other_conv, other_custom) == (ToyNet, ToyConvNet, ToyCustomFnNet)
    assert FromUtils is MaseModelInfo
    info = MaseModelInfo("vgg7", "vision_others", "vision", True)
    assert info.model_source is ModelSource.VISION_OTHERS
    assert info.task_type is ModelTaskType.VISION
    kinds = (info.is_vision_model, info.is_physical_model, info.is_nlp_model, info.is_nerf_model)
    assert kinds == (True, False, False, False)


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_a_data_set_is_described_by_a_dictionary_or_by_attributes(kind: Any) -> None:
    model = get_model("toy", "cls", kind(num_classes=3, image_size=(1, 2, 2)))
    assert model(torch.ones(2, 4)).shape == (2, 3)


def test_a_misspelt_size_is_said() -> None:
    with pytest.raises(ConfigError, match="unknown key 'num_clases': did you mean 'num_classes'"):
        get_model("toy", "cls", {"num_clases": 3})
