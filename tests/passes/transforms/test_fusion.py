import pytest
import torch
from torch import Tensor, nn
from transform_nets import Jsc, graph_of, rule

from chop.ir.graph.mase_graph import MaseGraph
from chop.logger import set_logging_verbosity
from chop.passes.graph import (
    conv_bn_fusion_transform_pass,
    linear_bn_fusion_transform_pass,
    prune_transform_pass,
    quantize_transform_pass,
    verify_metadata_analysis_pass,
)
from chop.passes.graph.utils import get_node_by_name


def trained_norms(model: nn.Module) -> nn.Module:
    """Statistics and affine parameters as training might leave them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.1, 3.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.double().eval()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(dims: int, bias: bool, affine: bool, groups: int) -> None:
    conv, norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
    model = trained_norms(
        nn.Sequential(conv(4, 6, 3, bias=bias, groups=groups), norm(6, affine=affine), nn.ReLU())
    )
    shape = (2, 4, *(5,) * dims)
    x = torch.randn(shape, dtype=torch.float64)
    expected = model(x)
    mg, info = conv_bn_fusion_transform_pass(graph_of(model, input=x))
    assert info == {"fused": {"_0": "_1"}, "skipped": {}, "was_training": []}
    assert torch.allclose(mg.model(x), expected, rtol=1e-12, atol=1e-12)
    assert [node.name for node in mg.nodes] == ["input_1", "_0", "_2", "output"]
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in mg.model.modules())
    assert torch.equal(model(x), expected)  # the model that was traced still has its norm


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    model = trained_norms(nn.Sequential(nn.Linear(4, 6, bias=bias), nn.BatchNorm1d(6), nn.ReLU()))
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = model(x)
    mg, info = linear_bn_fusion_transform_pass(graph_of(model, input=x))
    assert info["fused"] == {"_0": "_1"}
    assert torch.allclose(mg.model(x), expected, rtol=1e-12, atol=1e-12)


def test_metadata_follows() -> None:
    model = trained_norms(nn.Sequential(nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6)))
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    mg, _ = conv_bn_fusion_transform_pass(graph_of(model, input=x))
    verify_metadata_analysis_pass(mg)
    record = get_node_by_name(mg, "_0").meta["mase"]
    assert torch.allclose(record["common"]["results"]["data_out_0"]["value"], model(x))
    assert torch.equal(record["common"]["args"]["bias"]["value"], mg.model.get_submodule("0").bias)
    assert "bias" in record["software"]["args"]
    assert mg.meta["mase"]["common"]["nodes_out"] == ["_0"]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.conv(x)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Branching(), "used by other nodes"),
        (CalledTwice(), "called several times"),
        (
            nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2, track_running_stats=False)),
            "running",
        ),
    ],
    ids=["branching", "called twice", "no statistics"],
)
def test_what_must_stay_apart(model: nn.Module, reason: str) -> None:
    trained_norms(model)
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    expected = model(x)
    mg, info = conv_bn_fusion_transform_pass(graph_of(model, **{first_input(model): x}))
    assert info["fused"] == {}
    assert reason in next(iter(info["skipped"].values()))
    assert torch.equal(mg.model(x), expected)


def first_input(model: nn.Module) -> str:
    return "input" if isinstance(model, nn.Sequential) else "x"


def test_norm_over_another_dimension_stays() -> None:
    model = trained_norms(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    x = torch.randn(2, 6, 4, dtype=torch.float64)  # the norm works on the middle dimension
    expected = model(x)
    mg, info = linear_bn_fusion_transform_pass(graph_of(model, input=x))
    assert "not rows of features" in info["skipped"]["_1"]
    assert torch.equal(mg.model(x), expected)


@pytest.mark.parametrize("fusion", [conv_bn_fusion_transform_pass, linear_bn_fusion_transform_pass])
def test_norms_before_a_relu_stay(fusion: object) -> None:
    mg = graph_of(Jsc(16, 8, 5), 8, 16)
    # Only the norm between the first linear layer and the second ReLU has a layer before it.
    mg, info = fusion(mg)
    expected = {"seq_blocks_2": "seq_blocks_3"} if "linear" in fusion.name else {}
    assert info["fused"] == expected
    assert isinstance(mg.model.get_submodule("seq_blocks.0"), nn.BatchNorm1d)


def test_training_mode_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    set_logging_verbosity("warning")
    mg = graph_of(nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2)), 3, 2, 4)
    mg.model.train()
    mg, info = conv_bn_fusion_transform_pass(mg)
    assert info["was_training"] == ["_1"]
    assert "were in training mode" in capsys.readouterr().out


def test_quantised_layers_stay_and_pruned_ones_keep_their_zeros() -> None:
    def fresh() -> MaseGraph:
        model = trained_norms(nn.Sequential(nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)))
        return graph_of(model, input=torch.randn(2, 4, 5, dtype=torch.float64))

    mg, _ = quantize_transform_pass(fresh(), {"by": "type", "conv1d": rule("integer")})
    mg, info = conv_bn_fusion_transform_pass(mg)
    assert "quantised" in info["skipped"]["_1"]
    mg, _ = prune_transform_pass(fresh(), {"weight": {"sparsity": 0.5, "method": "l1-norm"}})
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    expected = mg.model(x)
    mg, info = conv_bn_fusion_transform_pass(mg)
    assert info["fused"] == {"_0": "_1"}
    assert torch.allclose(mg.model(x), expected, rtol=1e-12, atol=1e-12)
    assert (mg.model.get_submodule("0").weight == 0).double().mean() == 0.5
    assert "0.weight_mask" in mg.model.state_dict()
