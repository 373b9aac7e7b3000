"""Models of transformers, from a configuration or a folder; nothing is fetched."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chop.errors import CheckpointError, ConfigError
from chop.ir.graph.mase_graph import MaseGraph
from chop.loading.networks import load_model
from chop.models import from_transformers, get_model
from chop.models.info import DataShape
from chop.passes.graph import (
    add_common_metadata_analysis_pass,
    init_metadata_analysis_pass,
    quantize_transform_pass,
)
from chop.passes.graph.interface import load_mase_graph, save_mase_graph_interface_pass

try:
    import transformers
except ImportError:
    transformers = None  # type: ignore[assignment]
needs_transformers = pytest.mark.skipif(
    transformers is None, reason="the extra text (transformers) is not installed"
)
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = {
    "name": "integer", "data_in_width": 12, "data_in_frac_width": 6, "weight_width": 10,
    "weight_frac_width": 7, "scores_width": 8, "scores_frac_width": 7,
}  # fmt: skip


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install transformers"):
        from_transformers("folder")


@needs_transformers
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_model_is_traced_quantised_and_saved(kind: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {**SMALL, "intermediate_size": 32, "vocab_size": 50}
    configs = {"bert": "BertConfig", "llama": "LlamaConfig"}
    model = from_transformers(getattr(transformers, configs[kind])(**given))
    ids = {"input_ids": torch.randint(3, 50, (2, 6)), "attention_mask": torch.ones(2, 6).long()}
    ids["attention_mask"][1, 4:] = 0
    graph, _ = init_metadata_analysis_pass(MaseGraph(model, example_inputs=ids))
    assert model.config.use_cache in (True, False)
    assert not model.training
    for rows, length in ((2, 6), (3, 6), (1, 6), (2, 9)):
        more = {name: value[:1, :1].expand(rows, length).clone() for name, value in ids.items()}
        wanted = model(**more).last_hidden_state
        torch.testing.assert_close(graph.model(**more).last_hidden_state, wanted)
    graph, _ = add_common_metadata_analysis_pass(graph, {"dummy_in": ids})
    only = ["linear", "matmul", "scaled_dot_product_attention"]
    quantize_transform_pass(graph, {"by": "type", "default": {"config": CONFIG, "only": only}})
    save_mase_graph_interface_pass(graph, tmp_path / "saved")
    again = load_mase_graph(tmp_path / "saved")
    ours, theirs = graph.model(**ids), again.model(**ids)
    assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)


@needs_transformers
def test_a_folder_is_enough(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        **SMALL, intermediate_size=16, image_size=8, patch_size=4, num_labels=3
    )
    saved = transformers.ViTForImageClassification(config).eval()
    saved.save_pretrained(tmp_path / "vit")
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(from_transformers(tmp_path / "vit")(x).logits, saved(x).logits)
        assert torch.equal(load_model(tmp_path / "vit", "hf")(x), saved(x).logits)
    bare = from_transformers(tmp_path / "vit" / "config.json")  # weights are beside it, not in it
    assert type(bare) is type(saved)
    assert not torch.equal(bare(x).logits, saved(x).logits)


@needs_transformers
@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"model_type": "no such type"}'])
def test_a_file_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        from_transformers(tmp_path)


@needs_transformers
def test_a_class_that_transformers_does_not_have_is_not_looked_for(tmp_path: Path) -> None:
    named = {"model_type": "bert", "architectures": ["os", "logging"], **SMALL}
    (tmp_path / "config.json").write_text(json.dumps(named))
    assert type(from_transformers(tmp_path)).__name__ == "BertModel"


@needs_transformers
def test_weights_are_never_random_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = transformers.BertConfig(**SMALL, vocab_size=50, intermediate_size=16)
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    from_transformers(tmp_path)
    assert f"{tmp_path} has no weights (model.safetensors): they are random" in caplog.text
    for name in ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.fp16.safetensors"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(CheckpointError, match=rf"weights in {name}, but only model\.safet"):
            load_model(tmp_path, "hf")
        with pytest.raises(CheckpointError, match=rf"weights in {name}, but only model\.safet"):
            get_model(f"hf:{tmp_path}", "cls", DataShape(16, 2, vocab_size=50), pretrained=True)
        (tmp_path / name).unlink()
    other = transformers.BertModel(config)
    other.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    named = {**saved, "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(named))
    caplog.clear()
    from_transformers(tmp_path)
    assert "has no weights for classifier.bias, classifier.weight: they are random" in caplog.text
