import pytest
import torch
from torch import Tensor

from chop.dataset import MaseDataModule
from chop.errors import ConfigError, DataError, UnknownNameError
from chop.models import get_model, get_model_info
from chop.tools import InputGenerator, get_cf_args, get_dummy_input

TINY = get_model_info("jsc-tiny")


def data(batch_size: int = 64, seed: int = 0) -> MaseDataModule:
    module = MaseDataModule("jsc-sim", batch_size=batch_size, num_workers=0, seed=seed)
    module.prepare_data()
    module.setup()
    return module


def generator(seed: int = 0, which: str = "train", limit: int | None = 4) -> InputGenerator:
    return InputGenerator(
        data_module=data(seed=seed),
        model_info=TINY,
        task="cls",
        which_dataloader=which,
        max_batches=limit,
    )


def batches(inputs: InputGenerator) -> list[Tensor]:
    return [batch["x"] for batch in inputs]


def test_the_same_batches_every_time() -> None:
    inputs = generator()
    first, second, other = batches(inputs), batches(inputs), batches(generator())
    assert len(first) == len(inputs) == 4
    for one, two, three in zip(first, second, other, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert not torch.equal(first[0], batches(generator(seed=1))[0])


def test_as_the_labs_call_it() -> None:
    inputs = generator(limit=None)
    dummy_in = {"x": next(iter(inputs))["x"]}
    assert dummy_in["x"].shape == (64, 16)
    assert inputs.batch_size == 64
    assert len(inputs) == 938


def test_next_goes_on_and_starts_again_after_the_last() -> None:
    inputs = generator(limit=2)
    expected = batches(inputs)
    assert torch.equal(next(inputs)["x"], expected[0])
    assert torch.equal(batches(inputs)[0], expected[0])
    assert torch.equal(next(inputs)["x"], expected[1])
    with pytest.raises(StopIteration):
        next(inputs)
    assert torch.equal(next(inputs)["x"], expected[0])


def test_training_elsewhere_does_not_move_it() -> None:
    inputs = generator(limit=1)
    first = batches(inputs)[0]
    for _ in inputs.data_module.train_dataloader():
        break
    torch.manual_seed(5)
    assert torch.equal(batches(inputs)[0], first)


@pytest.mark.parametrize("which", ["val", "validation", "test"])
def test_the_other_splits(which: str) -> None:
    module = data()
    dataset = module.test_dataset if which == "test" else module.val_dataset
    expected = dataset.tensors[0][:64]
    assert torch.equal(batches(generator(which=which))[0], expected)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UnknownNameError, match="unknown data loader 'trian': did you mean 'train'"):
        generator(which="trian")
    with pytest.raises(ConfigError, match="max_batches must be at least 1"):
        generator(limit=0)
    with pytest.raises(ConfigError, match="task must be 'cls'"):
        InputGenerator(TINY, data(), "lm", "train")
    with pytest.raises(DataError, match="has no pred split"):
        batches(generator(which="pred"))


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_dummy_input(device: str) -> None:
    dummy = get_dummy_input(TINY, data(), "cls", device=device)
    assert dummy["x"].shape == (64, 16)
    assert dummy["x"].device.type == device
    if device == "cpu":
        assert get_model("jsc-tiny")(dummy["x"]).shape == (64, 5)


def test_a_batch_larger_than_the_data() -> None:
    module = MaseDataModule("toy_tiny", batch_size=20_000)
    assert get_dummy_input(get_model_info("toy"), module, "cls")["x"].shape == (10_240, 1, 2, 2)


def test_nothing_to_hold_fixed_while_tracing() -> None:
    assert get_cf_args(TINY, "cls", get_model("jsc-tiny")) == {}


def test_names_are_found_on_first_use() -> None:
    import chop.tools

    for name in ("InputGenerator", "get_cf_args", "get_dummy_input", "get_logger"):
        assert getattr(chop.tools, name).__module__.startswith("chop.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        chop.tools.nothing  # noqa: B018
