"""Vision networks by name have the numbers that are published of them."""

import pytest
import torch

from chop.errors import ConfigError
from chop.models import get_model

PUBLISHED = {
    "resnet8": ({"image_size": (3, 32, 32), "num_classes": 10}, 78_666),
    "ds-cnn": ({"image_size": (1, 49, 10), "num_classes": 12}, 24_908),
    "mobilenet-v1-025": ({"image_size": (3, 96, 96), "num_classes": 2}, 221_794),
    "autoencoder-ad": ({"num_features": 640, "num_classes": 640}, 269_992),
    "lenet5": ({"image_size": (1, 28, 28), "num_classes": 10}, 61_706),
}
"""MLPerf Tiny counts as Keras does: with the mean and variance of batch normalisation."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_published(name: str) -> None:
    data, count = PUBLISHED[name]
    model = get_model(name, dataset_info=data).eval()
    state = model.state_dict().values()
    assert sum(each.numel() for each in state if each.is_floating_point()) == count
    shape = data.get("image_size") or (data["num_features"],)
    assert model(torch.zeros(2, *shape)).shape == (2, data["num_classes"])  # type: ignore[misc]


def test_cnv_has_the_weights_of_finn() -> None:
    model = get_model("cnv", dataset_info={"image_size": (3, 32, 32), "num_classes": 10})
    assert sum(each.numel() for each in model.parameters() if each.ndim > 1) == 1_542_848


def test_small_pictures_are_refused_where_nothing_would_be_left() -> None:
    with pytest.raises(ConfigError, match="needs larger pictures"):
        get_model("cnv", dataset_info={"image_size": (3, 16, 16), "num_classes": 10})
